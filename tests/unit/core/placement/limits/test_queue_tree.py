"""Tests of the tree of queues: what is kept free for guarantees, and which pods are evicted when a
queue takes back what it deserves."""

from collections import Counter
from typing import Any

import pytest
from msgspec import structs

from apportion.core.explain.explainer import queue_answers
from apportion.core.explain.why import why
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    DeviceConstraints,
    NodeCordoned,
    PodEvicted,
    PodGone,
    PodSubmitted,
    QueueObserved,
    QueueShortage,
    RefusalCode,
)
from apportion_schemas.configuration import QueuesConfiguration
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape, wants

C = RefusalCode
GPU = "nvidia.com/gpu"


def queue(name: str, **fields: Any) -> QueueObserved:
    """Return a queue; `deserved`, `guarantee` and `capability` are numbers of GPUs."""
    for kind in ("deserved", "guarantee", "capability"):
        if isinstance(fields.get(kind), int):
            fields[kind] = {GPU: fields[kind]}
    return QueueObserved(queue=name, **fields)


def in_queue(name: str, count: int, first: int = 0, **fields: Any) -> list[PodSubmitted]:
    """Return `count` pods of a queue that request a whole GPU each: `NAME-0`, `NAME-1`, …"""
    each = range(first, first + count)
    return [pod(f"{name}-{number}", cards(), queue=name, **fields) for number in each]


def running(ledger: Ledger) -> Counter[str]:
    """Return the number of placed pods in each queue, without pods that are being evicted."""
    return Counter(
        each.submitted.queue
        for each in ledger.state.pods.values()
        if each.placement is not None and each.uid not in ledger.state.evictions
    )


def evictions(ledger: Ledger) -> list[PodEvicted]:
    return [event for event in ledger.events if isinstance(event, PodEvicted)]


def settle(ledger: Ledger) -> Ledger:
    """Let the engine decide until it has nothing left to decide. Every evicted pod ends at once."""
    while True:
        ledger.settle()
        leaving = sorted(ledger.state.evictions)
        if not leaving:
            return ledger
        ledger.play(*(PodGone(uid=uid) for uid in leaving))


def test_two_teams_divide_a_cluster_as_they_deserve() -> None:
    """If two teams together ask for more GPUs than the cluster has, each team gets what it
    deserves."""
    ledger = Ledger(rack("n1", 10), queue("a", deserved=7), queue("b", deserved=3))
    settle(ledger.submit(*in_queue("a", 20), *in_queue("b", 20)))
    assert running(ledger) == {"a": 7, "b": 3}
    assert not evictions(ledger)


def test_a_team_borrows_what_another_one_does_not_use() -> None:
    """A team may use the whole cluster while no other team asks for it."""
    ledger = Ledger(rack("n1", 10), queue("a", deserved=7), queue("b", deserved=3))
    settle(ledger.submit(*in_queue("b", 20)))
    assert running(ledger) == {"b": 10}


def test_a_team_takes_back_what_it_deserves() -> None:
    """If a team asks for GPUs that it deserves and another team borrows them, the newest pods of
    the borrower are evicted.

    No more pods are evicted than needed."""
    ledger = Ledger(rack("n1", 10), queue("a", deserved=7), queue("b", deserved=3))
    for each in in_queue("b", 20):
        ledger.submit(each).settle()
    settle(ledger.submit(*in_queue("a", 5)))
    assert running(ledger) == {"a": 5, "b": 5}
    assert {each.pod for each in evictions(ledger)} == {f"b-{number}" for number in range(5, 10)}
    for event in evictions(ledger):
        assert (event.reason, event.queue, event.beneficiary_queue) == ("reclaimed", "b", "a")
    settle(ledger.submit(*in_queue("a", 20, first=5)))
    assert running(ledger) == {"a": 7, "b": 3}


