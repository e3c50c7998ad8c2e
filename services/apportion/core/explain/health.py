"""Which devices that a pod holds have failed, and whether its node is ready: what its owner is told
wherever he looks.

A device that fails takes nothing from the pods on it: they hold their shares until they end.
Invariant: a device is told of as long as nothing new may go there for its health, and no longer."""

from collections.abc import Iterable, Iterator
from typing import Final

from apportion.core.answers.reads import FailedDevice
from apportion.core.devices.shares import DeviceState
from apportion.core.explain.text.words import device_words
from apportion.core.ledger.state import ALLOCATED, NodeState, PodState, State

GONE = "its agent does not report it any more"
_MAKE_ROOM: Final = (
    "archive and trim it (`apportion ledger archive FILE`, `apportion ledger trim`), or give it "
    "more room: `apportion ledger resize`, and max_file_store of its server"
)
FREEZES: Final = {
    "ledger-full": ("the ledger is full", _MAKE_ROOM),
    "ledger-silent": (
        "the ledger acknowledges nothing",
        "look at the log and the disk of nats-server; restart it if its disk was full",
    ),
    "ledger-drifted": (
        "the ledger's settings are not as they must be",
        "`apportion ledger check` names each setting",
    ),
    "no-scheduler": ("no scheduler is heard", "start `apportion scheduler`"),
    "no-intake": (
        "no intake is heard, so no report of an agent is taken",
        "start `apportion intake`",
    ),
    "no-agent": ("no agent is heard", "start the agents of the nodes, or look at their logs"),
}
"""Why no pod can be placed or started, by code, each with its fix.

Placements go on by themselves once the cause has ended.
"""


def failed_devices(state: State, pod: PodState) -> tuple[FailedDevice, ...]:
    """The devices of its shares that failed, each once, in the order of the shares."""
    if pod.placement is None:
        return ()
    node = state.nodes[pod.placement.node]
    ids = dict.fromkeys(share.device for share in pod.placement.shares)
    held = (node.by_id[device] for device in ids if device in node.by_id)
    return tuple(failed for device in held if (failed := failure(device)) is not None)


def failure(device: DeviceState) -> FailedDevice | None:
    """Why the device is no good, or None where it is well."""
    if device.present and device.healthy:
        return None
    reason = device.health_reason or "no reason given" if device.present else GONE
    return FailedDevice(device=device.device.id, reason=reason)


def consequences(unready: str, phase: str, failed: tuple[FailedDevice, ...]) -> str:
    """What a person can do about these failed devices, and what an unready node means, as sentences
    behind another one; empty if nothing."""
    there = next((each.device for each in failed if each.reason != GONE), "")
    said = f". {moving(device_words(there))}" if there else ""
    if not unready:
        return said
    allocated = phase == ALLOCATED.value
    means = "Whether it still runs is not known" if allocated else "Nobody hands out its shares"
    return f"{said}. {means}: {unready}"


def moving(target: str) -> str:
    """What moves the pods off a device that has failed, or off a node that is not heard."""
    return f"`apportion drain {target} --reason WHY` moves what is on it"


def unready(state: State, pod: PodState) -> str:
    """Why the pod's node is not ready; empty where it is, or where the pod has none."""
    node = state.nodes[pod.placement.node] if pod.placement is not None else None
    if node is None or node.ready:
        return ""
    if not node.present:
        return f"{node.name} is not in the cluster any more"
    if not node.runs:
        return f"{node.name} is not ready"
    return f"the agent of {node.name} is not heard, {found_silent(node.silent)}"


def found_silent(time: str) -> str:
    """When it was found out that an agent is silent: it was last heard some while before."""
    return f"found silent at {moment(time)}"


def moment(time: str) -> str:
    """The time of an event to the second, as in `2026-05-01T12:00:00Z`."""
    return f"{time[:19]}Z"


def pods_on(node: NodeState, device: str) -> Iterator[PodState]:
    """The pods of the node that hold a share of the device."""
    for pod in node.pods.values():
        if pod.placement and any(share.device == device for share in pod.placement.shares):
            yield pod


def failed_words(failed: Iterable[FailedDevice]) -> str:
    """As in `its device GPU-1a2b3c4d has failed (XID 79: …)`; empty where none has."""
    return "; ".join(
        f"its device {device_words(each.device)} has failed ({each.reason})"
        + (f" at revision {each.revision}, {moment(each.time)}" if each.revision else "")
        for each in failed
    )
