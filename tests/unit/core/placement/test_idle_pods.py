"""Tests of which pending pods may evict idle pods, and in which order idle pods are evicted."""

from itertools import chain
from typing import Any

import pytest

from apportion.core.explain.why import why
from apportion_schemas import BudgetObserved, LabelExpression, PodEvicted, PodPlaced, PodSubmitted
from tests.support.fleet import rack
from tests.support.golden import Golden
from tests.support.idling import at, idle_for, looking, report, used
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, gang, member, pod
from tests.unit.core.placement.limits.test_queue_tree import queue


def whole(uid: str, count: int = 1, **fields: Any) -> PodSubmitted:
    return pod(uid, cards(count), **fields)


def full(*pods: PodSubmitted, action: str = "reclaim", nodes: int = 1, width: int = 2) -> Ledger:
    """Return nodes with `width` devices each that these pods fill, in a ledger that looks for pods
    without work for four hours."""
    ledger = Ledger(looking(action=action), *(rack(f"n{at}", width) for at in range(nodes)))
    for each in pods:
        ledger.submit(each).settle()
    return ledger


def evicted(ledger: Ledger) -> list[tuple[str, str, str]]:
    """Return every eviction so far: the evicted pod, the reason, and the pod that needs room."""
    found = [each for each in ledger.events if isinstance(each, PodEvicted)]
    return [(each.pod, each.reason, each.beneficiary) for each in found]


def test_a_pending_pod_of_the_same_priority_evicts_an_idle_one() -> None:
    """A pod that fits nowhere evicts an idle pod of its priority, and gets its devices."""
    ledger = idle_for(full(whole("works"), whole("idle")), 5, "idle")
    ledger.submit(whole("new")).settle()
    (event,) = (each for each in ledger.events if isinstance(each, PodEvicted))
    assert (event.pod, event.reason, event.beneficiary) == ("idle", "idle", "new")
    assert (event.idle_s, event.notice_s) == (5 * 3_600, 0)
    ledger.gone("idle").settle()
    assert ledger.where("new") == "n0"
    assert len(evicted(ledger)) == 1


def test_a_pod_that_waits_already_evicts_one_that_becomes_idle() -> None:
    """A pod that was refused before evicts another one as soon as this one counts as idle."""
    ledger = full(whole("works"), whole("idle")).submit(whole("new")).settle()
    idle_for(ledger, 3, "idle").settle()
    assert evicted(ledger) == []
    idle_for(ledger, 1, "idle", first=4).settle()
    assert evicted(ledger) == [("idle", "idle", "new")]


@pytest.mark.parametrize("action", ["notify", ""])
def test_no_pod_is_evicted_unless_the_configuration_allows_it(action: str) -> None:
    """Idle pods of the same priority stay if the action is `notify`, or idle pods are ignored."""
    ledger = full(whole("a"), whole("b"), action="notify")
    ledger = idle_for(ledger, 9, "a", "b")
    ledger.play(looking(action=action) if action else looking("")).submit(whole("new")).settle()
    assert evicted(ledger) == []


@pytest.mark.parametrize("fields", [
    {"priority": 1}, {"queue": "other"}, {"evictable": False},
    {"labels": {"apportion.dev/idle": "keep"}},
], ids=["priority", "queue", "evictable", "label"])  # fmt: skip
def test_which_idle_pods_stay(fields: dict[str, Any]) -> None:
    """These stay although they are idle: pods of higher priority, pods of other queues, pods that
    may not be evicted, and pods with the label."""
    ledger = idle_for(full(whole("works"), whole("idle", **fields)), 5, "idle")
    assert evicted(ledger.submit(whole("new")).settle()) == []


def test_a_pod_that_never_preempts_evicts_no_idle_pod() -> None:
    """A pod with `preemptionPolicy: Never` waits."""
    ledger = idle_for(full(whole("works"), whole("idle")), 5, "idle")
    assert evicted(ledger.submit(whole("new", preempts=False)).settle()) == []


def test_idle_pods_are_evicted_first() -> None:
    """Of pods of lower priority, the idle ones are evicted first, whatever their priority."""
    pods = [whole(f"p{number}", priority=number) for number in range(4)]
    ledger = idle_for(full(*pods, nodes=2), 5, "p2")
    ledger.submit(whole("new", priority=10)).settle()
    assert evicted(ledger) == [("p2", "preempted", "new")]
    assert [each.idle_s for each in ledger.events if isinstance(each, PodEvicted)] == [18_000]


def test_a_queue_takes_back_devices_of_idle_pods_first() -> None:
    """A queue that takes back what another one borrows evicts idle pods of that queue first."""
    ledger = Ledger(
        looking(action="reclaim"), rack("n0", 4), queue("a", deserved=2), queue("b", deserved=2)
    )
    for number in range(4):
        ledger.submit(whole(f"a-{number}", queue="a")).settle()
    idle_for(ledger, 5, "a-1")
    ledger.submit(whole("b-0", queue="b")).settle()
    assert evicted(ledger) == [("a-1", "reclaimed", "b-0")]


