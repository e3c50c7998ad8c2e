"""Property: while schedulers start and stop, each pod is decided once, by the scheduler that owns
the pod."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.placement.engine import Decision
from apportion_schemas import (
    PlacementVoided,
    PodEvicted,
    PodPlaced,
    PodRefused,
    QuotaGone,
    QuotaObserved,
)
from tests.properties.core_histories import Decide, Effect, Step, exactly, picks, trying, weighed
from tests.properties.core_playing import ROUNDS_MAX, certain, told, tried_again
from tests.properties.crowded_histories import crowded_histories
from tests.support.members import Members

NAMES = ("s0", "s1", "s2")


class Be(NamedTuple):
    """A step of a history that starts and stops schedulers, so that exactly `names` run."""

    names: tuple[str, ...]


teams = st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(
    lambda names: Be(tuple(sorted(names)))
)
voids = st.builds(Effect, st.just(PlacementVoided), picks)
quotas = st.sampled_from(
    (
        QuotaObserved(namespace="default", quota="q", hard={"requests.nvidia.com/gpu": 100}),
        QuotaGone(namespace="default", quota="q"),
    )
)
"""A quota gives all pods of its namespace one scheduler. This quota is too large to block a pod."""


@st.composite
def histories(draw: st.DrawFn) -> list[Step | Be]:
    """Draw a crowded history in which schedulers start and stop, and placements are withdrawn."""
    steps: list[Step | Be] = list(draw(crowded_histories()))
    others: st.SearchStrategy[Step | Be] = weighed((1, teams), (1, voids), (1, quotas))
    for step in draw(exactly(others, 16)):
        steps.insert(draw(st.integers(0, len(steps))), step)
    return steps


def check(members: Members, name: str, decision: Decision) -> None:
    """Check that the scheduler `name` owns all pods of its decision, and that it decides no pod
    twice."""
    engine, pods = members.engines[name], members.state.pods
    deciding = [event for event in decision.events if isinstance(event, PodPlaced | PodRefused)]
    about = [event.pod for event in deciding]
    about_evicted = [each.beneficiary for each in decision.events if isinstance(each, PodEvicted)]
    assert len(set(about)) == len(about), "one event for each pod"
    for uid in (*about, *about_evicted):
        assert engine.owns(pods[uid]), f"{uid} is another's to decide"


def play(members: Members, steps: Sequence[Step | Be]) -> None:
    """Play the history, and let the schedulers decide in turn.

    If a scheduler's decision is lost, that scheduler is informed one step later."""
    lost: tuple[str, Decision] | None = None
    for number, step in enumerate(steps):
        late, lost = lost, None
        if isinstance(step, Be):
            members.be(*step.names)
        elif isinstance(step, Decide) and step.rival:
            members.play(*members.consider().events)
        elif isinstance(step, Decide):
            name = sorted(members.engines)[number % len(members.engines)]
            decision = members.decided_by(name)
            check(members, name, decision)
            if step.lost:
                lost = name, decision
            else:
                members.play(*decision.events)
        else:
            data = told(members, step)
            if data is not None:
                members.take(data)
        if late is not None and late[0] in members.engines:
            members.engines[late[0]].retry(late[1])
    if lost is not None and lost[0] in members.engines:
        members.engines[lost[0]].retry(lost[1])


def fall_silent(members: Members) -> None:
    """Let all schedulers decide in turn until no decision has any events. Fail if that never
    happens."""
    for _ in range(ROUNDS_MAX):
        said = False
        for name in sorted(members.engines):
            decision = members.decided_by(name)
            check(members, name, decision)
            members.play(*decision.events)
            said = said or bool(decision.events)
        if not said:
            return
    raise AssertionError("the engines never fall silent")


@trying(80)
@given(histories())
def test_each_pod_is_decided_by_its_owner_and_nobody_is_forgotten(steps: list[Step | Be]) -> None:
    """Each pod is decided by the scheduler that owns it, and no pod is left out.

    So at the end of a history, a new scheduler has nothing to place or to refuse."""
    members = Members(("s0",))
    play(members, steps)
    fall_silent(members)
    fresh = members.consider()
    if tried_again(fresh, Decision()):
        return
    assert certain(fresh) == []
    unheard = {
        event.pod for event in fresh.events
        if isinstance(event, PodRefused) and members.pod(event.pod).refusal is None
    }  # fmt: skip
    assert not unheard
