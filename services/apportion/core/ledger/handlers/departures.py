"""Apply events about nodes that left the cluster, evictions, reservations of nodes, and cordons.

A node that left is kept while it has pods or a cordon, or is one of the last `LEFT_MAX` to leave.
Other nodes are dropped. The fences of the newest `DEPARTED_MAX` dropped nodes are kept, so that a
returning node continues its chain.

A reservation of nodes ends when its pod or gang is placed, changes or ends, or when other pods are
evicted for it.

Invariants: which nodes are dropped follows from the events alone, and the state never refers to a
dropped node. A pod is evicted only for a pending pod of higher priority, unless it is idle or its
queue borrows. A pod is listed as evicted only while placed. A node or device with several cordons
is open again only after all are lifted."""

from typing import Final

from apportion.core.devices.cordons import Cordon, added, reasons, without
from apportion.core.ledger.handlers.change import Change, Context, Refused, folds
from apportion.core.ledger.handlers.idle import idle_pod, reclaims
from apportion.core.ledger.state import PENDING, Departed, NodeState, PodState, State, queue_of
from apportion_schemas import (
    ConfigurationChanged,
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceUncordoned,
    NodeCordoned,
    NodeCordonLifted,
    NodesReserved,
    NodeUncordoned,
    PodChanged,
    PodEvicted,
    PodGone,
    PodGroupGone,
    PodGroupObserved,
    PodPlaced,
)

LEFT_MAX: Final = 256
DEPARTED_MAX: Final = 16_384
RESERVATION: Final = "reservation"  # its key in `State.limits_checked`
Said = (
    DeviceCordoned | DeviceUncordoned | DeviceCordonLifted
    | NodeCordoned | NodeUncordoned | NodeCordonLifted
)  # fmt: skip


def node_of(state: State, name: str) -> NodeState:
    """Return the node of that name, after adding it to the state if it is new.

    In a Kubernetes cluster, the new node is marked as gone until Kubernetes reports it."""
    node = state.nodes.get(name)
    if node is None:
        node = state.nodes[name] = NodeState(name, gone=state.of_kubernetes)
        before = state.departed.pop(name, None)
        if before is not None:
            node.fence, node.chain, node.presence = before.fence, before.chain, before.presence
    return node


def note_left(state: State, node: NodeState) -> tuple[NodeState, ...]:
    """Keep an empty node that left the cluster; drop the oldest such nodes and return them."""
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
    """Record that the pod must end, to make room for the event's beneficiary."""
    state = context.state
    if data.pod in state.evictions:
        raise Refused(
            f"pod {data.pod} is evicted already, for {state.evictions[data.pod].beneficiary}"
        )
    one = state.pods.get(data.beneficiary)
    if one is None or one.phase is not PENDING:
        raise Refused(f"pod {data.beneficiary}, for which {data.pod} would go, does not wait")
    check_reason(state, data, pod, one)
    if not pod.submitted.evictable:
        raise Refused(f"pod {data.pod} may not be evicted for others")
    if data.nominated not in state.nodes:
        raise Refused(f"node {data.nominated} is not known")
    state.evictions[data.pod] = data
    state.nominated[data.beneficiary] = data.nominated
    for each in data.kept:
        other = state.pods.get(each.pod)
        if other is None or other.phase is not PENDING or other is one:
            continue
        if other.submitted.group == data.beneficiary_group and each.node in state.nodes:
            state.nominated[each.pod] = each.node
    return Change(data, node=state.nodes[data.node], pod=pod, shares=())