@pytest.mark.parametrize(("surplus", "placed"), [(True, 5), (False, 2)])
def test_a_team_takes_back_surplus_unless_the_configuration_forbids_it(
    surplus: bool, placed: int
) -> None:
    """With `queues.reclaimSurplus: false`, pods are evicted only for what a queue deserves."""
    queues = QueuesConfiguration(reclaim_surplus=surplus)
    set_to = ConfigurationChanged(by="ann", configuration=Configuration(queues=queues))
    ledger = Ledger(rack("n1", 10), queue("a", deserved=2), queue("b", deserved=2), set_to)
    settle(ledger.submit(*in_queue("b", 20)))
    settle(ledger.submit(*in_queue("a", 20)))
    assert running(ledger) == {"a": placed, "b": 10 - placed}


def test_nothing_is_evicted_without_news() -> None:
    """If each queue already uses what it deserves, new pods in either queue evict nothing."""
    ledger = Ledger(rack("n1", 10), queue("a", deserved=7), queue("b", deserved=3))
    settle(ledger.submit(*in_queue("b", 30)))
    settle(ledger.submit(*in_queue("a", 30)))
    before = len(evictions(ledger))
    settle(ledger.submit(*in_queue("b", 5, first=50)))
    settle(ledger.submit(*in_queue("a", 5, first=50)))
    assert len(evictions(ledger)) == before
    assert running(ledger) == {"a": 7, "b": 3}


def test_priority_does_not_protect_a_borrower() -> None:
    """Pods of a borrowing queue are evicted even if they have a higher priority."""
    ledger = Ledger(rack("n1", 4), queue("a", deserved=2), queue("b", deserved=2))
    settle(ledger.submit(*in_queue("b", 8, priority=1000)))
    settle(ledger.submit(*in_queue("a", 8)))
    assert running(ledger) == {"a": 2, "b": 2}


def test_a_pod_waits_if_no_one_borrows() -> None:
    """A pod beyond its queue's entitlement evicts no pod."""
    ledger = Ledger(rack("n1", 4), queue("a", deserved=2), queue("b", deserved=2))
    settle(ledger.submit(*in_queue("a", 2), *in_queue("b", 2)))
    settle(ledger.submit(*in_queue("a", 1, first=9)))
    assert not evictions(ledger)


def test_pods_of_a_queue_that_is_not_reclaimable_stay() -> None:
    """With `reclaimable: false`, a queue keeps what it borrows."""
    ledger = Ledger(
        rack("n1", 4), queue("a", deserved=4), queue("b", reclaimable=False), queue("c")
    )
    settle(ledger.submit(*in_queue("b", 2), *in_queue("c", 4)))
    settle(ledger.submit(*in_queue("a", 4)))
    assert running(ledger) == {"a": 2, "b": 2}


def test_pods_run_for_a_while_before_they_are_taken_back() -> None:
    """A borrowing pod is evicted only after the minimum runtime that its queue, or a queue above
    it, sets."""
    ledger = Ledger(rack("n1", 1), queue("a", deserved=1), queue("c", safe_s=60))
    ledger.play(queue("b", parent="c"))
    ledger.engine.tell_time(_time(0))
    ledger.submit(*in_queue("b", 1)).settle()
    ledger.engine.tell_time(_time(59))
    ledger.submit(*in_queue("a", 1)).settle()
    assert not evictions(ledger)
    assert ledger.engine.held_until == _time(60)
    ledger.engine.tell_time(_time(60))
    ledger.settle()
    assert [each.pod for each in evictions(ledger)] == ["b-0"]


def _time(seconds: int) -> int:
    # Microseconds since 1970, this long after the time of the ledger's events.
    return (1_767_225_600 + seconds) * 1_000_000


def test_the_newest_work_is_lost_rather_than_the_oldest() -> None:
    """Of two possible victims, the one that would lose fewer device seconds of work is evicted."""
    ledger = Ledger(rack("n1", 8), queue("a", deserved=8), queue("b"))
    ledger.submit(pod("b-large", cards(7), queue="b")).settle()
    ledger.submit(pod("b-small", cards(1), queue="b")).settle()
    ledger.engine.tell_time(_time(3600))
    settle(ledger.submit(*in_queue("a", 1)))
    assert [each.pod for each in evictions(ledger)] == ["b-small"]


