"""Properties of what-if plans and replays after any history.

If the planned pods are submitted, they are placed as the plan says. A replay places pods as the
ledger does."""

from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from apportion.core.answers.plans import PlannedPod
from apportion.core.ledger.digest import digest
from apportion.core.ledger.state import PodState
from apportion.core.workloads.kinds.drafts import PodDraft, submitted
from apportion.lab.changes import Changes
from apportion.lab.planning import Plan, comes_again, plan
from apportion.lab.replaying import Otherwise, Replay
from apportion.lab.team_meter import compared
from apportion_schemas import (
    NodeCordoned,
    NodeReported,
    NodeUncordoned,
    PodEvicted,
    PodGone,
    PodSubmitted,
    PolicyChanged,
)
from tests.properties.core_fleets import reports
from tests.properties.core_histories import Step, priorities, submissions, trying, usual_shapes
from tests.properties.core_playing import follow
from tests.properties.crowded_histories import crowded_histories
from tests.support.ledger_of import Ledger
from tests.support.virtual_ledger import BEGIN_S, VirtualLedger

DECISIONS_MAX = 200
POLICIES = ("", "binpack", "spread", "bestfit")


def drafts(pods: list[PodSubmitted]) -> tuple[PodDraft, ...]:
    """Return these pods as drafts with unique names, as if they came from manifests."""
    fields = set(PodDraft.__struct_fields__) & set(PodSubmitted.__struct_fields__)
    return tuple(
        PodDraft(**{name: getattr(pod, name) for name in fields} | {"name": f"new-{number}"})
        for number, pod in enumerate(pods)
    )


class Happened(NamedTuple):
    """What really happened in the ledger after a plan was made."""

    before: frozenset[str]  # the uids of the pods that were placed at that time
    gone: list[str]  # descriptions of those that were evicted
    again: dict[str, str]  # the uid of an evicted pod: the uid of its replacement

    def end(self, ledger: Ledger, uid: str) -> PodState | None:
        """Return the final state of the pod with this uid, or of the last pod that replaced it.
        Return None if that pod does not exist."""
        while uid in self.again:
            uid = self.again[uid]
        return ledger.state.pods.get(uid)


def happen(ledger: Ledger, before: frozenset[str]) -> Happened:
    """Let the engine decide until it has no more events.

    Each evicted pod ends. If `comes_again` is true for it, it is submitted again with a new uid."""
    happened = Happened(before, [], {})
    gangs = {name: group.observed for name, group in ledger.state.groups.items()}
    for _ in range(DECISIONS_MAX):
        events = ledger.decide()
        if not events:
            return happened
        evicted = [event for event in events if isinstance(event, PodEvicted)]
        pods = [ledger.state.pods[event.pod].submitted for event in evicted]
        for event in evicted:
            if event.pod in before:
                happened.gone.append(
                    f"{event.namespace}/{event.name} of {event.node} for {event.beneficiary_name}"
                )
            ledger.play(PodGone(uid=event.pod))
        for pod in pods:
            if comes_again(ledger.state, pod):
                declared = gangs.get(pod.group)
                if declared is not None and pod.group not in ledger.state.groups:
                    ledger.play(declared)
                uid = happened.again[pod.uid] = f"evicted-{len(happened.again)}"
                ledger.submit(structs.replace(pod, uid=uid, chooser=""))
    raise AssertionError("the engine never falls silent")


def agree(planned: PlannedPod, pod: PodState | None) -> None:
    """Check that the pod got its planned node and shares, or was not placed, as planned."""
    if pod is None or pod.placement is None:
        assert planned.outcome in {"not-now", "never"}, planned.sentence
        return
    assert planned.outcome == "fits", planned.sentence
    assert planned.placed is not None
    assert planned.node == pod.placement.node
    assert tuple(held.share for held in planned.placed.shares) == pod.placement.shares


