"""Tests of how `why` explains that no pod is evicted for a pod of higher priority."""

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
    """Place the first pod, then submit the urgent one, which must evict no pod. Return the sentence
    of `why` for the urgent pod."""
    ledger = Ledger(rack("n1", 1)).submit(first).settle().submit(urgent).settle()
    assert not ledger.state.evictions
    return why(ledger.state, ledger.pod(urgent.uid)).sentence


def test_pods_of_other_queues_stay(golden: Golden) -> None:
    """Pods of other queues are not evicted, and the answer names only the pending pod's own
    queue."""
    said = sentence(pod("a", ask(70_000), queue="secret"), pod("b", ask(60_000), priority=9))
    assert "secret" not in said
    golden({"of another queue": said})


def test_a_pod_that_preempts_nobody(golden: Golden) -> None:
    """A pod with `preemptionPolicy: Never` evicts no pods, and the answer says so."""
    said = sentence(pod("a", ask(70_000)), pod("b", ask(60_000), priority=9, preempts=False))
    golden({"preemptionPolicy: Never": said})


def test_pods_that_may_not_be_evicted_stay(golden: Golden) -> None:
    """Pods marked as not evictable are not evicted."""
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
    """If the node or device is cordoned, failed or not ready, the answer does not mention
    preemption."""
    ledger = Ledger(rack("n1", 1)).submit(pod("a", ask(70_000), queue="other")).settle()
    ledger.play(out).submit(pod("b", ask(60_000), priority=9)).settle()
    assert "lower priority" not in why(ledger.state, ledger.pod("b")).sentence


def test_pods_that_hold_too_little_are_not_the_reason() -> None:
    """The answer mentions pods of lower priority only if evicting them would free enough."""
    ledger = Ledger(rack("n1", 1)).submit(pod("much", ask(70_000), priority=20)).settle()
    ledger.submit(pod("little", ask(100), queue="other")).settle()
    ledger.submit(pod("b", ask(60_000), priority=9)).settle()
    assert "lower priority" not in why(ledger.state, ledger.pod("b")).sentence
    assert ledger.where("little") == "n1"


@pytest.mark.parametrize("priority", [-1, 0])
def test_of_pods_of_no_lower_priority_nothing_is_said(priority: int) -> None:
    """The answer does not mention pods of the same or a higher priority."""
    said = sentence(pod("a", ask(70_000), queue="batch"), pod("b", ask(60_000), priority=priority))
    assert "lower priority" not in said


def test_of_pods_that_go_nothing_is_said() -> None:
    """If a pod is being evicted for the pending pod, the answer does not explain why other pods
    stay."""
    ledger = Ledger(rack("n1", 1)).submit(pod("a", ask(70_000))).settle()
    ledger.submit(pod("b", ask(60_000), priority=9)).settle()
    assert [type(each) for each in ledger.state.evictions.values()] == [PodEvicted]
    assert "lower priority" not in why(ledger.state, ledger.pod("b")).sentence


def test_who_holds_nothing_of_what_is_lacking_is_not_named() -> None:
    """The answer does not mention a pod of lower priority that uses no device, because evicting
    that pod would not help."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), gang("team/job", 2))
    ledger.submit(member("a0", ask(70_000)), member("a1", ask(70_000), priority=20)).settle()
    ledger.play(pod("cpu", queue="other"), placed("cpu", ledger.where("a0")))
    ledger.submit(pod("b", ask(60_000), priority=9)).settle()
    assert not ledger.state.evictions
    assert "lower priority" not in why(ledger.state, ledger.pod("b")).sentence