@pytest.mark.parametrize(("devices", "victim"), [(2, "b-large"), (7, "b-small")])
def test_a_pod_loses_only_the_work_since_its_last_checkpoint(devices: int, victim: str) -> None:
    """A larger pod that has just written a checkpoint is evicted rather than a small pod that
    writes none, unless far more devices would be taken than needed."""
    ledger = Ledger(rack("n1", devices), rack("n2", 1), queue("a", deserved=8), queue("b"))
    ledger.submit(pod("b-large", cards(devices), queue="b", checkpoint_s=1200)).settle()
    ledger.submit(pod("b-small", cards(1), queue="b")).settle()
    ledger.engine.tell_time(_time(3601))
    settle(ledger.submit(*in_queue("a", 1)))
    assert [each.pod for each in evictions(ledger)] == [victim]


def test_the_pod_that_has_just_written_a_checkpoint_is_evicted() -> None:
    """Of two pods that started at the same time on one node, the one with the newer checkpoint is
    evicted."""
    ledger = Ledger(rack("n1", 2), queue("a", deserved=2), queue("b"))
    ledger.submit(pod("b-0", cards(1), queue="b", checkpoint_s=1200)).settle()
    ledger.submit(pod("b-1", cards(1), queue="b", checkpoint_s=5000)).settle()
    ledger.engine.tell_time(_time(1201))
    settle(ledger.submit(*in_queue("a", 1)))
    assert [each.pod for each in evictions(ledger)] == ["b-0"]


@pytest.mark.parametrize(("ran_s", "waits"), [(500, False), (700, True)])
def test_an_eviction_waits_for_a_checkpoint_if_more_work_would_be_lost(
    ran_s: int, waits: bool
) -> None:
    """An eviction waits for the borrower's next checkpoint if evicting now would lose more.

    The device seconds lost now are compared with those that the entitled pod would wait. Without a
    clock, the borrower is evicted at once."""
    ledger = Ledger(rack("n1", 1), queue("a", deserved=1), queue("b"))
    ledger.submit(pod("b-0", cards(1), queue="b", checkpoint_s=1200)).settle()
    ledger.engine.tell_time(_time(ran_s))
    settle(ledger.submit(*in_queue("a", 1)))
    assert [each.pod for each in evictions(ledger)] == ([] if waits else ["b-0"])
    assert ledger.engine.held_until == (_time(1200) if waits else 0)
    ledger.engine.tell_time(_time(1200))
    settle(ledger)
    assert running(ledger) == {"a": 1}


def waiting_pod(**fields: Any) -> Ledger:
    """Return a ledger at 700 s. A pod `a-0` waits until 1,200 s for the checkpoint of `b-0`, which
    borrows four GPUs of queue `a`."""
    ledger = Ledger(rack("n1", 4), queue("a", deserved=4), queue("b"))
    ledger.submit(pod("b-0", cards(4), queue="b", **{"checkpoint_s": 1200, **fields})).settle()
    ledger.engine.tell_time(_time(700))
    settle(ledger.submit(pod("a-0", cards(4), queue="a")))
    return ledger


def test_no_pod_waits_over_half_an_hour_for_a_checkpoint() -> None:
    """A borrower whose annotation names a checkpoint in some hours is evicted at once."""
    assert not evictions(waiting_pod())
    assert [each.pod for each in evictions(waiting_pod(checkpoint_s=2501))] == ["b-0"]