@trying(60)
@given(
    crowded_histories(), st.lists(submissions(), min_size=1, max_size=6), st.sampled_from(POLICIES)
)
def test_what_was_planned_then_happens(
    steps: list[Step], wanted: list[PodSubmitted], policy: str
) -> None:
    """Pods of any shape, gang, priority and queue are placed where the plan says.

    The plan also predicts which pods are evicted."""
    ledger = Ledger()
    follow(ledger, steps)
    pods = drafts(wanted)
    before = digest(ledger.state)
    answer = plan(ledger.state, Plan(pods=pods, changes=Changes(policy=policy)))
    assert digest(ledger.state) == before, "a plan leaves the state as it was"
    happened = happen_with(ledger, pods, policy)
    for number, planned in enumerate(answer.pods):
        agree(planned, happened.end(ledger, f"planned-{number}"))
    evicted = [
        f"{each.namespace}/{each.pod} of {each.node} for {each.beneficiary}"
        for each in answer.evicted
    ]
    assert evicted == happened.gone


def happen_with(ledger: Ledger, pods: tuple[PodDraft, ...], policy: str) -> Happened:
    """Submit these pods under the scheduling policy `policy`, let the engine decide, and return
    what happened."""
    before = frozenset(uid for uid, pod in ledger.state.pods.items() if pod.placement is not None)
    for uid in list(ledger.state.evictions):
        ledger.gone(uid)
    if policy:
        ledger.play(PolicyChanged(by="test", node_policy=policy, device_policy=policy))  # type: ignore[arg-type]
    for number, pod in enumerate(pods):
        ledger.submit(submitted(pod, f"planned-{number}"))
    return happen(ledger, before)


arrivals = st.lists(
    st.tuples(
        st.integers(1, 500), st.sampled_from((None, 1, 60, 700, 5000)), usual_shapes,
        priorities, st.sampled_from(("default", "web")),
    ),
    max_size=25,
)  # fmt: skip
"""Seconds since the previous pod, run time, shape, priority, namespace."""


def lived(
    fleet: list[NodeReported], came: list[tuple[Any, ...]], *, watched: bool
) -> VirtualLedger:
    """Play a cluster's life in virtual time: pods arrive and end, and a node is cordoned at times.

    For each pod, `came` has the seconds since the previous pod, the pod's running time in seconds,
    and its shape, priority and namespace."""
    ledger = VirtualLedger(watched=watched)
    ledger.write(*fleet)
    at_s = 0.0
    for number, (after_s, runs_s, shape, priority, namespace) in enumerate(came):
        at_s += after_s
        ledger.until(at_s)
        name = f"pod-{number}"
        pod = PodSubmitted(
            uid=name, namespace=namespace, name=name, shape=shape, dialect="hami",
            priority=priority,
        )  # fmt: skip
        ledger.submit(pod, runs_s=runs_s)
        ledger.settle()
        ledger.until(at_s + 0.5)  # pods that arrive together are decided together
        if number % 7 == 3:
            ledger.write(NodeCordoned(node=fleet[0].node, by="me", reason="fan"))
        if number % 7 == 6:
            ledger.write(NodeUncordoned(node=fleet[0].node, by="me"))
            ledger.settle()
    ledger.until(at_s + 300)
    return ledger


@trying(40)
@given(
    st.lists(reports(), min_size=1, max_size=3, unique_by=lambda each: each.node),
    arrivals,
    st.integers(0, 100),
    st.booleans(),
)
def test_what_happened_is_replayed(
    fleet: list[NodeReported], came: list[tuple[Any, ...]], begun: int, watched: bool
) -> None:
    """A replay from any revision places every pod on the same node and at the same time as the
    ledger shows, and each queue and namespace has the recorded figures.

    This includes pods that were evicted and created again."""
    ids = [device.id for node in fleet for device in node.devices]
    assume(len(set(ids)) == len(ids))
    ledger = lived(fleet, came, watched=watched)
    after = len(fleet) + begun * (ledger.state.revision - len(fleet)) // 100
    at_s = ledger.time_of(after) - BEGIN_S
    recorded = ledger.recorded(after=after, begin_s=at_s, end_s=ledger.now_s - BEGIN_S)
    one = Replay(recorded, Otherwise(), kept=True, by_team=True)
    replayed = one.run()
    before = {pod for pod, (_, _, _, revision) in ledger.placed.items() if revision <= after}
    assert {each.pod: (each.at_s, each.node, each.devices) for each in one.placed} == {
        pod: place[:3] for pod, place in ledger.placed.items() if pod not in before
    }
    assert replayed == recorded.happened
    assert not one.passed_over
    assert one.teams is not None
    for team in compared(recorded.teams, one.teams.figures()):
        happened = pytest.approx(structs.asdict(team.happened), abs=1e-5)
        assert structs.asdict(team.replayed) == happened, team.name
