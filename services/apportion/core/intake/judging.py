"""Decide whether an agent's event may be appended.

The intake has folded at least up to `basis`, the revision that the agent had read. So an event that
contradicts the state is wrong or out of date. Invariant: an event passes only if it concerns the
agent's node and the fold would accept it."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from apportion.core.intake.answers import Cause
from apportion.core.intake.inventory import MARGIN, implausible
from apportion.core.ledger.state import NodeState, Phase, State, other_owner
from apportion_schemas import (
    AllocationFailed,
    DeviceHealthChanged,
    Event,
    NodeReported,
    ShareBreached,
    SharesAllocated,
    UsageRecorded,
)
from apportion_schemas.usage import ShareUsed, UnsharedUsed

ROUNDED_S: Final = 60
USE_SECONDS_MAX: Final = 2 * 86_400  # more than an hour if the agent was stopped


class Refusal(Struct, frozen=True):
    """The verdict that the event must not be appended, with a cause code and a message."""

    cause: Cause
    why: str


class Known(Struct, frozen=True):
    """The verdict that the event need not be appended, because the ledger has the fact."""

    revision: int  # where the fact is


class Doubt(Struct, frozen=True):
    """The verdict that a report has usage of shares that, by our state, its pods do not have.

    The intake must read the bindings of these pods before it judges the usage again."""

    record: UsageRecorded
    shares: tuple[ShareUsed, ...]


Verdict = Refusal | Known | Doubt | None  # None: the event may be appended


_Judge = Callable[[State, Event, Any], Verdict]
_JUDGES: dict[type, _Judge] = {}


def _judges(*kinds: type) -> Callable[[_Judge], _Judge]:
    # The decorator of the function that judges these events.
    def declared(judge: _Judge) -> _Judge:
        _JUDGES.update(dict.fromkeys(kinds, judge))
        return judge

    return declared


def source_of(node: str) -> str:
    """Return the source that this node's agent puts into events."""
    return f"agent/{node}"


def judge(state: State, node: str, event: Event) -> Verdict:
    """Decide whether to append an event of this node's agent.

    The caller has checked that its subject and payload are about this node."""
    if event.source != source_of(node):
        return Refusal("foreign-source", f"the source is {event.source!r}, not {source_of(node)!r}")
    if event.cause > event.basis:
        return Refusal("future-basis", f"cause {event.cause} is newer than basis {event.basis}")
    return _JUDGES[type(event.data)](state, event, event.data)


@_judges(NodeReported)
def _report(state: State, event: Event, data: NodeReported) -> Verdict:
    known = state.nodes.get(data.node)
    if known is not None and known.reported == data and known.refused is None:
        # After a refusal the report is appended again, because that clears the refusal; also if the
        # health of a device was reported since, or the device moved to another node.
        there = [known.by_id[device.id] for device in data.devices if device.id in known.by_id]
        if len(there) == len(data.devices) and all(
            each.present and each.agent_health == (each.device.healthy, each.device.health_reason)
            for each in there
        ):
            return Known(known.reported_revision)
    for device in data.devices:
        owner = other_owner(state, data.node, device.id)
        if owner is not None:
            return Refusal(
                "device-of-another-node",
                f"device {device.id} is on node {owner.name}, which reported it at revision "
                f"{owner.reported_revision}; if it was moved, start that node's agent first",
            )
    trouble = implausible(data, state.configuration)
    if trouble and event.basis < state.configuration_revision:
        return Refusal("stale", f"made before the configuration changed: {trouble}")
    return Refusal("implausible-device", trouble) if trouble else None


@_judges(DeviceHealthChanged)
def _health(state: State, _event: Event, data: DeviceHealthChanged) -> Verdict:
    node = state.nodes.get(data.node)
    if node is None or data.device not in node.by_id:
        return Refusal("unknown-device", f"node {data.node} has no device {data.device}")
    return None


@_judges(SharesAllocated, AllocationFailed, ShareBreached)
def _of_placement(
    state: State, _event: Event, data: SharesAllocated | AllocationFailed | ShareBreached
) -> Verdict:
    pod = state.pods.get(data.pod)
    placed = pod.placement if pod is not None else None
    if pod is None or placed is None or placed.attempt != data.attempt:
        return Refusal("late", f"pod {data.pod} is no longer placed by attempt {data.attempt}")
    if placed.node != data.node:
        return Refusal(
            "pod-of-another-node", f"pod {data.pod} is placed on {placed.node}, not {data.node}"
        )
    if pod.phase is Phase.ALLOCATED and not isinstance(data, ShareBreached):
        return Known(pod.allocated_revision)
    named: tuple[str, ...] = ()
    if isinstance(data, SharesAllocated):
        named = data.devices
    elif isinstance(data, ShareBreached):
        named = (data.device,)
    held = {share.device for share in placed.shares}
    for device in named:
        if device not in held:
            return Refusal("unknown-device", f"pod {data.pod} has no share of device {device}")
    return None


@_judges(UsageRecorded)
def _usage(state: State, _event: Event, data: UsageRecorded) -> Verdict:
    every: tuple[ShareUsed | UnsharedUsed, ...] = (*data.shares, *data.unshared)
    for used in every:
        owner = state.nodes.get(state.node_of_device.get(used.device, data.node))
        if owner is not None and owner.name != data.node:
            return Refusal(
                "device-of-another-node", f"device {used.device} is on node {owner.name}"
            )
        if owner is None or used.device not in owner.by_id:
            # An unknown device may be another node's, not reported yet.
            return Refusal("unknown-device", f"device {used.device} is not on node {data.node}")
        if trouble := _too_much(used, owner):
            return Refusal("implausible-use", f"device {used.device}: {trouble}")
    for share in data.shares:
        pod = state.pods.get(share.pod)
        if pod is not None and pod.full_name != f"{share.namespace}/{share.name}":
            return misnamed(share, pod.full_name)
    there = state.nodes[data.node].pods if data.node in state.nodes else {}
    held = {
        (uid, share.device)
        for uid, pod in there.items()
        if pod.placement is not None
        for share in pod.placement.shares
    }
    doubtful = tuple(each for each in data.shares if (each.pod, each.device) not in held)
    return Doubt(data, doubtful) if doubtful else None


def misnamed(share: ShareUsed, name: str) -> Refusal:
    """Return the refusal of usage that is reported for a pod under another name than `name`."""
    why = f"pod {share.pod} is {name}, not {share.namespace}/{share.name}"
    return Refusal("implausible-use", why)


def _too_much(used: ShareUsed | UnsharedUsed, node: NodeState) -> str:
    if used.seconds > USE_SECONDS_MAX:
        return f"one report covers {used.seconds:,} s of usage; the maximum is two days"
    offered = node.by_id[used.device].device
    most_mib = int(MARGIN * max(offered.memory_mib, offered.physical_memory_mib))
    if used.memory_mib_seconds > most_mib * (used.seconds + ROUNDED_S):
        return f"{used.memory_mib_seconds:,} MiB-seconds in {used.seconds:,} s is more than it has"
    if used.memory_mib_peak > most_mib:
        return f"peak of {used.memory_mib_peak:,} MiB, but it has at most {most_mib:,} MiB"
    return ""


AGENTS_EVENTS: Final = frozenset(_JUDGES)  # all events that an agent may send