def test_identical_pods_do_not_wait_one_after_the_other() -> None:
    """When the wait of the first pod ends, identical pods that were pending with it evict at once,
    although the checkpoints of their victims are later."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), queue("a", deserved=2), queue("b"))
    every = {"b-0": 1200, "b-1": 1300}
    for name, seconds in every.items():
        ledger.submit(pod(name, cards(1), queue="b", checkpoint_s=seconds)).settle()
    ledger.engine.tell_time(_time(700))
    settle(ledger.submit(*in_queue("a", 2)))
    assert not evictions(ledger)
    ledger.engine.tell_time(_time(1200))
    settle(ledger)
    assert running(ledger) == {"a": 2}


def test_a_more_important_pod_does_not_wait_for_the_checkpoint_of_another_search() -> None:
    """If a more important pod of the same shape arrives while the first one waits, the scheduler
    looks for evictions for it at once: here it evicts a pod of its own queue."""
    ledger = waiting_pod()
    ledger.report(rack("n2", 4)).submit(pod("a-low", cards(4), queue="a", priority=-1)).settle()
    assert ledger.where("a-low") == ""
    assert ledger.where("a-0") == "n2"
    ledger.submit(pod("a-high", cards(4), queue="a", priority=5)).settle()
    assert [each.pod for each in evictions(ledger)] == ["a-0"]


def test_a_later_pod_does_not_take_what_a_waiting_pod_takes_back() -> None:
    """While a pod waits for a checkpoint, later pods of its queue take back only what it leaves of
    the entitlement."""
    ledger = waiting_pod()
    ledger.submit(pod("a-new", cards(1), queue="a")).settle()
    assert not evictions(ledger)
    ledger.engine.tell_time(_time(1200))
    settle(ledger)
    assert (ledger.where("a-0"), ledger.where("a-new")) == ("n1", "")


def test_time_is_told_although_no_queue_deserves_anything_any_more() -> None:
    """If the last `deserved` goes while a pod waits for a checkpoint, the scheduler tells the time
    once more, and then has nothing to wait for."""
    ledger = waiting_pod().play(queue("a")).settle()
    assert ledger.engine.held_until == _time(1200)
    assert ledger.engine.needs_time
    ledger.engine.tell_time(_time(1200))
    ledger.settle()
    assert ledger.engine.held_until == 0
    assert not evictions(ledger)


def test_without_surplus_other_limits_do_not_prevent_reclaim() -> None:
    """With `queues.reclaimSurplus: false`, a queue takes back what it deserves even if another
    queue has a limit of CPU, which no queue deserves."""
    queues = QueuesConfiguration(reclaim_surplus=False)
    set_to = ConfigurationChanged(by="ann", configuration=Configuration(queues=queues))
    ledger = Ledger(rack("n1", 10), queue("a", deserved=7), queue("b", deserved=3), set_to)
    ledger.play(queue("c", deserved={"cpu": 1000}, capability={"cpu": 4000}))
    wants_cpu = [
        [pod(f"{name}-{n}", shape=wants(cards(), cpu_milli=100), queue=name) for n in range(10)]
        for name in "ba"
    ]
    settle(ledger.submit(*wants_cpu[0]))
    settle(ledger.submit(*wants_cpu[1]))
    assert running(ledger) == {"a": 7, "b": 3}


def test_a_gang_that_takes_back_devices_waits_for_checkpoints() -> None:
    """A gang waits for the next checkpoint of a pod that has all devices which the gang needs."""
    ledger = Ledger(rack("n1", 2), queue("a", deserved=2), queue("b"))
    ledger.submit(pod("b-0", cards(2), queue="b", checkpoint_s=1200)).settle()
    ledger.play(gang("team/job", 2, queue="a"))
    ledger.engine.tell_time(_time(700))
    settle(ledger.submit(*(member(f"m{n}", cards(), queue="a") for n in range(2))))
    assert ledger.engine.held_until == _time(1200)
    ledger.engine.tell_time(_time(1200))
    settle(ledger)
    assert running(ledger) == {"a": 2}


def test_a_gang_is_taken_back_whole() -> None:
    """A borrowing gang is evicted as a whole, even if it is larger than what is needed."""
    ledger = Ledger(rack("n1", 4), queue("a", deserved=3), queue("b", deserved=1))
    ledger.play(gang("team/job", 4, queue="b"))
    settle(ledger.submit(*(member(f"m{n}", cards(), queue="b") for n in range(4))))
    settle(ledger.submit(*in_queue("a", 1)))
    assert {each.pod for each in evictions(ledger)} == {"m0", "m1", "m2", "m3"}
    assert running(ledger) == {"a": 1}


def test_a_gang_takes_back_room_for_all_of_it() -> None:
    """A gang evicts borrowers only if all of its pods are within its queue's entitlement."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2), queue("a", deserved=3), queue("b", deserved=1))
    settle(ledger.submit(*in_queue("b", 4)))
    ledger.play(gang("team/big", 4, queue="a"), gang("team/fit", 3, queue="a"))
    settle(ledger.submit(*(member(f"x{n}", cards(), group="team/big") for n in range(4))))
    assert not evictions(ledger)
    settle(ledger.submit(*(member(f"y{n}", cards(), group="team/fit") for n in range(3))))
    assert len(evictions(ledger)) == 3
    assert all(ledger.state.pods[f"y{n}"].placement for n in range(3))


