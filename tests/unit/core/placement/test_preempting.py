"""Tests of preemption: which pods are evicted, on which node, and when no pod is evicted."""

from typing import Any

import pytest

from apportion.core.explain.why import why
from apportion.core.ledger.state import Phase
from apportion.core.placement.engine import Engine
from apportion.core.placement.queueing.sharding import WHOLE, Shard, key_of, part_of
from apportion_schemas import (
    Ask,
    BudgetObserved,
    Host,
    LabelExpression,
    NodeCordoned,
    NodeExpression,
    PodEvicted,
    PodGone,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    PreferredTerm,
    RefusalCode,
)
from apportion_schemas.quantities import Payload
from tests.support.deciding import decided
from tests.support.fleet import node, observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, gang, member, pod, wants

C = RefusalCode


def low(uid: str, count: int = 1, priority: int = 0, **fields: Any) -> PodSubmitted:
    return pod(uid, cards(count), priority=priority, **fields)


def high(uid: str, count: int = 1, priority: int = 100, **fields: Any) -> PodSubmitted:
    return pod(uid, cards(count), priority=priority, **fields)


def evicted(ledger: Ledger) -> list[tuple[str, str]]:
    """Return every eviction so far as a pair: the evicted pod, and the pod that it makes room
    for."""
    return [(e.pod, e.beneficiary) for e in ledger.events if isinstance(e, PodEvicted)]


def full(nodes: int = 1, width: int = 1, **fields: Any) -> Ledger:
    """Return a ledger with nodes of `width` devices each.

    A low-priority pod named `low-NODE-DEVICE` uses each device."""
    ledger = Ledger(*(rack(f"n{at}", width) for at in range(nodes)))
    for at in range(nodes):
        for slot in range(width):
            ledger.submit(low(f"low-{at}-{slot}", **fields)).settle()
    return ledger


def on(ledger: Ledger, uid: str) -> str:
    return ledger.where(uid)


@pytest.mark.parametrize("shape", [cards(), cards(1, memory_mib=1)])
def test_room_made_for_a_pod_does_not_go_to_an_older_one_that_never_preempts(shape: Ask) -> None:
    """Devices freed for a pod are not given to an equal, older pod that never preempts."""
    ledger = full()
    ledger.submit(pod("older", shape, priority=100, preempts=False), high("younger")).settle()
    assert evicted(ledger) == [("low-0-0", "younger")]
    ledger.gone("low-0-0").settle()
    assert (on(ledger, "older"), on(ledger, "younger")) == ("", "n0")


def test_H8_a_pod_of_lower_priority_goes_and_then_the_other_has_its_place() -> None:
    """A lower-priority pod is evicted once and keeps its devices until it ends; then the
    high-priority pod is placed."""
    ledger = full()
    ledger.submit(high("h")).settle()
    assert evicted(ledger) == [("low-0-0", "h")]
    (event,) = (e for e in ledger.events if isinstance(e, PodEvicted))
    assert (event.node, event.nominated, event.attempt) == ("n0", "n0", 1)
    assert (event.priority, event.beneficiary_priority) == (0, 100)
    assert on(ledger, "low-0-0") == "n0"
    assert ledger.decide() == []
    ledger.gone("low-0-0").settle()
    assert on(ledger, "h") == "n0"
    assert not ledger.state.evictions
    assert not ledger.state.nominated


def test_the_refusal_comes_before_the_eviction() -> None:
    """The refusal of a pod is appended before the evictions for that pod."""
    ledger = full()
    ledger.submit(high("h")).settle()
    kinds = [type(event) for event in ledger.events]
    assert kinds.index(PodRefused) < kinds.index(PodEvicted)


@pytest.mark.parametrize("priority", [100, 101])
def test_nobody_goes_for_a_pod_of_the_same_priority_or_less(priority: int) -> None:
    """A pod does not cause the eviction of pods whose priority is equal to its own or higher."""
    ledger = full(priority=priority)
    ledger.submit(high("h")).settle()
    assert evicted(ledger) == []


def test_nobody_goes_for_a_pod_of_another_queue() -> None:
    """A pod does not cause the eviction of pods of other queues, because weights divide the fleet
    between queues."""
    ledger = Ledger(rack("n1", 1), low("low", queue="training")).settle()
    ledger.submit(high("other")).settle()
    assert evicted(ledger) == []
    ledger.submit(high("own", queue="training")).settle()
    assert evicted(ledger) == [("low", "own")]


