"""Tests of the doctor's checks for pods that can never fit and for starving gangs."""

import pytest

from apportion.core.doctor.cluster import STARVING_S, waiting_facts
from apportion.core.ledger.moments import SECOND, micros_of, text_of
from apportion_schemas import PodSubmitted
from tests.support.fleet import rack
from tests.support.ledger_of import TIME, Ledger
from tests.support.pods import ask, cards, gang, pod

LATER = text_of((micros_of(TIME) or 0) + (STARVING_S + 60) * SECOND)
GANG = "team/job"


def member(uid: str) -> PodSubmitted:
    return pod(uid, cards(), group=GANG)


def test_a_pod_that_no_node_could_hold_is_named() -> None:
    """The doctor names a pod that no node could ever fit, but not a pod that waits for other pods
    to end."""
    ledger = Ledger(rack("n1", 1))
    ledger.submit(pod("first", cards())).settle()
    ledger.submit(pod("second", cards()), pod("huge", ask(900_000))).settle()
    found = waiting_facts(ledger.state, now=LATER)
    assert (found.waiting, found.never) == (2, (ledger.state.pods["huge"].full_name,))
    assert found.starving == ()


@pytest.mark.parametrize(
    ("declared", "members", "needed", "overtaken"),
    [(3, 3, 3, 2), (3, 2, 3, 2), (0, 2, 0, 2)],
    ids=["no room", "pods are missing", "no PodGroup"],
)
def test_a_gang_that_waits_for_long_is_named(
    declared: int, members: int, needed: int, overtaken: int
) -> None:
    """The doctor names a gang that waits too long.

    It also counts the pods that were submitted after the gang but placed before it."""
    ledger = Ledger(rack("n1", 3), *([gang(GANG, declared)] if declared else []))
    ledger.submit(pod("before", cards())).settle()
    ledger.submit(*(member(f"m{number}") for number in range(members))).settle()
    ledger.submit(pod("a", ask(1)), pod("b", ask(1))).settle()
    assert waiting_facts(ledger.state, now=TIME).starving == ()
    (found,) = waiting_facts(ledger.state, now=LATER).starving
    assert (found.group, found.needed, found.present) == (GANG, needed, members)
    assert (found.waits_s, found.overtaken) == (STARVING_S + 60, overtaken)
    ledger.play(rack("n2", 3), *([] if declared else [gang(GANG, 2)]))
    ledger.settle()
    if members >= (declared or 2):
        assert waiting_facts(ledger.state, now=LATER).starving == ()


def test_a_gang_that_the_fleet_could_never_hold_does_not_starve() -> None:
    """A gang that never fits does not count as starving, because another check reports it."""
    ledger = Ledger(rack("n1", 2), gang(GANG, 3))
    ledger.submit(*(member(f"m{number}") for number in range(3))).settle()
    found = waiting_facts(ledger.state, now=LATER)
    assert (len(found.never) > 0, found.starving) == (True, ())
