"""Tests of queues: their limits, the order between queues, and when the scheduler retries pending
pods."""

from typing import Any

import pytest
from msgspec import structs

from apportion.core.explain.text import words
from apportion.core.placement.fit_query import ExternalChoices
from apportion.core.placement.limits.queues import Queues
from apportion_schemas import (
    Ask,
    Configuration,
    ConfigurationChanged,
    NodeCordoned,
    PodRefused,
    PodSubmitted,
    QueueObserved,
    QueueShortage,
    RefusalCode,
)
from apportion_schemas.configuration import NvidiaConfiguration
from apportion_schemas.quantities import Payload
from tests.support.fleet import A30, A100_40, A100_80, T4, gpu, node, npu, observed, rack
from tests.support.ledger_of import Ledger, placed
from tests.support.pods import ask, cards, gang, member, pod, share, wants
from tests.support.pods import placed as placement

C = RefusalCode


def queue(name: str = "ml", **fields: Any) -> QueueObserved:
    return QueueObserved(queue=name, **fields)


def limited(**capability: int) -> QueueObserved:
    """Return the event of queue `ml` with these limits.

    In a resource's name, `_` stands for a dot and `__` for a slash."""
    names = {name.replace("__", "/").replace("_", "."): most for name, most in capability.items()}
    return queue(capability=names)


def queued(uid: str, *asks: Ask, **fields: Any) -> PodSubmitted:
    return pod(uid, *asks, **({"queue": "ml"} | fields))


def shortage(ledger: Ledger, uid: str) -> QueueShortage:
    """Return the queue shortage that the pod's refusal reports."""
    found = ledger.refusal(uid).queue
    assert found is not None
    return found


NIC = wants(ask(1000), extended={"example.com/nic": 2})
LIMITS = [
    ("cpu", 1500, wants(ask(1), cpu_milli=1000), (1000, 500)),
    ("memory", 1500, wants(ask(1), memory_mib=1000), (1000, 500)),
    ("pods", 1, wants(ask(1)), (1, 0)),
    ("example.com/nic", 3, NIC, (2, 1)),
    ("nvidia.com/gpu", 3, wants(ask(1, count=2)), (2, 1)),
    ("volcano.sh/vgpu-number", 1, wants(ask(1)), (1, 0)),
    ("nvidia.com/gpumem", 5000, wants(ask(3000)), (3000, 2000)),
    ("volcano.sh/vgpu-memory", 5000, wants(ask(3000)), (3000, 2000)),
    ("docker.com/vcuda-memory", 20, wants(ask(4000)), (16, 4)),
    ("nvidia.com/gpucores", 50, wants(ask(1, cores=30)), (30, 20)),
    ("tencent.com/vcuda-core", 150, wants(cards()), (100, 50)),
    ("volcano.sh/gpu-number", 1, wants(cards()), (1, 0)),
    ("volcano.sh/gpu-memory", 5000, wants(ask(3000)), (3000, 2000)),
]


@pytest.mark.parametrize(("resource", "most", "wanted", "amounts"), LIMITS)
def test_a_queue_holds_no_more_than_its_capability(
    resource: str, most: int, wanted: Any, amounts: tuple[int, int]
) -> None:
    """If a queue's capability is enough for one of two pods, the other is refused, with the needed
    and the remaining amount."""
    nodes = [rack("n1", 4), observed("n1", extended={"example.com/nic": 8})]
    ledger = Ledger(*nodes, queue(capability={resource: most}))
    ledger.submit(queued("a", shape=wanted), queued("b", shape=wanted)).settle()
    assert placed(ledger) == {"a"}
    assert set(ledger.reasons("b")) == {C.QUEUE_CAPABILITY_EXCEEDED}
    needed, available = amounts
    reported = QueueShortage(queue="ml", resource=resource, needed=needed, available=available)
    assert shortage(ledger, "b") == reported
    assert words.refusal(ledger.refusal("b")) == words.queue(reported)