def test_what_a_queue_gets_by_its_share_is_not_taken_back_at_once() -> None:
    """A pod placed because its queue was below its fair share is not evicted for another queue."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), low("a", 1, 9), low("b", 1, 9)).settle()
    ledger.submit(high("urgent", 1, 5), low("next", queue="training")).settle()
    ledger.gone("b").settle()
    assert (ledger.pod("next").phase, evicted(ledger)) == (Phase.PLACED, [])


def test_nobody_goes_for_a_pod_that_never_preempts() -> None:
    """A pod with `preemptionPolicy: Never` evicts no pod, but keeps its position in the queue."""
    ledger = full()
    ledger.submit(high("h", preempts=False), low("l")).settle()
    assert evicted(ledger) == []
    ledger.gone("low-0-0").settle()
    assert (on(ledger, "h"), on(ledger, "l")) == ("n0", "")


def test_a_pod_that_never_preempts_stands_in_nobodys_way() -> None:
    """A pod with `preemptionPolicy: Never` does not keep other pods of the same shape from
    preempting."""
    ledger = full()
    ledger.submit(high("patient", preempts=False), high("h")).settle()
    assert evicted(ledger) == [("low-0-0", "h")]


def test_who_is_not_evictable_goes_for_nobody() -> None:
    """The scheduler does not evict a pod that is marked as not evictable, nor a gang that contains
    such a pod."""
    ledger = full(evictable=False)
    ledger.report(rack("n1", 1), rack("n2", 1)).play(gang(min_available=2))
    ledger.submit(member("w-0", cards()), member("w-1", cards(), evictable=False)).settle()
    ledger.submit(high("h")).settle()
    assert evicted(ledger) == []


def test_nobody_goes_in_vain() -> None:
    """The scheduler evicts no pod from a node that would be too small for the pending pod even when
    empty."""
    ledger = full(width=2)
    ledger.submit(high("h", count=3)).settle()
    assert evicted(ledger) == []


def test_no_more_go_than_have_to() -> None:
    """The scheduler evicts only as many pods as needed, and those of the lowest priority."""
    ledger = Ledger(rack("n0", 4))
    for at, priority in enumerate((5, 1, 9, 3)):
        ledger.submit(low(f"low-{at}", priority=priority)).settle()
    ledger.submit(high("h", count=2)).settle()
    assert sorted(evicted(ledger)) == [("low-1", "h"), ("low-3", "h")]


Held = tuple[tuple[int, int], ...]
"""Low-priority pods on a node of two devices: priority and device count of each."""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (((7, 2),), ((0, 2),)),  # the lower highest priority
        (((7, 1), (7, 1)), ((7, 1), (3, 1))),  # the lower sum
        (((3, 1), (3, 1)), ((3, 2),)),  # fewer pods
        (((-5, 1), (-5, 1)), ((-5, 2),)),  # fewer pods, even if more would have a lower sum
    ],
)
def test_which_node_is_cleared(first: Held, second: Held) -> None:
    """As in kube-scheduler, the scheduler frees the node whose victims have the lowest top
    priority, then the lowest sum of priorities, then the smallest number."""
    ledger = Ledger()
    for at, held in enumerate((first, second)):
        ledger.report(rack(f"n{at}", 2))
        for slot, (priority, count) in enumerate(held):
            ledger.submit(low(f"low-{at}-{slot}", count, priority)).settle()
    ledger.submit(high("h", count=2)).settle()
    assert {e.nominated for e in ledger.events if isinstance(e, PodEvicted)} == {"n1"}


def test_who_started_last_goes_of_equals() -> None:
    """Of equal pods, the scheduler evicts the youngest."""
    ledger = Ledger(rack("n0", 1))
    ledger.submit(low("old")).settle()
    ledger.report(rack("n1", 1)).submit(low("young")).settle()
    ledger.pod("old").placed_time = "2025-01-01T00:00:00.000000Z"
    ledger.submit(high("h")).settle()
    assert evicted(ledger) == [("young", "h")]


def budget(allowed: int, app: str = "a") -> BudgetObserved:
    """Return a disruption budget that allows this many evictions of the application's pods."""
    selector = (LabelExpression(key="app", operator="In", values=(app,)),)
    return BudgetObserved(namespace="default", budget="b", selector=selector, allowed=allowed)


