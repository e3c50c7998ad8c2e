"""Pods that give their places up: what is noted of an eviction, and when it is over.

Invariant: a pod is evicted only for a pending one of higher priority, whatever its scheduler
thought; and of those that are noted each holds its place still.
"""

from apportion.core.ledger.handlers.change import Change, Context, Refused
from apportion.core.ledger.state import PENDING, PodState, State
from apportion_schemas import PodEvicted


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