def test_entire_cards_and_parts_of_cards_are_counted_apart() -> None:
    """As in Volcano, the limit `gpu-number` applies only to whole GPUs, and the limit `gpu-memory`
    only to shares."""
    ledger = Ledger(rack("n1", 4), limited(volcano_sh__gpu_number=0))
    ledger.play(queue(capability={"volcano.sh/gpu-number": 1, "volcano.sh/gpu-memory": 3000}))
    ledger.submit(queued("card", cards()), queued("part", ask(3000))).settle()
    ledger.submit(queued("card2", cards()), queued("part2", ask(1))).settle()
    assert placed(ledger) == {"card", "part"}


def test_amounts_are_in_the_units_of_the_configuration() -> None:
    """Queue limits use the configuration's units, for example GiB with `gpuMemoryFactor: 1024`."""
    nvidia = NvidiaConfiguration(gpu_memory_factor=1024, resource_memory_name="a.b/mem")
    change = ConfigurationChanged(by="ann", configuration=Configuration(nvidia=nvidia))
    ledger = Ledger(rack("n1", 4), queue(capability={"a.b/mem": 4}), change)
    ledger.submit(queued("a", ask(3000)), queued("b", ask(2000)), queued("c", ask(1000))).settle()
    assert placed(ledger) == {"a", "c"}
    assert shortage(ledger, "b").needed == 2


def test_a_name_that_comes_to_mean_devices_binds_them_from_then_on() -> None:
    """If the configuration renames a GPU resource, queue limits under the new name apply at once.

    If the change is undone, they no longer apply."""
    nvidia = NvidiaConfiguration(resource_count_name="a.b/gpu")
    ledger = Ledger(rack("n1", 4), queue(capability={"a.b/gpu": 1}))
    ledger.submit(queued("a", ask(1)), queued("b", ask(1))).settle()
    assert placed(ledger) == {"a", "b"}
    ledger.play(ConfigurationChanged(by="ann", configuration=Configuration(nvidia=nvidia)))
    ledger.submit(queued("c", ask(1))).settle()
    assert placed(ledger) == {"a", "b"}
    ledger.play(ConfigurationChanged(by="ann", configuration=Configuration())).settle()
    assert placed(ledger) == {"a", "b", "c"}


def test_other_families_have_limits_of_their_own() -> None:
    """A queue's limit on NPUs does not affect GPUs. The limit's resource name may be in lower
    case."""
    ledger = Ledger(node("n1", npu("d0"), gpu("g1")))
    ledger.play(queue(capability={"huawei.com/ascend310p": 0}))
    ledger.submit(queued("n", ask(3000, family="ascend310p")), queued("g", ask(1))).settle()
    assert placed(ledger) == {"g"}


def test_an_instance_counts_as_what_it_takes_of_the_card() -> None:
    """A MIG instance counts against the queue's limit with its whole size, even if the pod
    requested less."""
    ledger = Ledger(rack("n1", 1, model=A100_40, mode="mig", slots=7))
    ledger.play(queue(capability={"volcano.sh/vgpu-memory": 9000}))
    ledger.submit(queued("a", ask(3000)), queued("b", ask(3000))).settle()
    assert placed(ledger) == {"a"}
    assert shortage(ledger, "b").needed == 4864


def test_a_closed_queue_takes_no_new_pods() -> None:
    """A closed queue takes no new pods. Placed pods stay, and pending pods are retried when the
    queue opens."""
    ledger = Ledger(rack("n1", 4), queue(), queued("a", ask(1))).settle()
    ledger.play(queue(open=False)).submit(queued("b", ask(1))).settle()
    assert placed(ledger) == {"a"}
    assert ledger.reasons("b") == {C.QUEUE_CLOSED: 0}
    assert " ml " in words.refusal(ledger.refusal("b"))
    assert placed(ledger.play(queue()).settle()) == {"a", "b"}