def check_reason(state: State, data: PodEvicted, pod: PodState, one: PodState) -> None:
    """Raise `Refused` if the pod may not be evicted for the event's reason and pending pod."""
    queues = queue_of(state, pod), queue_of(state, one)
    if data.reason == "reclaimed":
        # The scheduler decides whether the queue is entitled to it, as for priorities of gangs.
        if queues[0] == queues[1] or queues != (data.queue, data.beneficiary_queue):
            raise Refused(
                f"pod {data.pod} of queue {queues[0]} would go for {data.beneficiary} of queue "
                f"{queues[1]}, and not as {data.queue} for {data.beneficiary_queue}"
            )
    elif data.reason == "idle":
        # The pod may have worked since the scheduler decided.
        if not reclaims(state) or idle_pod(state, pod) is None:
            raise Refused(f"pod {data.pod} is not idle, or idle pods are not evicted")
        for each in needed_with(state, pod):
            if idle_pod(state, each) is None:
                raise Refused(f"pod {each.uid} of the gang of {data.pod} is not idle")
        if pod.submitted.priority > one.submitted.priority or queues[0] != queues[1]:
            raise Refused(
                f"idle pod {data.pod} of priority {pod.submitted.priority} and queue {queues[0]} "
                f"would go for {data.beneficiary} of priority {one.submitted.priority} and queue "
                f"{queues[1]}"
            )
    elif pod.submitted.priority >= one.submitted.priority:
        raise Refused(
            f"pod {data.pod} of priority {pod.submitted.priority} would go for {data.beneficiary} "
            f"of priority {one.submitted.priority}"
        )


def needed_with(state: State, pod: PodState) -> list[PodState]:
    """Return the pods of the pod's gang that stay now, if the gang cannot run without the pod."""
    group = state.groups.get(pod.submitted.group)
    if group is None or not group.together:
        return []
    said, stay = group.observed, [each for each in group.pods.values() if each.placement]
    stay = [each for each in stay if each.submitted.uid not in state.evictions]
    if said is None or said.parts or said.whole or len(stay) <= said.min_available:
        return stay
    return []


def leave(state: State, uid: str) -> None:
    """Forget the resize request, eviction and nomination of a pod that has ended."""
    state.resizes.pop(uid, None)
    state.evictions.pop(uid, None)
    state.nominated.pop(uid, None)


def give_up(state: State, uid: str) -> None:
    """End the nominations of the pod and its gang once no pod is being evicted for them."""
    if uid not in state.nominated or awaited(state, uid):
        return
    gang = state.pods[uid].submitted.group
    group = state.groups.get(gang) if gang else None
    for each in (uid,) if group is None else group.pods:
        state.nominated.pop(each, None)


def awaited(state: State, uid: str) -> list[PodEvicted]:
    """Return the evictions for this pod whose victims have not ended yet.

    If a node is reserved for the pod, the evictions for pending pods of its gang are included."""
    gang = state.pods[uid].submitted.group if uid in state.nominated else ""
    return [
        each
        for each in state.evictions.values()
        if each.beneficiary == uid or (gang and waiting_for(state, each) == gang)
    ]


def waiting_for(state: State, evicted: PodEvicted) -> str:
    """Return the gang that waits until the evicted pod has ended, or else the uid of a pod."""
    pod = state.pods.get(evicted.beneficiary)
    if pod is not None and pod.placement is not None:
        return evicted.beneficiary
    return evicted.beneficiary_group or evicted.beneficiary


@folds(NodesReserved)
def _nodes_reserved(context: Context, data: NodesReserved) -> Change:
    state = context.state
    for each in data.kept:
        pod = state.pods.get(each.pod)
        if pod is None or pod.phase is not PENDING:
            raise Refused(f"pod {each.pod}, for which {each.node} is reserved, is not pending")
        if each.node not in state.nodes:
            raise Refused(f"node {each.node} is not known")
    if data.kept and not state.configuration.queues.reserve_after:
        raise Refused("the configuration reserves no nodes")
    state.reserved = data if data.kept else None
    state.limits_checked[RESERVATION] = context.revision
    return Change(data)


def follow_reservation(state: State, reserved: NodesReserved, change: Change) -> None:
    """End the reservation if the event places, changes or ends its pod or gang."""
    data, uid = change.data, ""
    if isinstance(data, PodPlaced):
        uid = "" if data.held else data.pod
    elif isinstance(data, PodGone | PodChanged):
        uid = data.uid
    elif isinstance(data, PodEvicted):
        uid = data.beneficiary
    elif isinstance(data, PodGroupObserved | PodGroupGone):
        uid = reserved.pod if data.group == reserved.name else ""
    elif isinstance(data, ConfigurationChanged) and not data.configuration.queues.reserve_after:
        uid = reserved.pod
    if uid and any(each.pod == uid for each in reserved.kept):
        state.reserved = None


@folds(DeviceCordoned, DeviceUncordoned, DeviceCordonLifted)
def _device_cordoned(
    context: Context, data: DeviceCordoned | DeviceUncordoned | DeviceCordonLifted
) -> Change:
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