def test_a_disruption_budget_spares_whom_it_can() -> None:
    """If a disruption budget protects a pod, the scheduler evicts another pod instead, even one of
    higher priority."""
    ledger = full(nodes=1)
    ledger.pod("low-0-0")
    ledger.report(rack("n1", 1)).submit(low("guarded", labels={"app": "a"})).settle()
    ledger.gone("low-0-0").submit(low("other", priority=50)).settle()
    ledger.play(budget(0)).submit(high("h")).settle()
    assert evicted(ledger) == [("other", "h")]


def test_a_disruption_budget_forbids_nothing() -> None:
    """If all suitable pods are protected, the scheduler evicts one anyway. The event names the
    disruption budget that it exceeds."""
    ledger = full(labels={"app": "a"})
    ledger.play(budget(0)).submit(high("h")).settle()
    (event,) = (e for e in ledger.events if isinstance(e, PodEvicted))
    assert event.budgets == ("b",)


def test_a_budget_that_allows_it_is_not_exceeded() -> None:
    """If a disruption budget allows one eviction, only the second one exceeds it."""
    ledger = full(width=2, labels={"app": "a"})
    ledger.play(budget(1)).submit(high("h", count=2)).settle()
    found = [e.budgets for e in ledger.events if isinstance(e, PodEvicted)]
    assert sorted(found) == [(), ("b",)]


def test_the_room_is_kept_for_whom_it_is_made() -> None:
    """Freed devices are reserved for the pod for which others were evicted. Pods of equal or lower
    priority may not use them."""
    ledger = full(width=2)
    ledger.submit(high("h", count=2)).settle()
    ledger.gone("low-0-0").submit(low("l"), high("same")).settle()
    assert (on(ledger, "l"), on(ledger, "same")) == ("", "")
    assert ledger.refusal("l").reasons == {C.NODE_NOMINATED: 1}
    ledger.gone("low-0-1").settle()
    assert on(ledger, "h") == "n0"
    assert ledger.refusal("l").reasons == {C.DEVICE_IN_USE: 1}


def test_a_pod_of_higher_priority_may_take_the_room() -> None:
    """A pod of higher priority may use devices that were freed for another pod.

    The other pod then stays pending."""
    ledger = full()
    ledger.submit(high("h")).settle()
    ledger.submit(high("higher", priority=500))
    ledger.gone("low-0-0").settle()
    assert (on(ledger, "higher"), on(ledger, "h")) == ("n0", "")


def test_each_of_several_has_a_node_of_its_own() -> None:
    """If several pods preempt at once, each gets a node of its own: three pods on two nodes cause
    two evictions."""
    ledger = full(nodes=2)
    ledger.submit(high("h1"), high("h2"), high("h3")).settle()
    assert sorted(beneficiary for _, beneficiary in evicted(ledger)) == ["h1", "h2"]
    ledger.gone("low-0-0", "low-1-0").settle()
    assert {on(ledger, "h1"), on(ledger, "h2")} == {"n0", "n1"}


def test_a_node_is_kept_no_longer_than_the_pod_waits() -> None:
    """If the pod for which a node was freed ends, other pods may use the node."""
    ledger = full(width=2)
    ledger.submit(high("h", count=2)).settle()
    ledger.gone("low-0-0").submit(low("l")).settle()
    assert on(ledger, "l") == ""
    ledger.gone("h").settle()
    assert on(ledger, "l") == "n0"


def test_another_search_where_the_room_has_gone() -> None:
    """If another node becomes free before the evicted pods have ended, the preempting pod is placed
    there."""
    ledger = full()
    ledger.submit(high("h")).settle()
    ledger.report(rack("n1", 1)).submit(low("late")).settle()
    assert on(ledger, "late") == ""  # the preempting pod goes there itself
    assert on(ledger, "h") == "n1"