def test_the_queue_of_a_gang_goes_before_that_of_its_pods() -> None:
    """A gang's queue is also the queue of its pods. Other pods are in the queue that they name, or
    else in `default`."""
    closed = [queue(name, open=False) for name in ("default", "ml")]
    ledger = Ledger(rack("n1", 4), *closed, gang("team/a", 1, queue="open"))
    ledger.submit(member("a", ask(1), group="team/a", queue="ml"), queued("b", ask(1)))
    ledger.submit(pod("c", ask(1)), queued("d", ask(1), queue="free")).settle()
    assert placed(ledger) == {"a", "d"}
    assert [shortage(ledger, uid).queue for uid in "bc"] == ["ml", "default"]


def test_a_gang_is_in_its_queue_whole_or_not_at_all() -> None:
    """The scheduler does not place a gang of three if the queue has room for only two."""
    ledger = Ledger(rack("n1", 4), queue(capability={"nvidia.com/gpu": 2}))
    ledger.play(gang(min_available=3, queue="ml"))
    ledger.submit(*(member(f"m{n}", cards()) for n in range(3)), pod("other", cards())).settle()
    assert placed(ledger) == {"other"}
    refused = ledger.refusal("m0")
    assert refused.gang is not None
    assert (refused.gang.needed, refused.gang.fitting) == (3, 2)
    assert shortage(ledger, "m0").available == 0
    ledger.play(queue(capability={"nvidia.com/gpu": 3})).settle()
    assert placed(ledger) == {"other", "m0", "m1", "m2"}


def test_a_gang_that_changes_its_queue_takes_what_it_holds_along() -> None:
    """If a running gang changes its queue, its usage counts for the new queue, and the old queue
    has room again."""
    one = {"nvidia.com/gpu": 1}
    ledger = Ledger(rack("n1", 8), queue("ml", capability=one), queue("web", capability=one))
    ledger.play(gang(min_available=1, queue="ml"))
    ledger.submit(member("m", ask(1)), queued("a", ask(1))).settle()
    assert placed(ledger) == {"m"}
    ledger.play(gang(min_available=1, queue="web")).submit(queued("b", ask(1), queue="web"))
    assert placed(ledger.settle()) == {"m", "a"}


def test_a_gang_that_joins_a_queue_no_longer_keeps_its_node_from_that_queue() -> None:
    """If a nominated gang moves to another queue, its node is not kept from that queue's pods of
    higher priority any more: the engine tries them again."""
    lender = QueueObserved(queue="lender", deserved={"nvidia.com/gpu": 3})
    ledger = Ledger(rack("m", 1), lender, gang("t/h", min_available=1, queue="lender"))
    ledger.submit(member("first", cards(), group="t/h")).settle()
    ledger.play(rack("n", 2), pod("victim", cards(), queue="other")).settle()
    ledger.submit(member("second", cards(2), group="t/h")).settle()
    assert ledger.state.nominated == {"second": "n"}
    ledger.submit(pod("waits", cards(), queue="other", priority=10)).settle()
    refusal = ledger.pod("waits").refusal
    assert refusal is not None
    assert RefusalCode.NODE_NOMINATED in refusal.reasons
    ledger.play(gang("t/h", min_available=1, queue="other")).settle()
    assert "waits" in placed(ledger)


def test_a_gang_that_waits_in_a_closed_queue_goes_where_its_queue_is_open() -> None:
    """A gang that waits in a closed queue is placed once it moves to an open queue."""
    ledger = Ledger(rack("n1", 8), queue("ml", open=False), gang(min_available=1, queue="ml"))
    ledger.submit(member("m", ask(1)), pod("p", ask(1))).settle()
    assert placed(ledger) == {"p"}
    assert "m" in placed(ledger.play(gang(min_available=1, queue="web")).settle())