def test_a_department_takes_back_before_its_teams_divide() -> None:
    """Entitlements are divided level by level: a team gets a part of what its department has."""
    ledger = Ledger(rack("n1", 12))
    ledger.play(queue("x", deserved=8), queue("y", deserved=4))
    ledger.play(queue("x1", parent="x", deserved=6), queue("x2", parent="x", deserved=2))
    settle(ledger.submit(*in_queue("y", 12)))
    settle(ledger.submit(*in_queue("x2", 12)))
    assert running(ledger) == {"x2": 8, "y": 4}
    settle(ledger.submit(*in_queue("x1", 12)))
    assert running(ledger) == {"x1": 6, "x2": 2, "y": 4}


def test_a_limit_counts_the_queues_below() -> None:
    """The capability of a queue limits all queues below it together."""
    ledger = Ledger(rack("n1", 8), queue("x", capability=3))
    ledger.play(queue("x1", parent="x"), queue("x2", parent="x"))
    settle(ledger.submit(*in_queue("x1", 2), *in_queue("x2", 2), *in_queue("x", 1)))
    assert running(ledger).total() == 3
    refused = [uid for uid, each in ledger.state.pods.items() if each.placement is None]
    for uid in refused:
        assert ledger.reasons(uid).keys() == {C.QUEUE_CAPABILITY_EXCEEDED}


def test_a_guarantee_is_kept_free() -> None:
    """A queue's guaranteed amount stays free while the queue has no pods."""
    ledger = Ledger(rack("n1", 4), queue("a", guarantee=1), queue("b"))
    settle(ledger.submit(*in_queue("b", 4)))
    assert running(ledger) == {"b": 3}
    (last,) = (uid for uid, each in ledger.state.pods.items() if each.placement is None)
    assert ledger.reasons(last).keys() == {C.QUEUE_RESERVED}
    assert ledger.refusal(last).queue == QueueShortage(
        queue="b", resource=GPU, needed=1, available=0, reserved=True
    )
    settle(ledger.submit(*in_queue("a", 1)))
    assert running(ledger) == {"a": 1, "b": 3}


def test_a_guarantee_of_what_is_not_counted_reserves_nothing() -> None:
    """A guarantee of a resource whose capacity is not counted, such as `pods`, reserves nothing."""
    ledger = Ledger(rack("n1", 4), queue("a", guarantee={"pods": 1}), queue("b"))
    settle(ledger.submit(*in_queue("b", 4)))
    assert running(ledger) == {"b": 4}


def test_a_guarantee_below_a_queue_counts_in_it() -> None:
    """A queue's guarantee also reserves a part of its parent's limit: the parent's other queues get
    only the rest of the limit."""
    ledger = Ledger(rack("n1", 8), queue("x", capability={"apportion.dev/gpu-milli": 4_000}))
    ledger.play(queue("x1", parent="x", guarantee=1), queue("x2", parent="x"))
    settle(ledger.submit(*in_queue("x2", 8), *in_queue("z", 8)))
    assert running(ledger) == {"x2": 3, "z": 4}


def test_an_ended_pod_of_another_queue_frees_what_is_not_guaranteed() -> None:
    """A pod that is pending because of other queues' guarantees is retried when a pod of any queue
    ends."""
    ledger = Ledger(rack("n1", 4), queue("a", guarantee=1), queue("b"), queue("c"))
    settle(ledger.submit(*in_queue("c", 1)))
    settle(ledger.submit(*in_queue("b", 4)))
    assert running(ledger) == {"b": 2, "c": 1}
    settle(ledger.play(PodGone(uid="c-0")))
    assert running(ledger) == {"b": 3}


