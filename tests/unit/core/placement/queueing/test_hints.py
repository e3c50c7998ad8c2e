"""Tests of queueing hints: for each refusal code, the events after which pods are retried."""

import pytest

from apportion.core.ledger.handlers.change import Change
from apportion.core.placement.feasibility.descriptors import GANG, REORDERED, SOME
from apportion.core.placement.queueing.hints import BY_EVENT, BY_REASON, asked
from apportion_schemas import (
    CATALOGUE,
    AllocationFailed,
    BindFailed,
    BudgetGone,
    BudgetObserved,
    DeviceCordoned,
    DifferenceFound,
    FormatEnabled,
    LabelExpression,
    LedgerRebuilt,
    LimitsChecked,
    NodeCordoned,
    NodeGone,
    NodeSilent,
    PodAdopted,
    PodBound,
    PodConstraints,
    PodEvicted,
    PodGone,
    PodGroupGone,
    PodPlaced,
    PodRejected,
    PodSelector,
    PodSubmitted,
    PolicyChanged,
    RefusalCode,
    ReportRefused,
    ResizeAsked,
    ResizeRefused,
    RevisionSetAside,
    ShareBreached,
    SharesAllocated,
    SpreadConstraint,
    UsageRecorded,
)
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, placed, pod, shape, share

HELPS_NOBODY = frozenset((
    AllocationFailed,  # shares of a failed placement stay in use until it is voided
    BudgetObserved,  # budgets choose victims, and forbid nothing
    PodEvicted,  # the pod keeps its place until it has ended
    PodGroupGone,  # its pods stay a gang
    BindFailed, BudgetGone, DeviceCordoned, DifferenceFound, LedgerRebuilt, FormatEnabled,
    RevisionSetAside, NodeCordoned, NodeSilent, PodBound, ResizeAsked, ResizeRefused, PodRejected,
    ReportRefused, LimitsChecked, ShareBreached, SharesAllocated, UsageRecorded,
))  # fmt: skip
"""Events that end no refusal. Every new event belongs here or in a row of the hints."""


def test_every_event_helps_somebody_or_says_that_it_does_not() -> None:
    """Every event type either is in the table of hints or is listed here as one that helps no
    pending pod."""
    payloads = {row.payload for row in CATALOGUE}
    assert BY_EVENT.keys() | HELPS_NOBODY == payloads
    assert not BY_EVENT.keys() & HELPS_NOBODY


def test_every_reason_names_what_can_end_it() -> None:
    """Every refusal code has an event that can end the refusal, so no pod is pending forever."""
    assert set(BY_REASON) == set(RefusalCode)
    assert all(BY_REASON.values())


@pytest.mark.parametrize(
    ("change", "moved", "freed", "whom"),
    [
        (Change(PodGone(uid="p")), False, False, SOME),
        (Change(PodGone(uid="p"), refused="not live"), False, False, 0),
        (Change(placed("p")), False, False, GANG),
        (Change(placed("p")), True, False, GANG | SOME),
        (Change(placed("p"), refused="not pending"), False, False, SOME),
        (Change(PolicyChanged(by="ann")), False, False, REORDERED),
        (Change(PodBound(pod="p", node="n1", attempt=1)), True, True, 0),
        (Change(gang()), False, False, GANG),
        (Change(gang()), False, True, GANG | SOME),
        (Change(None, refused="no event"), False, False, 0),
    ],
)
def test_whom_an_event_lets_be_asked(
    change: Change, *, moved: bool, freed: bool, whom: int
) -> None:
    """An event's type and effect decide which pending pods the scheduler retries."""
    assert asked(change, moved, freed) == whom


def test_a_gang_lacks_one_less_with_a_member_that_is_adopted() -> None:
    """An adopted pod counts as a member of its gang: in a gang of two, the other pod is then
    placed."""
    ledger = Ledger(rack("n1", 2), gang(), member("a", ask(1))).settle()
    assert ledger.reasons("a") == {RefusalCode.GANG_INCOMPLETE: 0}
    other = member("b", ask(1))
    ledger.play(PodAdopted(pod="b", node="n1", submitted=other, shares=(share("n1-g0", 1),)))
    assert ledger.settle().where("a") == "n1"


def test_a_domain_that_leaves_the_cluster_is_not_the_emptiest_any_more() -> None:
    """If an empty node is removed, spread constraints ignore it, and the scheduler retries the
    pods."""
    apart = SpreadConstraint(
        pods=PodSelector(expressions=(LabelExpression(key="app", operator="Exists"),)),
        topology_key="kubernetes.io/hostname",
        max_skew=1,
    )
    ledger = Ledger(rack("a", 2), rack("b", 0))
    for uid in "xy":
        wanted = shape(ask(1), pods=PodConstraints(spread=(apart,)))
        ledger.submit(pod(uid, shape=wanted, labels={"app": "x"})).settle()
    assert (ledger.where("x"), ledger.where("y")) == ("a", "")
    assert ledger.reasons("y")[RefusalCode.TOPOLOGY_SPREAD_EXCEEDED] == 1
    assert ledger.play(NodeGone(node="b")).settle().where("y") == "a"


def test_room_that_a_refused_placement_gives_back_is_offered_again() -> None:
    """If the fold refuses a placement, the scheduler retries pending pods that could use the room
    which the placement had reserved."""
    ledger = Ledger(rack("n1", 1), rack("n2", 0))
    ledger.submit(pod("first", cards(), priority=1), pod("second", cards()))
    won, reported = ledger.engine.decide().events
    assert isinstance(won, PodPlaced)
    ledger.play(placed("first", "n2"))
    ledger.contradict(won)
    assert ledger.play(reported).settle().where("second") == "n1"


def test_a_submission_that_completes_no_gang_wakes_nobody() -> None:
    """A newly submitted pod makes the scheduler retry other pods only if it completes their
    gang."""
    data = PodSubmitted(uid="p", namespace="n", name="p", dialect="hami", shape=shape(ask(1)))
    assert asked(Change(data), False, False) == GANG
    ledger = Ledger(rack("n1", 1), gang(min_available=3), member("a", ask(1))).settle()
    (shape_queue,) = ledger.engine._queue.unschedulable()
    ledger.submit(data)
    assert shape_queue.unschedulable
    ledger.submit(member("b", ask(1)))
    assert not shape_queue.unschedulable


def test_a_gang_is_retried_only_when_all_nodes_together_have_room() -> None:
    """A gang of identical pods is not tried again for a freed GPU if it needs more of them."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2), gang(min_available=3))
    ledger.submit(*(pod(f"old-{number}", cards()) for number in range(4))).settle()
    ledger.submit(*(member(name, cards()) for name in "abc")).settle()
    (shape_queue,) = ledger.engine._queue.unschedulable()
    refused = shape_queue.reasons
    ledger.play(PodGone(uid="old-0")).settle()
    ledger.play(PodGone(uid="old-1")).settle()
    assert shape_queue.reasons is refused
    ledger.play(PodGone(uid="old-2")).settle()
    assert all(map(ledger.where, "abc"))