def test_pods_that_end_make_room_in_their_queue_alone() -> None:
    """When a pod ends, the scheduler retries only pods of the same queue."""
    ledger = Ledger(rack("n1", 4), queue(capability={"nvidia.com/gpu": 1}))
    ledger.submit(queued("a", ask(1)), queued("b", ask(1)), pod("other", ask(1))).settle()
    (shape_queue,) = ledger.engine._queue.unschedulable()
    reasons = shape_queue.reasons
    ledger.gone("other").settle()
    assert shape_queue.reasons is reasons
    assert placed(ledger.gone("a").settle()) == {"b"}


def test_a_placement_that_is_voided_makes_room() -> None:
    """If a placement is voided or is never appended, its amounts no longer count against the
    queue's limit."""
    ledger = Ledger(rack("n1", 4), queue(capability={"nvidia.com/gpu": 1}))
    ledger.submit(queued("a", ask(1)), queued("b", ask(2))).settle()
    ledger.voided("a")
    assert placed(ledger.settle()) == {"a"}
    other = Ledger(rack("n1", 4), queue(capability={"nvidia.com/gpu": 1}))
    other.submit(queued("a", ask(1)), queued("b", ask(2)))
    lost = other.engine.decide()
    assert [each.uid for each in lost.placed] == ["a"]
    other.gone("a").engine.retry(lost)
    assert placed(other.settle()) == {"b"}


def test_other_devices_are_tried_where_the_queue_may_not_take_the_best() -> None:
    """If a pod on the best device would exceed its queue's limit, the scheduler chooses a smaller
    device."""
    big, small = rack("a", 1), rack("b", 1, model=A100_40)
    ledger = Ledger(big, small, queue(capability={"nvidia.com/gpumem": 50_000}))
    assert ledger.submit(queued("p", cards())).settle().where("p") == "b"
    ledger.submit(queued("q", cards())).settle()
    assert ledger.reasons("q") == {C.QUEUE_CAPABILITY_EXCEEDED: 1, C.DEVICE_IN_USE: 1}
    said = words.refusal(ledger.refusal("q"))
    assert ("9,040" in said, "81,920" in said) == (True, True)
    assert "none of" not in said, "were the small one free, the queue could not hold it either"


def test_room_on_other_devices_wakes_those_whom_the_queue_kept_from_the_best() -> None:
    """If a queue's limit allows a pod only the smaller devices, the scheduler retries the pod when
    one of these becomes free."""
    ledger = Ledger(rack("a", 1), rack("b", 1, model=A100_40))
    ledger.play(queue(capability={"nvidia.com/gpumem": 50_000}))
    ledger.submit(pod("x", cards()), pod("y", cards())).settle()
    ledger.submit(queued("p", cards())).settle()
    assert "p" not in placed(ledger)
    holder = next(uid for uid in ("x", "y") if ledger.where(uid) == "b")
    assert ledger.gone(holder).settle().where("p") == "b"


def test_the_card_quota_counts_shares_by_model() -> None:
    """A queue's GPU quota for a model counts shares too, not only whole GPUs. The model may be
    written in full or in part, such as `T4`."""
    quota = queue(cards={"NVIDIA-A100-SXM4-80GB": 1, "T4": 1})
    ledger = Ledger(rack("a", 2), rack("b", 2, model=T4), rack("c", 2, model=A30), quota)
    ledger.submit(*(queued(f"p{n}", ask(1000)) for n in range(3))).settle()
    assert sorted(ledger.where(uid) for uid in placed(ledger)) == ["a", "b"]
    refused = next(uid for uid in ledger.state.pods if uid not in placed(ledger))
    assert ledger.reasons(refused) == {C.QUEUE_CARDS_EXCEEDED: 3}


def test_a_card_that_the_quota_does_not_name_is_not_for_the_queue() -> None:
    """A queue with a GPU quota may use only the listed models (Volcano's capacity-card)."""
    ledger = Ledger(rack("a", 2), queue(cards={"H100": 4}), queued("p", ask(1)), pod("q", ask(1)))
    assert placed(ledger.settle()) == {"q"}
    reported = QueueShortage(queue="ml", resource=A100_80, needed=1, available=0)
    assert shortage(ledger, "p") == reported