def test_a_share_counts_as_the_part_of_the_gpu_that_it_takes() -> None:
    """A queue that deserves one GPU may use it as ten shares of a tenth."""
    ledger = Ledger(rack("n1", 2, memory_mib=10_000), queue("a", deserved=1), queue("b"))
    settle(ledger.submit(*in_queue("b", 2)))
    tenths = [pod(f"a-{number}", ask(1_000), queue="a") for number in range(11)]
    settle(ledger.submit(*tenths))
    assert running(ledger) == {"a": 10, "b": 1}


def test_a_queue_may_deserve_devices_of_a_model() -> None:
    """A queue takes back GPUs of the model that it deserves, and no others."""
    ledger = Ledger(rack("n1", 2, model="NVIDIA-A100"), rack("n2", 2, model="NVIDIA-T4"))
    ledger.play(queue("a", cards_deserved={"A100": 1}, weight=0), queue("b"))
    settle(ledger.submit(*in_queue("b", 4)))
    settle(ledger.submit(*in_queue("a", 2)))
    assert running(ledger) == {"a": 1, "b": 3}
    assert [each.node for each in evictions(ledger)] == ["n1"]


@pytest.mark.parametrize("order", [("p", "q", "r"), ("r", "q", "p"), ("q", "r", "p")])
def test_a_circle_of_queues_is_at_the_top(order: tuple[str, ...]) -> None:
    """Queues whose parents form a circle count as queues without a parent, in whatever order they
    arrive."""
    parents = {"p": "q", "q": "p", "r": "p"}
    ledger = Ledger(rack("n1", 3), *(queue(name, parent=parents[name]) for name in order))
    settle(ledger.submit(*in_queue("p", 2), *in_queue("q", 2), *in_queue("r", 2)))
    assert running(ledger) == {"p": 1, "q": 1, "r": 1}


def test_in_a_fifo_queue_the_first_pod_keeps_the_others_back() -> None:
    """In a queue with `dequeueStrategy: fifo`, a pod that fits nowhere keeps the pods behind it
    pending."""
    ledger = Ledger(rack("n1", 2), queue("a", fifo=True), queue("b"))
    ledger.submit(pod("large", cards(4), queue="a")).settle()
    settle(ledger.submit(*in_queue("a", 1), *in_queue("b", 1)))
    assert running(ledger) == {"b": 1}
    settle(ledger.play(rack("n2", 4)))
    assert running(ledger) == {"a": 2, "b": 1}


def test_why_names_the_entitlement_and_who_borrows_it() -> None:
    """The explanation of a pending pod states what its queue uses and what its queue is entitled
    to."""
    ledger = Ledger(rack("n1", 10), queue("a", deserved=7), queue("b", deserved=3))
    settle(ledger.submit(*in_queue("b", 20)))
    ledger.submit(*in_queue("a", 8)).settle()
    pending = ledger.state.pods["b-15"]
    assert why(ledger.state, pending).sentence.endswith(
        "Its queue b uses 10 GPUs and is entitled to 3 GPUs"
    )
    settle(ledger)
    (last,) = (each for each in ledger.state.pods.values() if each.uid == "a-7")
    assert why(ledger.state, last).sentence.endswith(
        "Its queue a uses 7 GPUs and is entitled to 7 GPUs"
    )


def test_queues_show_what_they_borrow_and_lend() -> None:
    """The answer about each queue has what it uses, is entitled to, borrows and lends."""
    ledger = Ledger(rack("n1", 10), queue("a", deserved=7), queue("b", deserved=3))
    settle(ledger.submit(*in_queue("b", 20), *in_queue("a", 2)))
    a, b = queue_answers(ledger.state, ["a", "b"])
    for answer, used, entitled, borrowed, lent in ((a, 2, 2, 0, 5), (b, 8, 8, 5, 0)):
        assert answer.parts is not None
        (part,) = (each for each in answer.parts if each.of == "nvidia")
        assert (part.used, part.entitled) == (used * 1000, entitled * 1000)
        assert (part.borrowed, part.lent) == (borrowed * 1000, lent * 1000)