def test_an_idle_pod_within_what_its_queue_deserves_stays_for_other_queues() -> None:
    """Idleness takes no devices from a queue that uses no more than it is entitled to."""
    ledger = Ledger(
        looking(action="reclaim"), rack("n0", 4), queue("a", deserved=2), queue("b", deserved=2)
    )
    ledger.submit(*(whole(f"{name}-{n}", queue=name) for name in "ab" for n in range(2))).settle()
    idle_for(ledger, 5, "a-0", "a-1")
    ledger.submit(whole("b-2", queue="b")).settle()
    assert evicted(ledger) == []


def test_a_pod_beyond_the_limit_of_its_queue_evicts_no_idle_pods() -> None:
    """A pod that its queue's `capability` refuses waits, although idle pods use what is limited."""
    ledger = Ledger(looking(action="reclaim"), rack("n0", 4), queue("a", capability=2))
    ledger.submit(*(whole(f"a-{number}", queue="a") for number in range(2))).settle()
    idle_for(ledger, 5, "a-0", "a-1")
    assert evicted(ledger.submit(whole("a-2", queue="a")).settle()) == []


def test_a_gang_is_evicted_only_if_all_of_its_pods_are_idle() -> None:
    """An idle member of a gang stays while another member works; then the gang leaves whole."""
    ledger = full(width=2, nodes=2)
    ledger.play(gang("team/job", 4)).submit(*(member(f"m{n}", cards()) for n in range(4))).settle()
    idle_for(ledger, 5, "m0", "m1", "m2")
    ledger.submit(whole("new")).settle()
    assert evicted(ledger) == []
    idle_for(ledger, 4, "m0", "m1", "m2", "m3", first=6).settle()
    assert sorted(evicted(ledger)) == [(f"m{n}", "idle", "new") for n in range(4)]


def test_a_gang_stays_while_a_pod_beyond_its_minimum_works() -> None:
    """Of a gang with more pods than its minimum, the others stay while the last one works."""
    ledger = full(width=4)
    ledger.play(gang("team/job", 3)).submit(*(member(f"m{n}", cards()) for n in range(4))).settle()
    for hour in range(1, 7):
        work = (used(ledger, f"m{n}", 95 * (n == 3)) for n in range(4))
        report(ledger, hour, "n0", *chain.from_iterable(work))
    assert evicted(ledger.submit(whole("new")).settle()) == []


def test_the_fold_refuses_to_evict_a_part_of_a_gang_that_works_again() -> None:
    """If one pod of a gang starts to work, the evictions of the others have no effect either."""
    ledger = full(width=2, nodes=2)
    ledger.play(gang("team/job", 4)).submit(*(member(f"m{n}", cards()) for n in range(4))).settle()
    idle_for(ledger, 5, "m0", "m1", "m2", "m3")
    ledger.submit(whole("new")).decide()
    events = [each for each in ledger.consider().events if isinstance(each, PodEvicted)]
    assert len(events) == 4
    report(ledger, 6, ledger.where("m3"), *used(ledger, "m3", 90))
    assert all(map(ledger.contradict, events))


def test_a_gang_evicts_idle_pods_of_its_priority() -> None:
    """A pending gang evicts as many idle pods as it needs, all together."""
    ledger = full(*(whole(f"p{n}") for n in range(4)), nodes=2)
    idle_for(ledger, 5, "p0", "p2", "p3")
    ledger.play(gang("team/job", 3)).submit(*(member(f"m{n}", cards()) for n in range(3))).settle()
    assert sorted(uid for uid, _, _ in evicted(ledger)) == ["p0", "p2", "p3"]


def test_budgets_count_before_idleness() -> None:
    """A pod is evicted on the node where no disruption budget is exceeded, if there is one."""
    ledger = full(
        whole("kept", labels={"app": "db"}), whole("free"), nodes=2, width=1
    ).play(
        BudgetObserved(
            namespace="default", budget="db", allowed=0,
            selector=(LabelExpression(key="app", operator="In", values=("db",)),),
        )
    )  # fmt: skip
    idle_for(ledger, 5, "kept", "free")
    ledger.submit(whole("new")).settle()
    assert evicted(ledger) == [("free", "idle", "new")]


def budget(allowed: int) -> BudgetObserved:
    """Return a disruption budget of the pods with the label `app=db`."""
    selector = (LabelExpression(key="app", operator="In", values=("db",)),)
    return BudgetObserved(namespace="default", budget="db", allowed=allowed, selector=selector)


DB: dict[str, Any] = {"labels": {"app": "db"}}


def test_a_budget_without_allowance_keeps_idle_pods_of_the_same_priority() -> None:
    """A pod that may be evicted only because it is idle stays until its budget allows it. A pod of
    lower priority is evicted anyway if no other eviction helps."""
    ledger = idle_for(full(whole("works"), whole("kept", **DB)).play(budget(0)), 5, "kept")
    assert evicted(ledger.submit(whole("new")).settle()) == []
    assert evicted(ledger.play(budget(1)).settle()) == [("kept", "idle", "new")]
    ledger = idle_for(full(whole("kept", **DB), width=1).play(budget(0)), 5, "kept")
    ledger.submit(whole("new", priority=1)).settle()
    assert evicted(ledger) == [("kept", "preempted", "new")]


