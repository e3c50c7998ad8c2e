"""Why nobody goes for a pod of high priority: the rules that the engine really keeps."""

import pytest

from apportion.core.explain.why import why
from apportion_schemas import PodEvicted, PodSubmitted
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod


def sentence(first: PodSubmitted, urgent: PodSubmitted) -> str:
    """What `why` says of the urgent pod, which found the first one in its place."""
    ledger = Ledger(rack("n1", 1)).submit(first).settle().submit(urgent).settle()
    assert not ledger.state.evictions
    return why(ledger.state, ledger.pod(urgent.uid)).sentence


def test_pods_of_other_queues_stay() -> None:
    """It names them, and the queue whose pods would go."""
    said = sentence(pod("a", ask(70_000), queue="batch"), pod("b", ask(60_000), priority=9))
    assert said.endswith(
        ". 1 pod of lower priority holds places there, and stays: a pod makes only those of its "
        "own queue go, which is default, and it is of batch"
    )


def test_a_pod_that_preempts_nobody() -> None:
    """Its preemptionPolicy is Never."""
    said = sentence(pod("a", ask(70_000)), pod("b", ask(60_000), priority=9, preempts=False))
    assert said.endswith(
        ". 1 pod of lower priority holds places there, and stays: its preemptionPolicy is Never"
    )


def test_pods_that_may_not_be_evicted_stay() -> None:
    """They say so themselves."""
    said = sentence(pod("a", ask(70_000), evictable=False), pod("b", ask(60_000), priority=9))
    assert said.endswith(
        ". 1 pod of lower priority there may not be evicted (volcano.sh/preemptable: false)"
    )


@pytest.mark.parametrize("priority", [-1, 0])
def test_of_pods_of_no_lower_priority_nothing_is_said(priority: int) -> None:
    """Nobody would expect them to go."""
    said = sentence(pod("a", ask(70_000), queue="batch"), pod("b", ask(60_000), priority=priority))
    assert "priority" not in said


def test_of_pods_that_go_nothing_is_said() -> None:
    """The one of its own queue makes room."""
    ledger = Ledger(rack("n1", 1)).submit(pod("a", ask(70_000))).settle()
    ledger.submit(pod("b", ask(60_000), priority=9)).settle()
    assert [type(each) for each in ledger.state.evictions.values()] == [PodEvicted]
    assert "stays" not in why(ledger.state, ledger.pod("b")).sentence