def test_the_root_queue_and_unknown_parents_have_a_place_in_the_tree() -> None:
    """Volcano's queue `root` is above all other queues. A parent that only its children name counts
    as a queue, too."""
    ledger = Ledger(rack("n1", 6), queue("root", capability=5), queue("x1", parent="x"))
    ledger.play(queue("x2", parent="x", guarantee=2), queue("y", parent="root", deserved=1))
    settle(ledger.submit(*in_queue("x1", 9), *in_queue("root", 1)))
    assert running(ledger) == {"x1": 2, "root": 1}
    root, x1 = queue_answers(ledger.state, ["root", "x1"])
    assert (root.pods, x1.pods) == (3, 2)


def test_volcanos_root_queue_does_not_keep_what_is_borrowed() -> None:
    """Volcano's queue `root` has `reclaimable: false`, which does not apply to its children."""
    ledger = Ledger(rack("n1", 4), queue("root", reclaimable=False))
    ledger.play(queue("a", deserved=2), queue("b", deserved=2))
    settle(ledger.submit(*in_queue("b", 4)))
    settle(ledger.submit(*in_queue("a", 4)))
    assert running(ledger) == {"a": 2, "b": 2}


def test_what_is_borrowed_within_a_department_or_beside_a_guarantee_comes_back() -> None:
    """A queue takes back what it deserves even if borrowers use its department's whole limit, or
    all devices that are not guaranteed to another queue."""
    ledger = Ledger(rack("n1", 8), queue("d", deserved=4, capability=4))
    ledger.play(queue("a", parent="d", deserved=2), queue("b", parent="d", deserved=2))
    settle(ledger.submit(*in_queue("b", 4)))
    settle(ledger.submit(*in_queue("a", 4)))
    assert running(ledger) == {"a": 2, "b": 2}

    ledger = Ledger(rack("n1", 10), queue("g", guarantee=2))
    ledger.play(queue("a", deserved=4), queue("b", deserved=4))
    settle(ledger.submit(*in_queue("b", 8)))
    settle(ledger.submit(*in_queue("a", 4)))
    assert running(ledger) == {"a": 4, "b": 4}


def test_a_pod_takes_back_from_two_queues_on_one_node() -> None:
    """If no single queue borrows enough on a node, several queues give back a part each."""
    ledger = Ledger(rack("n1", 4), queue("a", deserved=2), queue("b", deserved=1))
    ledger.play(queue("c", deserved=1))
    for name in ("b", "c", "b", "c"):
        ledger.submit(*in_queue(name, 1, first=len(ledger.state.pods))).settle()
    settle(ledger.submit(pod("a-large", cards(2), queue="a")))
    assert running(ledger) == {"a": 1, "b": 1, "c": 1}


def test_hopeless_pods_do_not_keep_an_entitled_pod_waiting() -> None:
    """A pod within its queue's entitlement is placed even if pods that fit nowhere are pending, and
    the cluster has more nodes than one decision tries."""
    ledger = Ledger(*(rack(f"n{number}", 1) for number in range(70)))
    ledger.play(queue("a", deserved=35), queue("b", deserved=5), queue("c", deserved=30))
    settle(ledger.submit(*in_queue("b", 70)))
    ledger.submit(pod("x0", cards(2), queue="b"), pod("x1", cards(3), queue="b"))
    settle(ledger.submit(*in_queue("c", 1)))
    assert running(ledger) == {"b": 69, "c": 1}