def test_a_nomination_ends_with_a_refusal() -> None:
    """If a node freed for a pod is cordoned, the pod is refused and the node's reservation ends."""
    ledger = full()
    ledger.submit(high("h")).settle()
    ledger.play(NodeCordoned(node="n0", by="ada", reason="fans")).gone("low-0-0").settle()
    assert ledger.state.nominated == {}
    assert ledger.refusal("h").reasons == {C.NODE_CORDONED: 1}
    ledger.report(rack("n1", 1))
    ledger.settle()
    assert on(ledger, "h") == "n1"


def test_H8_a_gang_goes_whole() -> None:
    """If a pod of a gang must be evicted, the scheduler evicts the whole gang, even if one device
    would suffice."""
    ledger = Ledger(rack("n0", 1), rack("n1", 1), gang(min_available=2))
    ledger.submit(member("w-0", cards()), member("w-1", cards())).settle()
    ledger.submit(high("h")).settle()
    assert sorted(evicted(ledger)) == [("w-0", "h"), ("w-1", "h")]
    assert {e.nominated for e in ledger.events if isinstance(e, PodEvicted)} in ({"n0"}, {"n1"})


def elastic(*tasks: str, **fields: Any) -> Ledger:
    """Return a ledger with one node for each task, and a running gang with a pod of each of these
    tasks: `w-0`, `w-1`, …"""
    ledger = Ledger(*(rack(f"n{at}", 1) for at in range(len(tasks))), gang(**fields))
    for at, task in enumerate(tasks):
        ledger.submit(member(f"w-{at}", cards(), task=task)).settle()
    return ledger.settle()


def test_pods_beyond_the_minimum_of_a_gang_go_alone() -> None:
    """The scheduler evicts a gang's newest pods one by one while the gang keeps its minimum. Then
    it evicts the rest of the gang as a whole."""
    ledger = elastic("", "", "", "", min_available=2)
    for at in range(2):
        ledger.submit(high(f"h-{at}")).settle()
        ((first, _),) = evicted(ledger)[at:]
        ledger.gone(first).settle()
    assert {uid for uid, _ in evicted(ledger)} == {"w-2", "w-3"}
    ledger.submit(high("h-2")).settle()
    assert sorted(evicted(ledger)[2:]) == [("w-0", "h-2"), ("w-1", "h-2")]


def test_pods_beyond_the_minimum_go_before_the_minimum_of_another_gang() -> None:
    """Of pods with equal priority, the scheduler first evicts those beyond the minimum of any gang,
    even if the needed pods of another gang started later."""
    ledger = Ledger(rack("n0", 6), gang("team/a"), gang("team/b"))
    for name in ("a", "b"):
        for at in range(3):
            ledger.submit(member(f"{name}-{at}", cards(), group=f"team/{name}")).settle()
    ledger.submit(high("h", 2)).settle()
    assert sorted(evicted(ledger)) == [("a-2", "h"), ("b-2", "h")]


def test_a_gang_that_is_only_disrupted_as_a_whole() -> None:
    """With `disruptionMode: all`, a gang is evicted whole, even its pods beyond the minimum."""
    ledger = elastic("", "", "", min_available=2, whole=True)
    ledger.submit(high("h")).settle()
    assert sorted(evicted(ledger)) == [(f"w-{n}", "h") for n in range(3)]


def test_the_minimum_of_each_task_is_kept() -> None:
    """A pod is beyond its gang's minimum only if its task keeps its own minimum, too."""
    ledger = elastic("worker", "worker", "worker", "ps", min_available=2, min_tasks={"ps": 1})
    ledger.submit(high("h-0"), high("h-1")).settle()
    assert {uid for uid, _ in evicted(ledger)} == {"w-1", "w-2"}


def test_no_pod_of_an_evicted_gang_stays() -> None:
    """If the scheduler evicts a pod that its gang needs, it also evicts the gang's pods beyond the
    minimum."""
    ledger = Ledger(rack("n0", 4), rack("n1", 1), gang(min_available=2))
    ledger.submit(member("w-0", cards(3)), member("w-1", cards())).settle()
    ledger.submit(member("w-2", cards())).settle()
    ledger.submit(high("h", 3)).settle()
    assert sorted(evicted(ledger)) == [(f"w-{n}", "h") for n in range(3)]


