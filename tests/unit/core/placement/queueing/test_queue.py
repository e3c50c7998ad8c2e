"""Tests of the queue of pending pods: its order, unschedulable pods, and which events make the
scheduler retry them. Pods that stay pending cost no work."""

import pytest

from apportion.core.ledger.state import State
from apportion.core.placement import refusals, scores
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.engine import Engine
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.score_input import ScoreInput
from apportion.core.placement.queueing.queue import PendingQueue
from apportion.core.placement.queueing.shape_queue import SLACK, Reasons
from apportion.core.placement.scores.nodes import Bestfit
from apportion_schemas import (
    BindFailed,
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    NodeConstraints,
    NodeCordoned,
    NodeGone,
    NodeUncordoned,
    PodAdopted,
    PodPlaced,
    PodRefused,
    RefusalCode,
    Share,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, pod, shape

NO = Reasons({RefusalCode.MEMORY_INSUFFICIENT: 1}, (), 1)


def names(events: list[Payload], kind: type[Payload]) -> list[str]:
    return [event.pod for event in events if isinstance(event, kind)]  # type: ignore[attr-defined]


class Work:
    """Counts what the engine does: how many nodes (rows of the index) it scores, and how many
    refusals it explains."""

    def __init__(self) -> None:
        self.rows = self.explained = 0

    def taken(self) -> tuple[int, int]:
        """Return how many nodes were scored and how many refusals explained since the last call."""
        done, self.rows, self.explained = (self.rows, self.explained), 0, 0
        return done


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Let the engine count the nodes that it scores and the refusals that it explains."""
    counted = Work()
    explain = refusals.explain

    class Counted(Bestfit):
        def rate(self, seen: ScoreInput) -> None:
            counted.rows += seen.count
            super().rate(seen)

    def explained(class_: PlacementClass, columns: Columns) -> object:
        counted.explained += 1
        return explain(class_, columns)

    monkeypatch.setattr(scores, "Bestfit", Counted)  # the score without prices
    monkeypatch.setattr(refusals, "explain", explained)
    return counted


def test_priority_then_submission() -> None:
    """The scheduler decides pods by priority and then by age, even if their shapes differ."""
    ledger = Ledger(
        rack("n1", 8),
        pod("early", ask(1000)),
        pod("other", ask(2000)),
        pod("late", ask(1000)),
        pod("urgent", ask(1000), priority=5),
        pod("idle", ask(3000), priority=-1),
    )
    assert names(ledger.decide(), PodPlaced) == ["urgent", "early", "other", "late", "idle"]


def test_a_refused_shape_holds_up_no_other() -> None:
    """If a pod is refused, the scheduler still decides the pods with other requests behind it."""
    ledger = Ledger(rack("n1", 1), pod("big", ask(99_999)), pod("small", ask(1000)))
    events = ledger.decide()
    assert names(events, PodPlaced) == ["small"]
    assert names(events, PodRefused) == ["big"]


def test_every_pod_of_a_shape_queue_is_told_once() -> None:
    """If pods with the same request do not fit, each of them gets one refusal, including a pod that
    is submitted later."""
    ledger = Ledger(rack("n1", 1), *(pod(f"p{n}", ask(99_999)) for n in range(3)))
    assert sorted(names(ledger.decide(), PodRefused)) == ["p0", "p1", "p2"]
    assert ledger.decide() == []
    ledger.submit(pod("p3", ask(99_999)))
    assert names(ledger.decide(), PodRefused) == ["p3"]
    assert ledger.decide() == []


def test_new_reasons_are_told_to_all() -> None:
    """Pods with the same request get another refusal if the refusal codes change, but not if only
    the numbers of nodes do."""
    ledger = Ledger(rack("n1", 1, healthy=False), pod("a", cards()), pod("b", cards())).settle()
    assert ledger.reasons("b") == {RefusalCode.DEVICE_UNHEALTHY: 1}
    ledger.play(DeviceHealthChanged(node="n1", device="n1-g0", healthy=True))
    assert names(ledger.decide(), PodPlaced) == ["a"]
    assert ledger.reasons("b") == {RefusalCode.DEVICE_IN_USE: 1}
    ledger.report(rack("n2", 1)).submit(pod("c", cards()))
    events = ledger.decide()
    assert names(events, PodPlaced) == ["b"]
    assert names(events, PodRefused) == ["c"]
    assert ledger.reasons("c") == {RefusalCode.DEVICE_IN_USE: 2}


def full() -> Ledger:
    """Return a ledger where pod `first` has the only device and pod `second` was refused."""
    ledger = Ledger(rack("n1", 1), pod("first", cards()))
    ledger.decide()
    return ledger.submit(pod("second", cards())).settle()


@pytest.mark.parametrize(
    ("before", "hint"),
    [
        ([], "gone"),
        ([], "voided"),
        ([], rack("n2", 1)),
        (
            [rack("n2", 1, healthy=False)],
            DeviceHealthChanged(node="n2", device="n2-g0", healthy=True),
        ),
        (
            [DeviceCordoned(device="n2-g0", by="a", reason="x"), rack("n2", 1)],
            DeviceUncordoned(device="n2-g0", by="a"),
        ),
        (
            [NodeCordoned(node="n2", by="a", reason="x"), rack("n2", 1)],
            NodeUncordoned(node="n2", by="a"),
        ),
        ([observed("n2", ready=False), rack("n2", 1)], observed("n2")),
        ([observed("n2", ready=False), rack("n2", 1), NodeGone(node="n2")], observed("n2")),
    ],
    ids=["gone", "voided", "joined", "healthy", "uncordoned", "node uncordoned", "ready", "back"],
)
def test_waking(before: list[Payload], hint: Payload | str) -> None:
    """When room becomes free, the scheduler retries the pending pods that need it, and places one
    at once."""
    ledger = full()
    for event in before:
        ledger.play(event).settle()
    assert not ledger.where("second")
    if isinstance(hint, str):
        ledger.gone("first") if hint == "gone" else ledger.voided("first")
    else:
        ledger.play(hint)
    placed = names(ledger.decide(), PodPlaced)
    assert placed == (["first"] if hint == "voided" else ["second"])


def test_room_that_comes_while_others_are_still_asked_goes_to_the_first() -> None:
    """If room becomes free while the scheduler goes through the queue, the first pod of the queue
    gets it.

    This holds even if the scheduler has already refused that pod."""
    sizes = range(100_000, 100_004)
    ledger = Ledger(rack("n1", 1), *(pod(f"p{size}", ask(size)) for size in sizes)).settle()
    ledger.play(rack("n2", 1, memory_mib=99_999))
    assert ledger.engine.decide(looks_max=1).more
    ledger.play(rack("n3", 1, memory_mib=200_000))
    for _ in range(100):
        decision = ledger.engine.decide(looks_max=1)
        ledger.play(*decision.events)
        if not decision.events and not decision.more:
            break
    assert ledger.where(f"p{sizes[0]}") == "n3"


def test_what_cannot_help_wakes_nobody(work: Work) -> None:
    """After a cordon or a failed binding, the scheduler retries no pod and scores no node."""
    ledger = full()
    work.taken()
    ledger.play(
        DeviceCordoned(device="n1-g0", by="ann", reason="x"),
        NodeCordoned(node="n1", by="ann", reason="x"),
        BindFailed(pod="first", node="n1", attempt=1, message="again", final=False),
    )
    assert ledger.decide() == []
    assert work.taken() == (0, 0)


def test_a_departure_looks_at_the_rows_that_changed_and_at_no_other(work: Work) -> None:
    """When a pod ends, the scheduler scores only that pod's node again. An unchanged refusal is not
    repeated."""
    ledger = Ledger(*(rack(f"n{n:02}", 1) for n in range(50)), pod("small", ask(1)))
    ledger.decide()
    elsewhere = shape(ask(1), node=NodeConstraints(selector={"zone": "none"}))
    ledger.submit(pod("far", shape=elsewhere)).settle()
    work.taken()
    ledger.gone("small")
    assert ledger.decide() == []
    assert work.taken() == (1, 0)


def test_room_that_is_too_small_costs_no_look(work: Work) -> None:
    """If the room that becomes free is too small for every pending pod, the scheduler scores no
    node."""
    ledger = Ledger(rack("n1", 2), *(pod(f"small-{n}", ask(1)) for n in range(3)))
    ledger.decide()
    ledger.submit(pod("big", ask(99_999)), pod("pair", cards(2))).settle()
    work.taken()
    ledger.gone("small-0")
    assert (ledger.decide(), work.taken()) == ([], (0, 0))
    ledger.gone("small-1").gone("small-2")
    assert names(ledger.decide(), PodPlaced) == ["pair"]


def test_a_hundred_thousand_unschedulable_pods_cost_nothing(work: Work) -> None:
    """If many unschedulable pods have the same request, the scheduler scores nodes only once for
    all."""
    ledger = Ledger(*(rack(f"n{n}", 1) for n in range(10)))
    state = ledger.state
    ledger.submit(pod("q0", ask(99_999)))
    first = ledger.state.pods["q0"]
    for number in range(1, 100_000):
        uid = f"q{number}"
        twin = type(first)(
            pod(uid, shape=first.submitted.shape), first.shape_key, state.revision + number, ""
        )
        twin.refusal = None
        state.pods[uid] = twin
    state.revision += 100_000
    engine = Engine(state)
    reported = 0
    while decision := engine.decide(events_max=5_000).events:
        reported += len(decision)
        for event in decision:
            assert isinstance(event, PodRefused)
            state.pods[event.pod].refusal = event
    assert (reported, work.taken()) == (100_000, (10, 1))
    assert engine.pending == 100_000
    ledger.engine = engine
    # the small class is new, and the first release affects many rows
    for number, looks in enumerate((11, 1)):
        ledger.submit(pod(f"small-{number}", ask(1)))
        assert names(ledger.decide(), PodPlaced) == [f"small-{number}"]
        assert ledger.decide() == []
        ledger.gone(f"small-{number}")
        assert ledger.decide() == []
        assert work.taken() == (looks, 0)


def test_a_departure_where_an_adopted_pod_holds_an_unknown_card() -> None:
    """The scheduler keeps working when a pod ends on a node with an adopted pod.

    The adopted pod uses a device that the node has not reported."""
    ledger = Ledger(rack("n1", 2), rack("n2", 1), pod("small", ask(1)), pod("big", ask(99_999)))
    ledger.settle()
    ledger.report(rack("n1", 2)).settle()
    held = Share(container="main", device="lost", memory_mib=5, cores=0)
    other = pod("other", ask(5))
    ledger.play(PodAdopted(pod="other", node="n2", submitted=other, shares=(held,)))
    ledger.gone("small")
    assert ledger.decide() == []
    ledger.submit(pod("fits", ask(1)))
    assert names(ledger.decide(), PodPlaced) == ["fits"]


def test_who_gives_up_leaves_the_queue() -> None:
    """Pods that end leave the queue. The queue does not grow, however often ended pods are replaced
    by new ones."""
    ledger = Ledger(rack("n1", 1), pod("big-0", ask(99_999))).settle()
    (shape_queue,) = ledger.engine._queue.unschedulable()
    for number in range(1, 5 * SLACK):
        ledger.submit(pod(f"big-{number}", ask(99_999))).gone(f"big-{number - 1}").settle()
        assert ledger.engine.pending == 1
    assert len(shape_queue.waiting) <= SLACK + 2
    ledger.gone(f"big-{number}").settle()
    assert ledger.engine.pending == 0
    assert ledger.engine._queue.unschedulable() == []


def queue_of(*uids: str) -> tuple[State, PendingQueue]:
    state = Ledger(*(pod(uid, ask(1)) for uid in uids)).state
    return state, PendingQueue(state)


def test_a_pod_stands_in_its_queue_once() -> None:
    """A pod that is added to the queue several times is still in it only once."""
    state, queue = queue_of("a", "b")
    for _ in range(5):
        queue.add(state.pods["a"])
    assert len(queue) == 2
    shape_queue = queue.next_shape_queue()
    assert shape_queue is not None
    shape_queue.remove({"a"})
    head = shape_queue.head(state)
    assert head is not None
    assert head.uid == "b"
    queue.add(state.pods["a"])
    assert len(queue) == 2


def test_only_queues_with_a_schedulable_pod_contest_the_turn() -> None:
    """The pending queue drops queues whose pods are all unschedulable, and takes them back when a
    pod is schedulable again."""
    state = Ledger(pod("a", ask(1), queue="x"), pod("b", ask(1), queue="y")).state
    queue = PendingQueue(state)
    refused = queue.next_shape_queue()
    assert refused is not None
    queue.mark_unschedulable(refused, NO)
    contested = [queue.contested]
    queue.drop_idle()
    contested.append(queue.contested)
    left = queue.next_shape_queue()
    assert left is not None
    assert {left.queue, refused.queue} == {"x", "y"}
    queue.wake(refused)
    queue.drop_idle()
    assert [*contested, queue.contested] == [True, False, True]
    queue.mark_unschedulable(left, NO)
    queue.mark_unschedulable(refused, NO)
    queue.drop_idle()
    assert (queue.contested, queue.next_shape_queue()) == (False, None)
    queue.wake(left)
    assert queue.next_shape_queue() is left


def test_a_pod_that_is_told_again_is_told_once() -> None:
    """If a refused pod is added to the queue again, even several times, its refusal is reported
    exactly once more."""
    state, queue = queue_of("a")
    shape_queue = queue.next_shape_queue()
    assert shape_queue is not None
    queue.mark_unschedulable(shape_queue, NO)
    assert [reported.uid for reported, _ in queue.unreported()] == ["a"]
    for _ in range(3):
        queue.add(state.pods["a"])
    assert [reported.uid for reported, _ in queue.unreported()] == ["a"]
    assert list(queue.unreported()) == []


def test_the_same_answer_again_goes_to_nobody_who_has_heard_it() -> None:
    """If a pod is refused again with the same codes, the queue reports no second refusal."""
    state, queue = queue_of("a", "b")
    shape_queue = queue.next_shape_queue()
    assert shape_queue is not None
    queue.mark_unschedulable(shape_queue, NO)
    assert len(list(queue.unreported())) == 2
    queue.wake(shape_queue)
    queue.mark_unschedulable(shape_queue, NO._replace(nodes=7))
    assert list(queue.unreported()) == []
    queue.wake(shape_queue)
    queue.mark_unschedulable(shape_queue, NO._replace(counts={RefusalCode.DEVICE_IN_USE: 1}))
    assert len(list(queue.unreported())) == len(state.pods)


def test_who_has_left_is_dropped() -> None:
    """The queue drops pods that have ended. If no pod with the same request is left, the sub-queue
    for that request is dropped too."""
    ledger = Ledger(pod("a", ask(1)), pod("b", ask(1)))
    queue = PendingQueue(ledger.state)
    ledger.gone("a")
    shape_queue = queue.next_shape_queue()
    assert shape_queue is not None
    head = shape_queue.head(ledger.state)
    assert head is not None
    assert (head.uid, len(queue)) == ("b", 1)
    queue.mark_unschedulable(shape_queue, NO)
    assert queue.unschedulable() == [shape_queue]
    ledger.gone("b")
    assert queue.unschedulable() == []
    assert (queue.next_shape_queue(), list(queue.unreported()), len(queue)) == (None, [], 0)


def test_a_uid_that_comes_back_has_a_new_turn() -> None:
    """If a new pod has the uid of an ended one, it does not take over that pod's position in the
    queue."""
    ledger = Ledger(pod("a", ask(1)), pod("b", ask(1)))
    queue = PendingQueue(ledger.state)
    ledger.gone("a").submit(pod("a", ask(2)))
    queue.add(ledger.pod("a"))
    shape_queue = queue.next_shape_queue()
    assert shape_queue is not None
    assert [turn.uid for turn in shape_queue.live(ledger.state)] == ["b"]


def test_the_list_of_the_unreported_does_not_grow_with_those_who_left() -> None:
    """The list of refusals that are still to be reported does not grow while pods come and go."""
    ledger = Ledger(rack("n1", 1))
    for number in range(5 * SLACK):
        ledger.submit(pod(f"p{number}", ask(1000)))
        ledger.decide()
        ledger.gone(f"p{number}")
    ledger.submit(pod("last", ask(1000)))
    (shape_queue,) = ledger.engine._queue._shape_queues.values()
    assert len(shape_queue.fresh) <= SLACK + 2