def test_parts_of_a_card_have_quotas_of_their_own() -> None:
    """MIG instances and MPS shares have quotas of their own, named `MODEL/mig-PROFILE-mixed` and
    `MODEL/mps-…`."""
    quota = {"A100": 1, "A100/mig-1g.5gb-mixed": 2, "A30/mps-24g*1/4": 1}
    mig, mps = rack("a", 1, model=A100_40, mode="mig"), rack("b", 1, model=A30, mode="mps")
    ledger = Ledger(mig, mps, rack("c", 4), queue(cards=quota))
    ledger.submit(*(queued(f"i{n}", ask(profile="1g.5gb")) for n in range(3)))
    only_mps = structs.replace(pod("x").shape.devices, modes=("mps",))
    shapes = [structs.replace(pod("x", ask(1)).shape, devices=only_mps) for _ in range(2)]
    ledger.submit(*(queued(f"s{n}", shape=each) for n, each in enumerate(shapes)))
    ledger.submit(*(queued(f"w{n}", cards()) for n in range(2))).settle()
    assert placed(ledger) == {"i0", "i1", "s0", "w0"}
    assert shortage(ledger, "i2").resource == "A100/mig-1g.5gb-mixed"


def test_what_runs_already_counts_whoever_placed_it() -> None:
    """All placements in a queue count, even if they exceed its limit. The scheduler then places no
    pod until enough of them have ended."""
    ledger = Ledger(rack("n1", 4), queue(capability={"nvidia.com/gpu": 1}))
    ledger.submit(*(queued(uid, ask(1)) for uid in "abc"))
    ledger.play(placement("a", "n1", [share("n1-g0")]), placement("b", "n1", [share("n1-g1")]))
    assert placed(ledger.settle()) == {"a", "b"}
    ledger.gone("a").settle()
    assert placed(ledger) == {"b"}
    assert placed(ledger.gone("b").settle()) == {"c"}