@pytest.mark.parametrize(("allowed", "found"), [(1, 0), (2, 2)])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_budget_counts_all_idle_pods_of_a_decision(allowed: int, found: int, nodes: int) -> None:
    """A pod or gang that needs two idle pods of one budget evicts none if one of them must stay."""
    ledger = full(whole("a", **DB), whole("b", **DB), nodes=nodes, width=2 // nodes)
    idle_for(ledger.play(budget(allowed)), 5, "a", "b")
    pods = [member(f"m{n}", cards()) for n in range(2)]
    ledger.play(gang("team/job", 2)).submit(*pods).settle()
    assert len(evicted(ledger)) == found


def test_a_budget_counts_pods_that_are_leaving() -> None:
    """While one pod of a budget leaves, a second idle pod of it stays if only one may leave."""
    ledger = full(whole("a", **DB), whole("b", **DB), nodes=2, width=1).play(budget(1))
    idle_for(ledger, 5, "a", "b").submit(whole("x")).settle()
    ledger.submit(whole("y", labels={"other": "kind"})).settle()
    assert len(evicted(ledger)) == 1


def test_a_pod_gets_the_notice_that_it_asks_for() -> None:
    """The eviction of an idle pod names the notice of its annotation."""
    ledger = idle_for(full(whole("works"), whole("idle", notice_s=300)), 5, "idle")
    ledger.submit(whole("new")).settle()
    assert [each.notice_s for each in ledger.events if isinstance(each, PodEvicted)] == [300]


def test_a_report_that_is_too_old_evicts_nothing() -> None:
    """If a node's reports stop, its pods stay, because they may work again."""
    ledger = idle_for(full(whole("works"), whole("idle")), 5, "idle")
    at(ledger, 8)
    assert evicted(ledger.submit(whole("new")).settle()) == []
    for hour in (6, 7, 8):  # late reports, for example of an agent that was disconnected
        report(ledger, hour, "n0", *used(ledger, "idle"))
    assert evicted(at(ledger, 8).settle()) == [("idle", "idle", "new")]


def test_the_fold_refuses_the_eviction_of_a_pod_that_works_again() -> None:
    """If a pod starts to work before its eviction is stored, every reader ignores the eviction."""
    ledger = idle_for(full(whole("works"), whole("idle")), 5, "idle")
    ledger.submit(whole("new")).decide()
    events = ledger.consider().events
    (event,) = (each for each in events if isinstance(each, PodEvicted))
    report(ledger, 6, "n0", *used(ledger, "idle", 10))
    assert ledger.contradict(event)


@pytest.mark.parametrize("fields", [
    {"queue": "other"}, {"priority": 1}, {"evictable": False},
], ids=["queue", "priority", "evictable"])  # fmt: skip
def test_the_fold_refuses_the_eviction_of_an_idle_pod_that_stays(fields: dict[str, Any]) -> None:
    """Every reader ignores that a scheduler evicts an idle pod of another queue, of higher
    priority, or one that may not be evicted."""
    ledger = idle_for(full(whole("works"), whole("idle", **fields)), 5, "idle")
    ledger.submit(whole("new"))
    victim = ledger.pod("idle")
    placement = victim.placement
    assert placement is not None
    event = PodEvicted(
        pod="idle", namespace="default", name="idle", attempt=placement.attempt, node="n0",
        priority=victim.submitted.priority, beneficiary="new", beneficiary_name="default/new",
        beneficiary_priority=0, nominated="n0", reason="idle", idle_s=18_000,
    )  # fmt: skip
    assert ledger.contradict(event)


def test_two_pods_do_not_take_one_device_from_each_other_in_turn() -> None:
    """If an evicted pod is created again, it waits: the pod on its device is not idle."""
    ledger = idle_for(full(whole("works"), whole("idle")), 5, "idle")
    ledger.submit(whole("new")).settle().gone("idle").settle()
    ledger.submit(whole("again")).settle()
    idle_for(ledger, 3, "new", first=6).settle()
    assert len(evicted(ledger)) == 1
    assert not any(isinstance(each, PodPlaced) and each.pod == "again" for each in ledger.events)


def test_the_owner_sees_that_a_pod_is_idle_and_why_it_is_evicted(golden: Golden) -> None:
    """`why` has how long a pod did no work, whether it may be evicted, and for which pod it is."""
    ledger = idle_for(full(whole("works"), whole("idle")), 5, "idle")
    before = why(ledger.state, ledger.pod("idle"))
    assert before.idle is not None
    assert (before.idle.seconds, before.idle.memory_mib, before.idle.evictable) == (
        18_000, 2_048, True,
    )  # fmt: skip
    ledger.submit(whole("new")).settle()
    after = why(ledger.state, ledger.pod("idle"))
    ledger.play(looking())
    golden({
        "idle": before.sentence,
        "evicted": after.sentence,
        "works": why(ledger.state, ledger.pod("works")).sentence,
    })  # fmt: skip