def test_a_single_pod_goes_rather_than_a_gang() -> None:
    """If either a single pod or a gang could be evicted, the scheduler evicts the single pod."""
    ledger = Ledger(rack("n0", 1), rack("n1", 1), gang(min_available=2))
    ledger.submit(member("w-0", cards()), member("w-1", cards())).settle()
    ledger.report(rack("n2", 1)).submit(low("single")).settle()
    ledger.submit(high("h")).settle()
    assert evicted(ledger) == [("single", "h")]


def test_a_gang_is_as_important_as_its_most_important_pod() -> None:
    """A gang has the priority of its most important pod: it is evicted only for a pod of higher
    priority than that."""
    ledger = Ledger(rack("n0", 1), rack("n1", 1), gang(min_available=2))
    ledger.submit(member("w-0", cards()), member("w-1", cards(), priority=900)).settle()
    ledger.submit(high("h")).settle()
    assert evicted(ledger) == []


def test_room_for_a_whole_gang() -> None:
    """For a pending gang, the scheduler evicts enough pods for all of its members, which are then
    placed together."""
    ledger = full(nodes=2)
    ledger.play(gang(min_available=2))
    workers = [member(f"w-{n}", cards(), priority=100) for n in range(2)]
    ledger.submit(*workers).settle()
    assert {uid for uid, _ in evicted(ledger)} == {"low-0-0", "low-1-0"}
    ledger.gone("low-0-0").settle()
    assert (on(ledger, "w-0"), on(ledger, "w-1")) == ("", "")
    ledger.gone("low-1-0").settle()
    assert {on(ledger, "w-0"), on(ledger, "w-1")} == {"n0", "n1"}


@pytest.mark.parametrize("free", [1, 2])
def test_free_nodes_are_kept_for_the_gang_that_evicts(free: int) -> None:
    """While pods are evicted for a gang, the free nodes that its other pods need are reserved for
    them. Otherwise the gang would evict again."""
    ledger = full(nodes=1)
    ledger.play(*(rack(f"free-{at}", 1) for at in range(free)))
    ledger.play(gang(min_available=1 + free))
    ledger.submit(*(member(f"w-{n}", cards(), priority=100) for n in range(1 + free))).settle()
    assert evicted(ledger) == [("low-0-0", f"w-{free}")]
    ledger.submit(high("other")).settle()
    assert on(ledger, "other") == ""
    ledger.gone("low-0-0").settle()
    assert "" not in {on(ledger, f"w-{n}") for n in range(1 + free)}
    assert len(evicted(ledger)) == 1


def test_a_kept_node_takes_pods_for_which_it_has_room() -> None:
    """A node that is reserved for a pod of a gang, and where no pod is evicted, still accepts pods
    that leave enough idle devices."""
    ledger = full(nodes=1, width=2)
    ledger.play(rack("free", 4), gang(min_available=2))
    ledger.submit(member("w-0", cards(3), priority=100), member("w-1", cards(2), priority=100))
    ledger.settle().submit(high("large", 2)).settle().submit(high("small")).settle()
    assert (on(ledger, "large"), on(ledger, "small")) == ("", "free")
    ledger.gone("low-0-0").gone("low-0-1").settle()
    assert (on(ledger, "w-0"), on(ledger, "w-1")) == ("free", "n0")


def test_the_node_that_a_pod_will_get_is_kept() -> None:
    """If evicting a gang frees several nodes, the scheduler reserves the node that the pending pod
    prefers, not the node of the first evicted pod."""
    ledger = Ledger(rack("n0", 1), rack("n1", 1), observed("n1", labels={"fast": "yes"}))
    ledger.play(gang("team/low", 2), gang("team/high", 2))
    ledger.submit(*(member(f"l-{n}", cards(), group="team/low") for n in range(2))).settle()
    term = PreferredTerm(weight=10, term=(NodeExpression(key="fast", operator="Exists"),))
    pods = [
        pod(f"h-{n}", group="team/high", priority=100, shape=wants(cards(), preferred=(term,)))
        for n in range(2)
    ]
    ledger.submit(*pods).settle()
    assert set(ledger.state.nominated.values()) == {"n0", "n1"}


