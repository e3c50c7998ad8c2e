"""Report which of a pod's devices failed, how long it was idle, why its node is not ready.

Pods on a failed device keep their shares until they end. Invariant: a device is reported exactly
while its own health prevents new placements."""

from collections.abc import Iterable, Iterator
from typing import Final

from apportion.core.answers.reads import FailedDevice, WhyIdle
from apportion.core.devices.shares import DeviceState
from apportion.core.explain.text.words import device_words
from apportion.core.ledger.fold import UNNAMED
from apportion.core.ledger.handlers.idle import idle_pod, reclaims
from apportion.core.ledger.moments import text_of
from apportion.core.ledger.state import ALLOCATED, NodeState, PodState, State

GONE = "its agent no longer reports it"
_MAKE_ROOM: Final = (
    "archive and trim it (`apportion ledger archive FILE`, `apportion ledger trim`), or enlarge "
    "it: `apportion ledger resize`, and max_file_store of its server"
)
# Reasons why no pod can be placed or started, by code, with the fix; all end by themselves
FREEZES: Final = {
    "ledger-full": ("the ledger is full", _MAKE_ROOM),
    "ledger-silent": (
        "the ledger does not acknowledge writes",
        "check the log and the disk of nats-server; restart it if its disk was full",
    ),
    "ledger-drifted": (
        "the ledger's settings are wrong",
        "`apportion ledger check` shows the first wrong setting",
    ),
    "no-scheduler": ("no scheduler is running", "start `apportion scheduler`"),
    "no-intake": (
        "no intake is running, so agent reports are not accepted",
        "start `apportion intake`",
    ),
    "no-agent": ("no agent is reporting", "start the agents on the nodes, or check their logs"),
}


def failed_devices(state: State, pod: PodState) -> tuple[FailedDevice, ...]:
    """Return the failed devices that the pod has shares of."""
    if pod.placement is None:
        return ()
    node = state.nodes[pod.placement.node]
    ids = dict.fromkeys(share.device for share in pod.placement.shares)
    held = (node.by_id[device] for device in ids if device in node.by_id)
    return tuple(failed for device in held if (failed := failure(device)) is not None)


def failure(device: DeviceState) -> FailedDevice | None:
    """Return why the device has failed; None if it has not.

    Pods of another scheduler on unknown devices only keep new pods away; no device failed."""
    healthy, reason = device.healthy, device.health_reason
    if reason == UNNAMED:
        healthy, reason = device.agent_health
    if device.present and healthy:
        return None
    reason = reason or "no reason given" if device.present else GONE
    return FailedDevice(device=device.device.id, reason=reason)


def consequences(unready: str, phase: str, failed: tuple[FailedDevice, ...]) -> str:
    """Return what failed devices and an unready node mean for the pod; may be empty."""
    there = next((each.device for each in failed if each.reason != GONE), "")
    said = f". {moving(device_words(there))}" if there else ""
    if not unready:
        return said
    allocated = phase == ALLOCATED.value
    means = "It may no longer be running" if allocated else "Its devices cannot be allocated"
    return f"{said}. {means}: {unready}"


def moving(target: str) -> str:
    """Return a hint: the command that moves the pods away from a failed device or silent node."""
    return f"`apportion drain {target} --reason REASON` moves its pods"


def unready(state: State, pod: PodState) -> str:
    """Return why the pod's node is not ready; empty if the node is ready or the pod has none."""
    node = state.nodes[pod.placement.node] if pod.placement is not None else None
    if node is None or node.ready:
        return ""
    if not node.present:
        return f"{node.name} has left the cluster"
    if not node.runs:
        return f"{node.name} is not ready"
    return f"the agent of {node.name} has stopped reporting ({found_silent(node.silent)})"


def found_silent(time: str) -> str:
    """Return when the ledger recorded that the agent stopped reporting, as text."""
    return f"detected at {moment(time)}"


def moment(time: str) -> str:
    """Format the time of an event to the second, as in `2026-05-01T12:00:00Z`."""
    return f"{time[:19]}Z"


def pods_on(node: NodeState, device: str) -> Iterator[PodState]:
    """Yield the pods of the node that have a share of the device."""
    for pod in node.pods.values():
        if pod.placement and any(share.device == device for share in pod.placement.shares):
            yield pod


def failed_words(failed: Iterable[FailedDevice]) -> str:
    """Return failed devices as text: `its device GPU-1a2b3c4d has failed (XID 79: …)`."""
    return "; ".join(
        f"its device {device_words(each.device)} has failed ({each.reason})"
        + (f" at revision {each.revision}, {moment(each.time)}" if each.revision else "")
        for each in failed
    )


def idle_of(state: State, pod: PodState) -> WhyIdle | None:
    """Return how long a pod has been idle, or None if it does not count as idle."""
    found = idle_pod(state, pod)
    if found is None:
        return None
    return WhyIdle(
        since=text_of(found.since),
        seconds=found.seconds,
        memory_mib=found.memory_mib,
        evictable=reclaims(state) and pod.submitted.evictable,
    )
