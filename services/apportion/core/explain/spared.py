"""Why nobody goes for a pod although pods of lower priority hold what it lacks.

Whoever gives a pod a high priority expects that others make room. The rules that spare them are
those of `placement.preemption`. Invariants: it is said only of a node where those pods hold what is
lacking, and a rule spares some of them, so the rule is the reason; and of those it tells how many
they are and no more, for they may be anybody's, and of a queue, whose pods are counted to nobody
else, not even that.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from apportion.core.explain.beyond_limits import holders, never_within
from apportion.core.explain.explained import Explained
from apportion.core.explain.room import NODES_WEIGHED, Room
from apportion.core.explain.words import many
from apportion.core.ledger.belonging import queue_of
from apportion.core.ledger.state import NodeState, PodState, State
from apportion_schemas import PodRefused

LIMITED = "nobody is evicted for what a limit keeps out"


def spared_words(
    state: State, pod: PodState, room: Room, *, nodes: Iterable[NodeState] | None = None
) -> str:
    """Which pods the rules spare, in a sentence; empty where they spare none.

    With `nodes`, it looks at these alone, and at no limit: for a caller that has little time.
    """
    if pod.uid in state.nominated or pod.refusal is None:
        return ""
    if Explained(pod.refusal, never=False).of_limits:
        return _within_limit(state, pod, pod.refusal, room) if nodes is None else ""
    if nodes is None:
        nodes = room.could(pod.submitted.shape)
    for node, lower in islice(_with_lower(state, pod, nodes), NODES_WEIGHED):
        rules = [rule for each in lower if (rule := _rule(state, pod, each))]
        others = [each for each in lower if not _rule(state, pod, each)]
        if not rules or room.lacks_only(pod.submitted.shape, node, others):
            continue  # they are not what keeps it out: those that may go would make room enough
        if room.lacks_only(pod.submitted.shape, node, lower):
            holds, stays = ("holds", "stays") if len(rules) == 1 else ("hold", "stay")
            return (
                f"On {node.name} {many(len(rules), 'pod')} of lower priority {holds} what it "
                f"lacks, and {stays}: {'; '.join(dict.fromkeys(rules))}"
            )
    return ""


def _within_limit(state: State, pod: PodState, refused: PodRefused, room: Room) -> str:
    """That nobody goes for what a limit keeps out, where that is others' to free."""
    held = holders(room, state, pod, refused)
    lower = sum(each.submitted.priority < pod.submitted.priority for each in held)
    if not lower or never_within(room, state, pod, refused):
        return ""
    if refused.queue:  # of other namespaces as well, whose pods are counted to nobody
        return f"Pods of lower priority hold what the queue allows, and stay: {LIMITED}"
    holds, stays = ("holds", "stays") if lower == 1 else ("hold", "stay")
    return (
        f"{many(lower, 'pod')} of lower priority {holds} what the quota allows, and {stays}: "
        f"{LIMITED}"
    )


def _with_lower(
    state: State, pod: PodState, nodes: Iterable[NodeState]
) -> Iterator[tuple[NodeState, list[PodState]]]:
    """Those of the nodes that have pods of lower priority, with these."""
    priority = pod.submitted.priority
    for node in nodes:
        lower = [
            each for each in node.pods.values()
            if each.submitted.priority < priority and each.uid not in state.evictions
        ]  # fmt: skip
        if lower:
            yield node, lower


def _rule(state: State, pod: PodState, other: PodState) -> str:
    """What spares the other; empty where it could be evicted for the pod."""
    if not pod.submitted.preempts:
        return "preemptionPolicy of the pod that waits is Never"
    if not other.submitted.evictable:
        return "they say that they may not be evicted (volcano.sh/preemptable: false)"
    queue = queue_of(state, pod)
    if queue_of(state, other) != queue:
        return f"only pods of its own queue, {queue}, go for it, and they are of others"
    return ""