@pytest.mark.parametrize("weights", [(3, 1), (1, 3), (1, 1)])
def test_queues_get_their_shares_by_weight(weights: tuple[int, int]) -> None:
    """Queues get devices in proportion to their weights, whatever the order of arrival."""
    ledger = Ledger(rack("n1", 8), queue("a", weight=weights[0]), queue("b", weight=weights[1]))
    for name in "ab":
        ledger.submit(*(queued(f"{name}{n}", cards(), queue=name) for n in range(8)))
    ledger.settle()
    has = [sum(uid.startswith(name) for uid in placed(ledger)) for name in "ab"]
    assert has == [8 * weight // sum(weights) for weight in weights]


def test_within_a_queue_priority_goes_first() -> None:
    """Priority orders the pods within one queue. It does not put a pod before the pods of another
    queue."""
    ledger = Ledger(rack("n1", 2), queue("a"), queue("b"))
    ledger.submit(queued("a1", cards(), queue="a"), queued("a2", cards(), queue="a", priority=9))
    ledger.submit(queued("b1", cards(), queue="b", priority=99)).settle()
    assert placed(ledger) == {"a2", "b1"}


def test_the_dominant_resource_is_the_share() -> None:
    """A queue's share is its largest share of any resource. A queue with a third of the CPU comes
    after a queue with a quarter of the GPUs."""
    ledger = Ledger(rack("n1", 4), observed("n1", cpu_milli=9000), queue("a"), queue("b"))
    ledger.submit(queued("x", shape=wants(cpu_milli=3000), queue="a"))
    ledger.submit(queued("y", cards(), queue="b")).settle()
    ledger.submit(pod("z", cards(2))).settle()
    ledger.submit(queued("a1", cards(), queue="a"), queued("b1", cards(), queue="b")).settle()
    assert placed(ledger) == {"x", "y", "z", "b1"}


@pytest.mark.parametrize(("small", "following"), [(4, "b1"), (2, "a1")])
def test_small_shares_count_by_their_number(small: int, following: str) -> None:
    """Each of a device's 10 shares counts as a tenth of the device, even with hardly any memory. A
    queue with 30 % of the memory comes after a queue of 2 such shares, and before one of 4."""
    memory_mib = 10_000
    card = gpu("g0", memory_mib=memory_mib, slots=10)
    ledger = Ledger(node("n1", card), queue("a"), queue("b"))
    ledger.submit(*(queued(f"x{n}", ask(1), queue="a") for n in range(small)))
    ledger.submit(queued("y", ask(3 * memory_mib // 10), queue="b")).settle()
    more = [queued(f"{name}1", ask(memory_mib // 2), queue=name) for name in "ab"]
    ledger.submit(*more).settle()
    assert placed(ledger) & {"a1", "b1"} == {following}


def test_a_family_whose_last_device_is_closed_leaves_the_order_of_queues() -> None:
    """The order of queues is the same for a scheduler that saw a family's last device being closed
    and for one that starts later."""
    deserved = {"nvidia.com/gpu": 1}
    ledger = Ledger(rack("n1", 1), *(queue(each, deserved=deserved) for each in ("ml", "web")))
    ledger.submit(queued("p1", ask(1000))).settle()
    kept = Queues(ledger.state)
    kept.activate()
    assert kept.turn("ml") != kept.turn("web")
    kept.observe(ledger.take(NodeCordoned(node="n1", by="ann", reason="fan")))
    fresh = Queues(ledger.state)
    fresh.activate()
    assert [kept.turn(each) for each in ("ml", "web")] == [
        fresh.turn(each) for each in ("ml", "web")
    ]


def test_among_equals_the_first_queue_by_name_goes_first() -> None:
    """Of two queues with equal shares, the first by name goes first, whatever the order of
    arrival."""
    ledger = Ledger(rack("n1", 1), queue("b"), queue("a"))
    ledger.submit(queued("b1", cards(), queue="b"), queued("a1", cards(), queue="a")).settle()
    assert placed(ledger) == {"a1"}


def test_nothing_is_counted_for_one_queue_without_limits() -> None:
    """If the only queue has no limits, the scheduler does not count usage."""
    ledger = Ledger(rack("n1", 4), queue("default"), gang(min_available=1))
    ledger.submit(pod("a", ask(1)), member("m", ask(1))).settle()
    assert not ledger.engine._limits.active


def chosen(ledger: Ledger, uid: str) -> Payload:
    """Return the scheduler's decision on the pod after kube-scheduler has chosen node `n1` for
    it."""
    choices = ExternalChoices(ledger.state)
    choices.choose(uid, "n1")
    ((_, event),) = choices.decide(lambda _: True, events_max=9)
    return event


def test_a_node_that_kube_scheduler_chose_is_within_the_queue_as_well() -> None:
    """The scheduler refuses a node chosen by kube-scheduler if the pod exceeds the queue's
    limit."""
    ledger = Ledger(rack("n1", 4), queue(capability={"nvidia.com/gpu": 1}))
    ledger.submit(queued("a", ask(1), chooser="kube"), queued("b", ask(1), chooser="kube"))
    ledger.play(chosen(ledger, "a"))
    refused = chosen(ledger, "b")
    assert isinstance(refused, PodRefused)
    assert refused.reasons == {C.QUEUE_CAPABILITY_EXCEEDED: 1}
    ledger.play(refused)


def test_choices_of_one_decision_count_for_each_other() -> None:
    """If two pods with chosen nodes exceed the queue's limit together, one of them is refused."""
    ledger = Ledger(rack("n1", 4), queue(capability={"nvidia.com/gpu": 1}))
    ledger.submit(*(queued(uid, ask(1), chooser="kube") for uid in "ab"))
    choices = ExternalChoices(ledger.state)
    for uid in "ab":
        choices.choose(uid, "n1")
    for _ in range(2):
        kinds = [type(e).__name__ for _, e in choices.decide(lambda _: True, events_max=9)]
        assert kinds == ["PodPlaced", "PodRefused"]
