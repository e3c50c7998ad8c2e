"""Why nobody goes for a pod although pods of lower priority hold what it wants.

Whoever gives a pod a high priority expects that others make room. The rules that spare them are
those of `placement.preemption`. Invariant: it is said only of a pod for which nobody goes, and only
where the rules are the reason: pods that could go and would not make room enough are not counted.
"""

from collections import Counter

from apportion.core.explain.lines import listed
from apportion.core.explain.natural import natural
from apportion.core.explain.room import Room
from apportion.core.explain.words import many
from apportion.core.ledger.belonging import queue_of
from apportion.core.ledger.state import PodState, State

QUEUES_NAMED = 3


def spared_words(state: State, pod: PodState, room: Room) -> str:
    """Whom the rules spare, as sentences behind another one; empty where they spare nobody."""
    about = pod.submitted
    if pod.uid in state.nominated:
        return ""
    queue = queue_of(state, pod)
    others, kept = Counter[str](), 0
    for node in state.nodes.values():
        lower = [
            each for each in node.pods.values()
            if each.submitted.priority < about.priority and each.uid not in state.evictions
        ]  # fmt: skip
        if not lower or not room.holds(about.shape, node):
            continue
        for each in lower:
            if not each.submitted.evictable:
                kept += 1
            elif (theirs := queue_of(state, each)) != queue:
                others[theirs] += 1
            elif not about.preempts:
                others[queue] += 1
    if not about.preempts and (others or kept):
        return f"{_stay(others.total() + kept)}: its preemptionPolicy is Never"
    said = ""
    if others:
        they = "it is" if others.total() == 1 else "they are"
        said = (
            f"{_stay(others.total())}: a pod makes only those of its own queue go, which is "
            f"{queue}, and {they} of {listed(sorted(others, key=natural), QUEUES_NAMED)}"
        )
    if kept:
        said += (
            f". {many(kept, 'pod')} of lower priority there may not be evicted "
            "(volcano.sh/preemptable: false)"
        )
    return said


def _stay(pods: int) -> str:
    hold, stay = ("holds", "stays") if pods == 1 else ("hold", "stay")
    return f". {many(pods, 'pod')} of lower priority {hold} places there, and {stay}"
