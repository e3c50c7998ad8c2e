"""Why nobody goes for a pod of high priority: the rules that the engine really keeps."""

import pytest

from apportion.core.explain.why import why
from apportion_schemas import (
    DeviceCordoned,
    DeviceHealthChanged,
    NodeCordoned,
    PodEvicted,
    PodSubmitted,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, gang, member, placed, pod


def sentence(first: PodSubmitted, urgent: PodSubmitted) -> str:
    """What `why` says of the urgent pod, which found the first one in its place."""
    ledger = Ledger(rack("n1", 1)).submit(first).settle().submit(urgent).settle()
    assert not ledger.state.evictions
    return why(ledger.state, ledger.pod(urgent.uid)).sentence


def test_pods_of_other_queues_stay(golden: Golden) -> None:
    """It names the queue whose pods would go, and nobody else's."""
    said = sentence(pod("a", ask(70_000), queue="secret"), pod("b", ask(60_000), priority=9))
    assert "secret" not in said
    golden({"of another queue": said})


def test_a_pod_that_preempts_nobody(golden: Golden) -> None:
    """Its preemptionPolicy is Never."""
    said = sentence(pod("a", ask(70_000)), pod("b", ask(60_000), priority=9, preempts=False))
    golden({"preemptionPolicy: Never": said})


def test_pods_that_may_not_be_evicted_stay(golden: Golden) -> None:
    """They say so themselves."""
    said = sentence(pod("a", ask(70_000), evictable=False), pod("b", ask(60_000), priority=9))
    golden({"volcano.sh/preemptable: false": said})


@pytest.mark.parametrize(
    "out",
    [
        NodeCordoned(node="n1", by="ann", reason="fan"),
        DeviceCordoned(device="n1-g0", by="ann", reason="fan"),
        DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="fan"),
        observed("n1", ready=False),
    ],
)
def test_where_the_rules_are_not_the_reason_nothing_is_said_of_them(out: Payload) -> None:
    """The node would not take it if everybody left."""
    ledger = Ledger(rack("n1", 1)).submit(pod("a", ask(70_000), queue="other")).settle()
    ledger.play(out).submit(pod("b", ask(60_000), priority=9)).settle()
    assert "lower priority" not in why(ledger.state, ledger.pod("b")).sentence


def test_pods_that_hold_too_little_are_not_the_reason() -> None:
    """What is lacking is held by one of higher priority."""
    ledger = Ledger(rack("n1", 1)).submit(pod("much", ask(70_000), priority=20)).settle()
    ledger.submit(pod("little", ask(100), queue="other")).settle()
    ledger.submit(pod("b", ask(60_000), priority=9)).settle()
    assert "lower priority" not in why(ledger.state, ledger.pod("b")).sentence
    assert ledger.where("little") == "n1"


@pytest.mark.parametrize("priority", [-1, 0])
def test_of_pods_of_no_lower_priority_nothing_is_said(priority: int) -> None:
    """Nobody would expect them to go."""
    said = sentence(pod("a", ask(70_000), queue="batch"), pod("b", ask(60_000), priority=priority))
    assert "lower priority" not in said


def test_of_pods_that_go_nothing_is_said() -> None:
    """The one of its own queue makes room."""
    ledger = Ledger(rack("n1", 1)).submit(pod("a", ask(70_000))).settle()
    ledger.submit(pod("b", ask(60_000), priority=9)).settle()
    assert [type(each) for each in ledger.state.evictions.values()] == [PodEvicted]
    assert "lower priority" not in why(ledger.state, ledger.pod("b")).sentence


def test_who_holds_nothing_of_what_is_lacking_is_not_named() -> None:
    """The card is held by a pod that could go, were its gang not as important; a bystander of
    another queue is not the reason."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), gang("team/job", 2))
    ledger.submit(member("a0", ask(70_000)), member("a1", ask(70_000), priority=20)).settle()
    ledger.play(pod("cpu", queue="other"), placed("cpu", ledger.where("a0")))
    ledger.submit(pod("b", ask(60_000), priority=9)).settle()
    assert not ledger.state.evictions
    assert "lower priority" not in why(ledger.state, ledger.pod("b")).sentence