def test_a_gang_that_has_waited_in_vain_is_refused_once() -> None:
    """If a gang does not fit after its evictions, one refusal ends the nominations of all its
    pods."""
    ledger = full(nodes=1)
    ledger.play(*(rack(f"free-{at}", 1) for at in range(3)), gang(min_available=4))
    ledger.submit(*(member(f"w-{n}", cards(), priority=100) for n in range(4))).settle()
    assert len(ledger.state.nominated) == 4
    ledger.submit(high("more", priority=900)).gone("low-0-0").settle()
    refusals = [each for each in ledger.events if isinstance(each, PodRefused)]
    ledger.settle()
    assert not ledger.state.nominated
    assert len([each for each in refusals if each.name.startswith("w-")]) <= 5


def test_all_nodes_of_an_evicted_gang_are_kept_for_the_next() -> None:
    """If one gang is evicted for several pods of another gang, every freed node is reserved for
    these pods. The nodes stay reserved after the first evicted pods have ended."""
    ledger = Ledger(rack("n0", 1), rack("n1", 1), gang("team/low", 2), gang("team/high", 2))
    ledger.submit(*(member(f"l-{n}", cards(), group="team/low") for n in range(2))).settle()
    pods = [member(f"h-{n}", cards(), group="team/high", priority=100) for n in range(2)]
    ledger.submit(*pods).settle()
    assert evicted(ledger) == [("l-0", "h-0"), ("l-1", "h-0")]
    for uid in ("l-1", "l-0"):
        ledger.gone(uid).submit(high(f"after {uid}")).settle()
    assert {on(ledger, "h-0"), on(ledger, "h-1")} == {"n0", "n1"}


def test_nodes_stay_kept_if_a_pod_of_the_gang_is_replaced() -> None:
    """If the pod for which others are evicted is deleted, the nodes of the gang's other pods stay
    reserved until the evicted pods have ended. A replacement then completes the gang."""
    ledger = full(nodes=1)
    ledger.play(rack("free", 1), gang(min_available=2))
    ledger.submit(*(member(f"w-{n}", cards(), priority=100) for n in range(2))).settle()
    assert evicted(ledger) == [("low-0-0", "w-1")]
    ledger.gone("w-1").submit(high("other")).settle()
    assert on(ledger, "other") == ""
    ledger.submit(member("w-2", cards(), priority=100)).gone("low-0-0").settle()
    assert {on(ledger, uid) for uid in ("w-0", "w-2")} == {"free", "n0"}


def test_evictions_for_a_placed_pod_hold_up_no_other() -> None:
    """If a pod of a gang is placed before its evicted pod has ended, the gang's other pods do not
    wait for that pod."""
    ledger = full(nodes=2)
    ledger.play(gang(min_available=2))
    ledger.submit(*(member(f"w-{n}", cards(), priority=100) for n in range(2))).settle()
    ledger.report(rack("n2", 1), rack("n3", 1)).settle()
    assert {on(ledger, f"w-{n}") for n in range(2)} == {"n2", "n3"}
    assert not ledger.state.nominated


def test_nodes_of_a_gang_are_free_again_if_it_does_not_fit_after_all() -> None:
    """If a node is lost while pods are evicted for a gang, the gang no longer fits. Its other nodes
    are then free for other pods."""
    ledger = full(nodes=1)
    ledger.play(rack("free", 1), gang(min_available=2))
    ledger.submit(*(member(f"w-{n}", cards(), priority=100) for n in range(2))).settle()
    ledger.play(NodeCordoned(node="n0", by="ann", reason="broken"))
    ledger.submit(high("other")).gone("low-0-0").settle()
    assert on(ledger, "other") == "free"
    assert not ledger.state.nominated


def test_nobody_goes_for_a_gang_that_would_not_fit_whole() -> None:
    """If a gang would not fit even after all possible evictions, the scheduler evicts no pod."""
    ledger = full(nodes=2)
    ledger.play(gang(min_available=3))
    ledger.submit(*(member(f"w-{n}", cards(), priority=100) for n in range(3))).settle()
    assert evicted(ledger) == []


def test_a_decision_that_is_lost_is_made_again() -> None:
    """If the evictions of a decision are not appended, the state is unchanged, and a new engine
    makes the same decision."""
    ledger = full()
    ledger.submit(high("h"))
    while not any(isinstance(event, PodRefused) for event in ledger.decide()):
        pass
    again: list[Payload] = [*ledger.consider().events]
    assert [type(event) for event in again] == [PodEvicted]
    assert ledger.decide() == again