def test_a_gang_takes_back_as_soon_as_it_may() -> None:
    """The scheduler searches again for a gang when the borrowers' minimum runtime has passed, or
    when the gang's queue deserves more."""
    ledger = Ledger(rack("n1", 2), queue("a", deserved=2), queue("b", safe_s=60))
    ledger.engine.tell_time(_time(0))
    ledger.submit(*in_queue("b", 2)).settle()
    ledger.engine.tell_time(_time(30))
    ledger.play(gang("team/job", 2, queue="a"))
    ledger.submit(*(member(f"m{n}", cards(), queue="a") for n in range(2))).settle()
    assert not evictions(ledger)
    ledger.engine.tell_time(_time(61))
    ledger.settle()
    assert len(evictions(ledger)) == 2

    ledger = Ledger(rack("n1", 2), queue("a", deserved=1), queue("b"))
    ledger.submit(*in_queue("b", 2)).settle()
    ledger.play(gang("team/job", 2, queue="a"))
    ledger.submit(*(member(f"m{n}", cards(), queue="a") for n in range(2))).settle()
    assert not evictions(ledger)
    ledger.play(queue("a", deserved=2)).settle()
    assert len(evictions(ledger)) == 2


def test_queues_that_name_different_resources_do_not_evict_by_turns() -> None:
    """A pod evicts borrowers only if its queue then stays within its entitlement of every resource
    that any queue names."""
    ledger = Ledger(rack("n1", 8), observed("n1", cpu_milli=64_000))
    ledger.play(queue("a", deserved=4), queue("b", deserved={"cpu": 64_000}))
    heavy = [pod(f"a-{n}", queue="a", shape=wants(cards(), cpu_milli=16_000)) for n in range(4)]
    light = [pod(f"b-{n}", queue="b", shape=wants(cards(), cpu_milli=8_000)) for n in range(8)]
    settle(ledger.submit(*light))
    settle(ledger.submit(*heavy))
    before = len(evictions(ledger))
    for round_ in range(3):
        waiting = [each for each in light if each.uid not in ledger.state.pods]
        again = [structs.replace(each, uid=f"{each.uid}/{round_}") for each in waiting]
        settle(ledger.submit(*again))
    assert len(evictions(ledger)) == before


def test_nodes_that_take_no_pods_are_not_divided() -> None:
    """Queues divide only the devices of nodes that are ready and not cordoned."""
    ledger = Ledger(rack("n1", 4), rack("n2", 4), NodeCordoned(node="n2", by="ann", reason="x"))
    ledger.play(queue("a", deserved=4), queue("b", deserved=4))
    settle(ledger.submit(*in_queue("b", 8)))
    settle(ledger.submit(*in_queue("a", 8)))
    assert running(ledger) == {"a": 2, "b": 2}


def test_a_full_model_name_asks_for_what_a_part_of_it_deserves() -> None:
    """If a queue deserves devices of a model named in part, such as `A100`, its pods may take them
    back under the model's full name."""
    full = "NVIDIA-A100-SXM4-40GB"
    ledger = Ledger(rack("n1", 1, model=full), queue("a", cards_deserved={"A100": 1}, weight=0))
    settle(ledger.play(queue("b")).submit(*in_queue("b", 1)))
    made = shape(cards(), devices=DeviceConstraints(use_types=(full,)))
    settle(ledger.submit(pod("a-0", queue="a", shape=made)))
    assert running(ledger) == {"a": 1}


def test_gangs_do_not_evict_each_other_by_turns() -> None:
    """A gang that is larger than its queue's entitlement evicts no other gang, even if the GPUs of
    that gang are enough for all its pods."""
    ledger = Ledger(rack("n1", 8), queue("a", deserved=4), queue("b", deserved=4))
    ledger.play(gang("team/a", 6, queue="a"), gang("team/b", 8, queue="b"))
    settle(ledger.submit(*(member(f"b{n}", cards(), group="team/b") for n in range(8))))
    ledger.submit(*(member(f"a{n}", cards(), group="team/a") for n in range(6))).settle()
    assert not evictions(ledger)
    ledger.play(gang("team/fit", 4, queue="a"))
    settle(ledger.submit(*(member(f"c{n}", cards(), group="team/fit") for n in range(4))))
    assert len(evictions(ledger)) == 8
    ledger.submit(*(member(f"again{n}", cards(), group="team/b") for n in range(8))).settle()
    assert len(evictions(ledger)) == 8
    assert all(ledger.state.pods[f"c{n}"].placement for n in range(4))
