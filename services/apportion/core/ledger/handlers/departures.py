"""Nodes that have left, pods that give their places up, and what people take off offer.

A node that left stays whole while a pod is there, while a person keeps it cordoned, or while it is
one of the newest `LEFT_MAX` to leave; so one that comes back soon has its devices at once. After
that the node and its devices are forgotten, as if no event had told of them. Only the ends of its
fences stay, for the newest `DEPARTED_MAX`, so that a node of that name goes on where it stopped.

Invariants: what is forgotten follows from the events alone, and nothing that is kept refers to it.
A pod is evicted only for a pending one of higher priority, whatever its scheduler thought; and of
those that are noted each holds its place still. `cordon` says the reasons of `cordons`, and nothing
of anybody else's: two people may cordon one thing, each for a reason, and it is on offer again once
both are lifted."""

from typing import Final

from apportion.core.devices.cordons import Cordon, added, reasons, without
from apportion.core.ledger.handlers.change import Change, Context, Refused, folds
from apportion.core.ledger.state import PENDING, Departed, NodeState, PodState, State
from apportion_schemas import (
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceUncordoned,
    NodeCordoned,
    NodeCordonLifted,
    NodeUncordoned,
    PodEvicted,
)

LEFT_MAX: Final = 256
DEPARTED_MAX: Final = 16_384
Said = (
    DeviceCordoned | DeviceUncordoned | DeviceCordonLifted
    | NodeCordoned | NodeUncordoned | NodeCordonLifted
)  # fmt: skip


def node_of(state: State, name: str) -> NodeState:
    """The node of that name, from now on known if it was not.

    A node that the state did not know has left until Kubernetes, where there is one, observes it.
    """
    node = state.nodes.get(name)
    if node is None:
        node = state.nodes[name] = NodeState(name, gone=state.of_kubernetes)
        before = state.departed.pop(name, None)
        if before is not None:
            node.fence, node.chain, node.presence = before.fence, before.chain, before.presence
    return node


def note_left(state: State, node: NodeState) -> tuple[NodeState, ...]:
    """Note that the node has left, or that something else there has ended; the nodes forgotten."""
    state.left.pop(node.name, None)
    if not node.gone or node.pods or node.cordons:
        return ()
    state.left[node.name] = None
    found: list[NodeState] = []
    for name in [*state.left][: max(len(state.left) - LEFT_MAX, 0)]:
        other = state.nodes[name]
        if not other.gone or other.pods or other.cordons:
            del state.left[name]  # it is back, or something came to it after it left
        elif name not in state.nominated.values():
            del state.left[name]
            del state.nodes[name]
            for device in other.by_id:
                if state.node_of_device.get(device) == name:
                    del state.node_of_device[device]
            if other.fence or other.presence:
                state.departed[name] = Departed(other.fence, other.chain, other.presence)
                if len(state.departed) > DEPARTED_MAX:
                    del state.departed[next(iter(state.departed))]
            found.append(other)
    return tuple(found)


def evict(context: Context, data: PodEvicted, pod: PodState) -> Change:
    """Note that the pod, which has the place that the event names, is to go."""
    state = context.state
    if data.pod in state.evictions:
        raise Refused(
            f"pod {data.pod} is evicted already, for {state.evictions[data.pod].beneficiary}"
        )
    one = state.pods.get(data.beneficiary)
    if one is None or one.phase is not PENDING:
        raise Refused(f"pod {data.beneficiary}, for which {data.pod} would go, does not wait")
    if pod.submitted.priority >= one.submitted.priority:
        raise Refused(
            f"pod {data.pod} of priority {pod.submitted.priority} would go for {data.beneficiary} "
            f"of priority {one.submitted.priority}"
        )
    if not pod.submitted.evictable:
        raise Refused(f"pod {data.pod} may not be evicted for others")
    if data.nominated not in state.nodes:
        raise Refused(f"node {data.nominated} is not known")
    state.evictions[data.pod] = data
    state.nominated[data.beneficiary] = data.nominated
    return Change(data, node=state.nodes[data.node], pod=pod, shares=())


def leave(state: State, uid: str) -> None:
    """The pod is gone: it holds no place, waits for none, and nobody resizes it."""
    state.resizes.pop(uid, None)
    state.evictions.pop(uid, None)
    state.nominated.pop(uid, None)


def give_up(state: State, uid: str) -> None:
    """The pod fits nowhere although nobody has to leave for it any more: no node is kept for it."""
    if uid in state.nominated and not awaited(state, uid):
        del state.nominated[uid]


def awaited(state: State, uid: str) -> list[PodEvicted]:
    """The evictions for this pod that are not over."""
    return [each for each in state.evictions.values() if each.beneficiary == uid]


@folds(DeviceCordoned, DeviceUncordoned, DeviceCordonLifted)
def _device_cordoned(
    context: Context, data: DeviceCordoned | DeviceUncordoned | DeviceCordonLifted
) -> Change:
    """Keep the device's reasons, also of one that nobody has reported yet."""
    state = context.state
    now = _reasons_after(context, state.device_cordons.get(data.device, ()), data, data.device)
    state.device_cordons.pop(data.device, None)
    if now:
        state.device_cordons[data.device] = now
    of = state.nodes.get(state.node_of_device.get(data.device, ""))
    if of is not None:
        known = of.by_id[data.device]
        known.cordons, known.cordon = now, reasons(now)
    return Change(data, node=of)


@folds(NodeCordoned, NodeUncordoned, NodeCordonLifted)
def _node_cordoned(
    context: Context, data: NodeCordoned | NodeUncordoned | NodeCordonLifted
) -> Change:
    """Keep the node's reasons, also of one that nobody has told of yet."""
    known = context.state.nodes.get(data.node)
    now = _reasons_after(context, known.cordons if known else (), data, data.node)
    if known is None:
        known = node_of(context.state, data.node)
    known.cordons, known.cordon = now, reasons(now)
    forgotten = note_left(context.state, known) if known.gone else ()
    return Change(data, node=known, forgotten=forgotten)


def _reasons_after(
    context: Context, before: tuple[Cordon, ...], data: Said, target: str
) -> tuple[Cordon, ...]:
    if isinstance(data, DeviceCordoned | NodeCordoned):
        return added(before, Cordon(data.by, data.reason, context.time, context.revision))
    if isinstance(data, DeviceUncordoned | NodeUncordoned):
        return ()
    after = without(before, data.of)
    if after == before:
        raise Refused(f"{data.of} has no reason against {target}")
    return after
