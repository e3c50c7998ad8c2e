"""Tests of the base class that counts usage, for queue limits and for namespace quotas."""

import pytest

from apportion.core.ledger.state import State
from apportion.core.placement.limits.holdings import Holdings
from apportion.core.placement.limits.quotas import devices_at_least, of_devices
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod


def test_whoever_does_not_say_whose_a_pod_is_cannot_count_it() -> None:
    """The base class raises NotImplementedError, because only its subclasses know whether a pod
    counts for a queue or for a namespace."""
    ledger = Ledger(rack("n1", 1)).submit(pod("p", ask(1000))).settle()
    placed = ledger.state.pods["p"]
    holdings = Holdings(State(), of_devices, devices_at_least)
    with pytest.raises(NotImplementedError):
        holdings.account_of(placed)
    with pytest.raises(NotImplementedError):
        holdings.note(placed)
