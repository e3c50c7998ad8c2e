"""Tests of event ids and fences, which ensure that the ledger accepts each decision only once."""

from hashlib import sha256

from apportion.core.ledger.state import State
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.fences import Fences
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion.scheduler.cycle import _id, fence
from apportion_schemas import (
    LimitsChecked,
    PlacementVoided,
    PodAdopted,
    PodEvicted,
    PodPlaced,
    QueueObserved,
    QuotaObserved,
    decode,
)
from tests.support.fleet import gpu, node
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, placed, pod, share

VOID = PlacementVoided(pod="p1", node="n1", attempt=1, reason="no such card")


def id_of_void(state: State) -> str:
    return _id(VOID, state)


def test_a_place_is_voided_once_in_each_life_of_its_pod() -> None:
    """All events that void the same placement have the same id. If the pod ends and is adopted
    later, the event that voids its new placement has another id."""
    first = Ledger(node("n1", gpu("g0")), pod("p1"), placed("p1", "n1", [share("g0")]))
    assert id_of_void(first.state) == "p1/1/voided"
    again = (
        first.play(VOID)
        .gone("p1")
        .play(
            PodAdopted(
                pod="p1",
                node="n1",
                submitted=pod("p1", ask(1000)),
                shares=(share("g0"),),
                attempt=1,
            )
        )
    )
    assert id_of_void(again.state) == f"p1/1/voided/{again.pod('p1').submitted_revision}"


def test_a_pod_is_evicted_for_another_once_in_each_life() -> None:
    """All events that evict a pod in favour of a given pod have the same id. If the evicted pod
    ends and is adopted again, its next eviction has another id."""
    wanted = pod("p2", ask(1000), priority=10)
    evicted = PodEvicted(
        pod="p1",
        namespace="ml",
        name="p1",
        attempt=1,
        node="n1",
        priority=0,
        beneficiary="p2",
        beneficiary_name="ml/p2",
        beneficiary_priority=10,
        nominated="n1",
        reason="preempted",
    )
    ledger = Ledger(node("n1", gpu("g0")), pod("p1"), placed("p1", "n1", [share("g0")]), wanted)
    assert _id(evicted, ledger.state) == "p1/1/evicted/p2/1"
    ledger.play(evicted).gone("p1").play(
        PodAdopted(
            pod="p1", node="n1", submitted=pod("p1", ask(1000)), shares=(share("g0"),), attempt=1
        )
    )
    begun = ledger.pod("p1").submitted_revision
    assert _id(evicted, ledger.state) == f"p1/1/evicted/p2/1/{begun}"
    assert "p1" not in ledger.state.evictions


async def _never(_: Draft) -> Appended:
    raise AssertionError("fencing appends nothing")


PUBLISHER = Publisher("scheduler/test", SystemClock(), _never)


def test_limits_are_fenced_by_their_last_check() -> None:
    """An append that depends on limits ends with one event for each limit. The fence of such an
    event is the limit's last event. If two schedulers use the same limit at once, the server
    therefore refuses one of their appends."""
    ledger = Ledger(
        node("n1", gpu("g0", slots=4)),
        QueueObserved(queue="ml", parent="lab", capability={"nvidia.com/gpu": 3}),
        QuotaObserved(namespace="default", quota="gpus", hard={"nvidia.com/gpu": 3}),
        pod("p1", ask(1000), queue="ml"),
        pod("p2", ask(1000)),
    )
    decision = ledger.consider()
    checks = [
        LimitsChecked(kind="queue", name="ml"),
        LimitsChecked(kind="namespace", name="default"),
    ]
    assert sorted(decision.fences, key=repr) == sorted(checks, key=repr)
    drafts = fence((*decision.events, *checks), ledger.state, PUBLISHER, Fences())
    assert [each.expect for each in drafts[-2:]] == [0, 0]
    ledger.play(*checks)
    drafts = fence(checks, ledger.state, PUBLISHER, Fences())
    newest = ledger.state.revision
    assert [each.expect for each in drafts] == [newest - 1, newest]
    assert [each.subject for each in drafts] == [
        "apportion.v1.limits.queue.ml",
        "apportion.v1.limits.namespace.default",
    ]


def test_what_is_decided_together_is_told_with_one_time_and_fenced_once() -> None:
    """All events of a decision have the same time. If two events are about the same node, only the
    first has a fence, and the second contains the digest of the first."""
    ledger = Ledger(node("n1", gpu("g0")), pod("p1", ask(1000)), pod("p2", ask(1000)))

    drafts = fence(
        [each for each in ledger.decide() if isinstance(each, PodPlaced)],
        ledger.state,
        PUBLISHER,
        Fences(),
    )
    first, second = (decode(each.payload, subject=each.subject) for each in drafts)
    assert first.time == second.time
    assert (drafts[0].expect, drafts[1].expect) == (ledger.state.nodes["n1"].fence, None)
    assert second.data.previous == sha256(drafts[0].payload).hexdigest()
