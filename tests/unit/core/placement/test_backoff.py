"""Tests of backoff. If agents refuse a pod's placements, the pod waits longer each time and prefers
another node."""

from apportion.core.explain.why import why
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.snapshot import restore, take
from apportion.core.placement.engine import Engine
from apportion_schemas import (
    AllocationFailed,
    PlacementVoided,
    PodPlaced,
    PodRefused,
    RefusalCode,
    SharesAllocated,
)
from tests.support.fleet import rack
from tests.support.ledger_of import TIME, Ledger
from tests.support.pods import ask, cards, gang, member, pod

GANG_INCOMPLETE = RefusalCode.GANG_INCOMPLETE
BEGIN = micros_of(TIME) or 0


def timed(*payloads: object) -> Ledger:
    """Return a ledger whose engine starts at a fixed time, which tests move forward."""
    ledger = Ledger(*payloads)  # type: ignore[arg-type]
    ledger.engine = Engine(ledger.state, now=BEGIN)
    return ledger.settle()


def refuse(ledger: Ledger, uid: str = "p") -> str:
    """Refuse the pod's placement as the node's agent would, and let the scheduler void it. Return
    the node."""
    held = ledger.placement(uid)
    failed = AllocationFailed(pod=uid, node=held.node, attempt=held.attempt, message="conflict")
    ledger.play(failed)
    events = ledger.decide()
    assert [type(event) for event in events] == [PlacementVoided]
    return held.node


def placed_at(ledger: Ledger, seconds: float) -> list[str]:
    """Move the engine's clock to this many seconds after its start. Return the pods that it then
    places."""
    ledger.engine.tell_time(BEGIN + int(seconds * SECOND))
    return [event.pod for event in ledger.decide() if isinstance(event, PodPlaced)]


def test_a_refused_pod_pauses_and_prefers_another_node() -> None:
    """If an agent refuses a pod, the scheduler places the pod again after a pause, on another
    node."""
    ledger = timed(rack("n1", 2), rack("n2", 1), pod("p", ask(1)))
    first = refuse(ledger)
    assert ledger.decide() == []
    assert ledger.engine.held_until == BEGIN + SECOND
    assert placed_at(ledger, 0.9) == []
    assert placed_at(ledger, 1.0) == ["p"]
    assert ledger.where("p") != first


def test_the_only_node_is_tried_again_after_a_longer_pause_each_time() -> None:
    """If there is only one node, the pod's backoff grows from one second to five minutes."""
    ledger = timed(rack("n1", 1), pod("p", ask(1)))
    for pause_s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300):
        refuse(ledger)
        assert placed_at(ledger, pause_s - 0.1) == []
        assert placed_at(ledger, pause_s) == ["p"]
        ledger.engine = Engine(ledger.state, now=BEGIN)
    held = ledger.placement("p")
    ledger.play(SharesAllocated(pod="p", node="n1", attempt=held.attempt, devices=("n1-g0",)))
    assert ledger.state.pods["p"].backoff is None


def test_an_engine_that_begins_later_holds_the_pod_back_as_well() -> None:
    """A new scheduler that starts from a snapshot keeps to a pod's backoff."""
    ledger = timed(rack("n1", 1), pod("p", ask(1)))
    refuse(ledger)
    state = restore(take(ledger.state))
    engine = Engine(state, now=BEGIN)
    assert engine.decide().events == []
    engine.tell_time(BEGIN + SECOND)
    assert [event.pod for event in engine.decide().events] == ["p"]


def test_other_pods_do_not_wait_for_the_pause() -> None:
    """Other pods of the same shape do not wait for a refused pod's backoff."""
    ledger = timed(rack("n1", 1), pod("p", cards()))
    refuse(ledger)
    ledger.submit(pod("q", cards()))
    assert placed_at(ledger, 0) == ["q"]


def test_the_pods_of_a_gang_come_back_together() -> None:
    """If several pods of a gang back off, they are placed together afterwards. In the meantime, the
    gang gets no refusal for missing pods."""
    ledger = timed(rack("n1", 2), gang(min_available=2), member("a", cards()), member("b", cards()))
    refuse(ledger, "a")
    refuse(ledger, "b")
    assert ledger.decide() == []
    assert sorted(placed_at(ledger, 1.0)) == ["a", "b"]


def test_a_gang_is_asked_again_when_the_pod_that_it_lacked_is_due() -> None:
    """While a pod backs off, the other pods of its gang are refused as incomplete. When the backoff
    ends, the scheduler retries the gang."""
    ledger = timed(rack("n1", 2), gang(min_available=2), member("a", cards()), member("b", cards()))
    refuse(ledger, "a")
    ledger.voided("b")
    told = [event for event in ledger.decide() if isinstance(event, PodRefused)]
    assert [(event.pod, [*event.reasons]) for event in told] == [("b", [GANG_INCOMPLETE])]
    assert sorted(placed_at(ledger, 1.0)) == ["a", "b"]


def test_why_says_how_often_where_and_until_when() -> None:
    """`why` shows the number of refusals, the nodes and the end of the backoff."""
    ledger = timed(rack("n1", 1), pod("p", ask(1)))
    refuse(ledger)
    found = why(ledger.state, ledger.state.pods["p"]).held_back
    assert found is not None
    assert (found.failures, found.node, found.until) == (1, "n1", "2026-01-01T00:00:01Z")
    assert placed_at(ledger, 1.0) == ["p"]
    assert why(ledger.state, ledger.state.pods["p"]).held_back is None