def test_cpu_alone_is_room_enough() -> None:
    """A pod without devices can also preempt, and can also be evicted."""
    ledger = Ledger(node("n0", host=Host(cpu_milli=1000, memory_mib=1000, pods=9)))
    ledger.submit(pod("l", shape=wants(cpu_milli=800))).settle()
    ledger.submit(pod("h", shape=wants(cpu_milli=500), priority=1)).settle()
    assert evicted(ledger) == [("l", "h")]
    ledger.gone("l").settle()
    assert any(isinstance(e, PodPlaced) and e.pod == "h" for e in ledger.events)


def test_what_the_fold_refuses() -> None:
    """The fold refuses an eviction for a pod that has ended, or whose priority is no higher."""
    ledger = full()
    ledger.submit(low("same"), high("h"))
    event = PodEvicted(
        pod="low-0-0", namespace="default", name="low-0-0", attempt=1, node="n0", priority=0,
        beneficiary="same", beneficiary_name="default/same", beneficiary_priority=9,
        nominated="n0", reason="preempted",
    )  # fmt: skip
    equal = ledger.contradict(event)
    assert equal.count("priority 0") == 2
    ledger.settle()
    ledger.gone("h")
    again = PodEvicted(
        pod="low-0-0", namespace="default", name="low-0-0", attempt=1, node="n0", priority=0,
        beneficiary="h", beneficiary_name="default/h", beneficiary_priority=100, nominated="n0",
        reason="preempted",
    )  # fmt: skip
    assert "is evicted already" in ledger.contradict(again)


def test_why_tells_both_sides(golden: Golden) -> None:
    """`why` explains an eviction both for the evicted pod and for the pod that needs the room."""
    ledger = full(width=2)
    ledger.submit(high("h", count=2)).settle()
    goes, waits = (why(ledger.state, ledger.pod(uid)) for uid in ("low-0-0", "h"))
    assert goes.evicted is not None
    told = {"low-0-0 goes": goes.sentence, "h waits": waits.sentence}
    assert [each.pod for each in waits.evicts] == ["low-0-0", "low-0-1"]
    ledger.play(observed("n0", version=1))
    goes, waits = (why(ledger.state, ledger.pod(uid)) for uid in ("low-0-0", "h"))
    told["Kubernetes ends it"] = goes.sentence
    assert not goes.evicted_in_vain
    ledger.gone("h")
    goes = why(ledger.state, ledger.pod("low-0-0"))
    told["h has gone"] = goes.sentence
    golden(told)
    assert goes.evicted_in_vain
    assert "default/low-0-0, default/low-0-1" in waits.sentence


def test_whoever_takes_over_a_pod_gives_it_the_room_that_was_made() -> None:
    """If a pod moves to another scheduler, that scheduler places the pod on the devices that were
    freed for it."""
    ledger = full()
    ledger.submit(high("h")).settle()
    own = Shard(frozenset({part_of(key_of(ledger.pod("h")))}))
    other = Engine(ledger.state)
    other.own(Shard(WHOLE.parts - own.parts))
    ledger.engine.own(own)
    for said in (low("like"), PodGone(uid="low-0-0")):
        other.observe(ledger.take(said))
        for refused in decided(other).events:
            assert isinstance(refused, PodRefused)
            other.observe(ledger.take(refused))
    other.own(WHOLE)
    assert [placed.uid for placed in decided(other).placed] == ["h"]


def test_pods_that_become_ours_are_evicted_for_although_nothing_else_happened() -> None:
    """A scheduler that takes over a refused pod evicts other pods for it at once, without waiting
    for an event."""
    ledger = full()
    ledger.submit(high("h"))
    assert [type(event) for event in ledger.decide()] == [PodRefused]
    own = Shard(frozenset({part_of(key_of(ledger.pod("h")))}))
    other = Engine(ledger.state)
    other.own(Shard(WHOLE.parts - own.parts))
    assert decided(other).events == []
    other.own(WHOLE)
    (event,) = decided(other).events
    assert isinstance(event, PodEvicted)
    assert (event.pod, event.beneficiary) == ("low-0-0", "h")
