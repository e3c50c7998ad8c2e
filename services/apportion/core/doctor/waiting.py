"""Which pods can never fit and which gangs starve, read from a state.

Invariant: a pod is called never-fitting only where `why` says so as well.
"""

from collections.abc import Iterator
from typing import Final

from apportion.core.doctor.facts import StarvingGang, WaitingFacts
from apportion.core.explain.fleet_context import Explainer
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.state import Phase, PodState, State

STARVING_S: Final = 600
"""A gang that waits longer than this, by the time of its newest pod, is reported."""


def waiting_facts(state: State, *, now: str) -> WaitingFacts:
    """What waits without a chance; `now` is the time as RFC 3339. Costs what waits."""
    waiting = [
        pod for pod in state.pods.values() if pod.phase is Phase.PENDING and not pod.submitted.gates
    ]
    explainer = Explainer(state)
    never = []
    for pod in waiting:
        if pod.refusal is not None:
            explained = explainer.explained(pod, pod.refusal, brief=True)
            if explained.never or explained.limit:
                never.append(pod)
    hopeless = {pod.submitted.group for pod in never}
    gangs = [
        gang
        for gang in _waiting_longest(state, waiting, micros_of(now) or 0)
        if gang.group not in hopeless
    ]
    return WaitingFacts(
        waiting=len(waiting),
        never=tuple(sorted(pod.full_name for pod in never)),
        starving=tuple(gangs),
    )


def _waiting_longest(
    state: State, waiting: list[PodState], now_micros: int
) -> Iterator[StarvingGang]:
    """The gangs none of whose newest pods is younger than `STARVING_S`, the oldest first."""
    gangs: dict[str, list[PodState]] = {}
    for pod in waiting:
        if pod.submitted.group:
            gangs.setdefault(pod.submitted.group, []).append(pod)
    found = []
    for name, pods in gangs.items():
        newest = max(pods, key=lambda pod: pod.submitted_revision)
        since = micros_of(newest.submitted_time)
        waits_s = (now_micros - since) / SECOND if since is not None else 0.0
        group = state.groups[name]
        placed = sum(pod.placement is not None for pod in group.pods.values())
        is_started = group.observed is not None and placed >= group.min_available
        if waits_s > STARVING_S and not is_started:
            found.append((waits_s, name, pods, newest))
    for waits_s, name, pods, newest in sorted(found, key=lambda each: (-each[0], each[1])):
        group = state.groups[name]
        priority = max(pod.submitted.priority for pod in pods)
        overtaken = sum(  # by pods of no higher priority that came after its newest
            each.placement is not None
            and not each.adopted
            and each.submitted_revision > newest.submitted_revision
            and each.submitted.priority <= priority
            and bool(each.submitted.shape.asks)
            for each in state.pods.values()
        )
        yield StarvingGang(
            group=name,
            pod=newest.full_name,
            waits_s=waits_s,
            needed=group.min_available if group.observed else 0,
            present=len(group.pods),
            overtaken=overtaken,
        )
