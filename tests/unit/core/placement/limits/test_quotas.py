"""Tests of namespace quotas on the devices that pods use, and of when pending pods are retried."""

from typing import Any

import pytest
from msgspec import structs

from apportion.core.explain.text import words
from apportion.core.explain.why import why
from apportion.core.placement.engine import Engine
from apportion.core.placement.fit_query import ExternalChoices
from apportion.core.placement.queueing.sharding import PARTS, Shard, part_of
from apportion_schemas import (
    Ask,
    Configuration,
    ConfigurationChanged,
    PodRefused,
    PodSubmitted,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    QuotaShortage,
    RefusalCode,
)
from apportion_schemas.configuration import NvidiaConfiguration
from tests.support.fleet import A100_40, gpu, node, npu, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger, placed
from tests.support.pods import ask, cards, gang, member, pod, share
from tests.support.pods import placed as placement

C = RefusalCode
MEMORY = "limits.nvidia.com/gpumem"
CORES = "limits.nvidia.com/gpucores"
COUNT = "requests.nvidia.com/gpu"


def quota(name: str = "gpus", *, namespace: str = "team", **hard: int) -> QuotaObserved:
    """Return the event that reports a quota of GPU `memory`, `cores` or `count`."""
    names = {"memory": MEMORY, "cores": CORES, "count": COUNT}
    limits = {names[key]: most for key, most in hard.items()}
    return QuotaObserved(namespace=namespace, quota=name, hard=limits)


def inside(uid: str, *asks: Ask, **fields: Any) -> PodSubmitted:
    return pod(uid, *asks, **({"namespace": "team"} | fields))


def shortage(ledger: Ledger, uid: str) -> QuotaShortage:
    """Return the quota shortage that the pod's refusal reports."""
    found = ledger.refusal(uid).quota
    assert found is not None
    return found


LIMITS = [
    (MEMORY, 5000, ask(3000), (3000, 3000)),
    ("requests.nvidia.com/gpumem", 9000, ask(3000, count=2), (6000, 6000)),
    ("nvidia.com/gpumem", 50_000, ask(memory_percent=50), (40_960, 40_960)),
    ("limits.nvidia.com/gpumem", 100_000, cards(), (81_920, 81_920)),
    ("limits.docker.com/vcuda-memory", 20, ask(4000), (16, 16)),
    (CORES, 50, ask(1, cores=30), (30, 30)),
    ("limits.nvidia.com/gpucores", 150, cards(), (100, 100)),
    (COUNT, 3, ask(1, count=2), (2, 2)),
    ("requests.volcano.sh/vgpu-number", 1, ask(1), (1, 1)),
    ("requests.volcano.sh/gpu-number", 1, cards(), (1, 1)),
]


@pytest.mark.parametrize(("resource", "most", "wanted", "amounts"), LIMITS)
def test_a_namespace_holds_no_more_than_its_quota(
    resource: str, most: int, wanted: Ask, amounts: tuple[int, int]
) -> None:
    """A quota limits the total use of the namespace's pods. Memory adds up over all GPUs, and
    percentages are converted to MiB.

    Namespaces without a quota are unlimited."""
    reported = QuotaObserved(namespace="team", quota="gpus", hard={resource: most})
    ledger = Ledger(rack("n1", 8), reported)
    ledger.submit(inside("a", wanted), inside("b", wanted), pod("free", wanted)).settle()
    assert placed(ledger) == {"a", "free"}
    assert set(ledger.reasons("b")) == {C.QUOTA_EXCEEDED}
    needed, used = amounts
    lack = QuotaShortage(quota="gpus", resource=resource, needed=needed, used=used, most=most)
    assert shortage(ledger, "b") == lack
    assert words.refusal(ledger.refusal("b")) == words.quota(lack)


def test_what_is_said_names_the_quota_and_the_cure(golden: Golden) -> None:
    """A refusal names the quota and the exceeded resource, and suggests a fix."""
    ledger = Ledger(rack("n1", 4), quota(memory=16_000))
    ledger.submit(inside("a", ask(12_000)), inside("b", ask(8000))).settle()
    reported = why(ledger.state, ledger.pod("b"))
    golden({"sentence": reported.sentence})
    assert reported.refused is not None
    (cause,) = reported.refused.causes
    assert "ResourceQuota" in cause.unblocked_by
    assert cause.held_by == ("team/a",)


def test_init_containers_count_where_they_need_more_than_the_others() -> None:
    """As in the API server, an init container counts only if it needs more than the main
    containers."""
    init = [ask(2000, container=name, init=True) for name in ("i", "j")]
    ledger = Ledger(rack("n1", 8), quota(memory=5000, count=1))
    ledger.submit(inside("a", *init, ask(3000))).settle()
    assert placed(ledger) == {"a"}
    ledger.play(quota(memory=4000, count=1)).gone("a")
    ledger.submit(inside("b", ask(5000, container="i", init=True), ask(1000))).settle()
    assert shortage(ledger, "b").needed == 5000
    queue = QueueObserved(queue="ml", capability={"nvidia.com/gpumem": 3000, "nvidia.com/gpu": 1})
    other = Ledger(rack("n1", 8), queue, pod("a", *init, ask(3000), queue="ml")).settle()
    assert placed(other) == {"a"}


def test_every_quota_of_the_namespace_binds() -> None:
    """All quotas of a namespace apply; a refusal reports the first exceeded quota by name."""
    ledger = Ledger(rack("n1", 4), quota("b", memory=9000), quota("a", cores=100))
    ledger.submit(inside("p", ask(1000, cores=60)), inside("q", ask(9000, cores=60))).settle()
    assert shortage(ledger, "q").quota == "a"
    ledger.play(quota("a", cores=120)).settle()
    assert shortage(ledger, "q").quota == "b"
    assert placed(ledger.play(quota("b", memory=10_000)).settle()) == {"p", "q"}


def test_what_is_not_of_devices_is_left_to_the_api_server() -> None:
    """The scheduler ignores quotas on CPU, pods and other extended resources, which the API server
    enforces."""
    hard = {"requests.cpu": 0, "pods": 0, "requests.example.com/nic": 0, "limits.memory": 0}
    reported = QuotaObserved(namespace="team", quota="gpus", hard=hard)
    ledger = Ledger(rack("n1", 4), reported, inside("a", ask(1)))
    assert placed(ledger.settle()) == {"a"}


def test_families_have_limits_of_their_own() -> None:
    """A quota on NPUs does not affect GPUs."""
    reported = QuotaObserved(
        namespace="team", quota="npus", hard={"requests.huawei.com/Ascend310P": 0}
    )
    ledger = Ledger(node("n1", npu("d0"), gpu("g1")), reported)
    ledger.submit(inside("n", ask(3000, family="ascend310p")), inside("g", ask(1))).settle()
    assert placed(ledger) == {"g"}


def test_an_instance_counts_as_what_it_takes_of_the_card() -> None:
    """A MIG instance counts against the quota with its whole size, even if the pod requested
    less."""
    ledger = Ledger(rack("n1", 1, model=A100_40, mode="mig", slots=7), quota(memory=9000))
    ledger.submit(inside("a", ask(3000)), inside("b", ask(3000))).settle()
    assert placed(ledger) == {"a"}
    assert shortage(ledger, "b").needed == 4864


def test_other_cards_are_tried_where_the_best_are_beyond_the_quota() -> None:
    """If a pod on the best device would exceed its quota, the scheduler chooses a smaller
    device."""
    ledger = Ledger(rack("a", 1), rack("b", 1, model=A100_40), quota(memory=50_000))
    assert ledger.submit(inside("p", cards())).settle().where("p") == "b"


def test_a_name_that_comes_to_mean_devices_binds_from_then_on() -> None:
    """If the configuration renames a GPU resource, quotas under the new name apply at once.

    If the change is undone, they no longer apply."""
    reported = QuotaObserved(namespace="team", quota="gpus", hard={"requests.a.b/gpu": 1})
    nvidia = NvidiaConfiguration(resource_count_name="a.b/gpu")
    ledger = Ledger(rack("n1", 4), reported, inside("a", ask(1)), inside("b", ask(1))).settle()
    ledger.play(ConfigurationChanged(by="ann", configuration=Configuration(nvidia=nvidia)))
    ledger.submit(inside("c", ask(1))).settle()
    assert placed(ledger) == {"a", "b"}
    assert shortage(ledger, "c").used == 2
    ledger.play(ConfigurationChanged(by="ann", configuration=Configuration())).settle()
    assert placed(ledger) == {"a", "b", "c"}


def test_pods_of_another_namespace_are_not_held_up_behind_one_that_is() -> None:
    """A pod that exceeds its namespace's quota does not block pods of other namespaces, even if
    these request the same."""
    ledger = Ledger(rack("n1", 4), quota(count=1), quota(namespace="web", count=2))
    ledger.submit(*(inside(f"t{n}", ask(1)) for n in range(3)))
    ledger.submit(*(inside(f"w{n}", ask(1), namespace="web") for n in range(3)))
    ledger.submit(*(pod(f"f{n}", ask(1)) for n in range(3))).settle()
    assert placed(ledger) == {"t0", "w0", "w1", "f0", "f1", "f2"}


def test_a_quota_that_comes_while_pods_wait_holds_back_its_own_alone() -> None:
    """A new quota blocks only pods of its namespace, not pods of other namespaces with the same
    request. When the quota is removed, the scheduler retries the blocked pods."""
    ledger = Ledger(rack("n1", 1, slots=2)).submit(pod("x", cards())).settle()
    ledger.submit(inside("t0", ask(1)), inside("t1", ask(1)), pod("f", ask(1))).settle()
    assert len(ledger.engine._queue.unschedulable()) == 1
    ledger.play(quota(count=0)).gone("x").settle()
    assert placed(ledger) == {"f"}
    assert set(ledger.reasons("t0")) == set(ledger.reasons("t1")) == {C.QUOTA_EXCEEDED}
    ledger.play(QuotaGone(namespace="team", quota="gpus")).settle()
    assert placed(ledger) == {"f", "t0"}


def test_pods_that_end_make_room_in_their_namespace_alone() -> None:
    """When a pod ends, the scheduler retries only pods of the same namespace."""
    ledger = Ledger(rack("n1", 4), quota(count=1))
    ledger.submit(inside("a", ask(1)), inside("b", ask(1)), pod("other", ask(1))).settle()
    (shape_queue,) = ledger.engine._queue.unschedulable()
    reasons = shape_queue.reasons
    ledger.gone("other").settle()
    assert shape_queue.reasons is reasons
    assert placed(ledger.gone("a").settle()) == {"b"}


def test_a_quota_that_is_raised_too_little_is_told_anew() -> None:
    """If a quota is raised but still too small, the pod gets another refusal with the new limit. A
    change of only the namespace's usage causes no further refusal."""
    ledger = Ledger(rack("n1", 4), quota(memory=1000)).submit(inside("a", ask(3000))).settle()
    first = ledger.refusal("a")
    ledger.play(quota(memory=2000)).settle()
    assert shortage(ledger, "a").most == 2000
    ledger.submit(inside("b", ask(500))).settle()
    reported = [event for event in ledger.events if isinstance(event, PodRefused)]
    assert reported == [first, ledger.refusal("a")]


def test_a_gang_is_within_the_quota_whole_or_not_at_all() -> None:
    """The scheduler does not place a gang of three if the quota has room for only two."""
    ledger = Ledger(rack("n1", 4), quota(count=2), gang(min_available=3))
    ledger.submit(*(member(f"m{n}", cards(), namespace="team") for n in range(3))).settle()
    assert placed(ledger) == set()
    refused = ledger.refusal("m0")
    assert refused.gang is not None
    assert (refused.gang.needed, refused.gang.fitting) == (3, 2)
    assert shortage(ledger, "m0").used == 2
    assert placed(ledger.play(quota(count=3)).settle()) == {"m0", "m1", "m2"}


def test_queue_and_quota_both_bind() -> None:
    """A pod must be within the limits of its queue and its namespace. A refusal names the exceeded
    limit."""
    ml = QueueObserved(queue="ml", capability={"nvidia.com/gpu": 2})
    ledger = Ledger(rack("n1", 8), ml, quota(count=1))
    ledger.submit(inside("a", ask(1), queue="ml"), inside("b", ask(1), queue="ml"))
    ledger.submit(pod("c", ask(1), queue="ml"), pod("d", ask(1), queue="ml")).settle()
    assert placed(ledger) == {"a", "c"}
    assert set(ledger.reasons("d")) == {C.QUEUE_CAPABILITY_EXCEEDED}
    ledger.gone("c").settle()
    assert placed(ledger) == {"a", "d"}


def test_what_runs_already_counts_whoever_placed_it() -> None:
    """If a quota is below what a namespace already uses, the namespace's pods keep running.

    No new pod is placed until usage is below the quota."""
    ledger = Ledger(rack("n1", 4)).submit(*(inside(uid, ask(1)) for uid in "abc"))
    ledger.play(placement("a", "n1", [share("n1-g0")]), placement("b", "n1", [share("n1-g1")]))
    ledger.play(quota(count=1)).settle()
    assert placed(ledger) == {"a", "b"}
    assert shortage(ledger, "c").used == 2
    ledger.gone("a").settle()
    assert placed(ledger) == {"b"}
    assert placed(ledger.gone("b").settle()) == {"c"}


def test_a_node_that_kube_scheduler_chose_is_within_the_quota_as_well() -> None:
    """The scheduler refuses a node chosen by kube-scheduler if the pod exceeds the quota."""
    ledger = Ledger(rack("n1", 4), quota(count=1))
    ledger.submit(inside("a", ask(1), chooser="kube"), inside("b", ask(1), chooser="kube"))
    choices = ExternalChoices(ledger.state)
    for uid in "ab":
        choices.choose(uid, "n1")
    (_, first), (_, second) = choices.decide(lambda _: True, events_max=9)
    ledger.play(first, second)
    assert placed(ledger) == {"a"}
    assert shortage(ledger, "b").quota == "gpus"


def test_nothing_is_counted_where_no_namespace_has_a_quota_of_devices() -> None:
    """If no namespace has a device quota, the scheduler counts no usage."""
    reported = QuotaObserved(namespace="team", quota="q", hard={"requests.example.com/nic": 1})
    ledger = Ledger(rack("n1", 4), reported, inside("a", ask(1)), pod("b", ask(1))).settle()
    assert not ledger.engine._limits.active


def test_a_namespace_with_a_quota_has_one_scheduler() -> None:
    """All pods of a namespace with a quota, including gangs, are decided by one scheduler."""
    ledger = Ledger(rack("n1", 8), quota(count=3), gang(min_available=1))
    ledger.submit(*(inside(f"p{n}", ask(1)) for n in range(8)))
    ledger.submit(member("m", ask(1), namespace="team"))
    parts = frozenset(range(PARTS))
    owned = Shard(frozenset(range(0, PARTS, 2)))
    engines = Engine(ledger.state), Engine(ledger.state)
    for engine, shard in zip(engines, (owned, Shard(parts - owned.parts)), strict=True):
        engine.own(shard)
    decided = [len(engine.decide().placed) for engine in engines]
    assert sorted(decided) == [0, 3]
    assert decided[0] == (3 if part_of("team") in owned.parts else 0)


def test_pods_change_their_scheduler_when_their_namespace_gets_a_quota() -> None:
    """When a namespace gets its first quota, its pods move to the scheduler that owns the
    namespace."""
    ledger = Ledger(rack("n1", 1, slots=1)).submit(pod("x", ask(1))).settle()
    ledger.submit(*(inside(f"p{n}", ask(1)) for n in range(8)))
    own = part_of("team")
    theirs = Shard(frozenset(range(PARTS)) - {own})
    ledger.engine.own(theirs)
    assert ledger.engine.pending
    ledger.play(quota(count=1))
    assert not any(ledger.engine.owns(ledger.pod(f"p{n}")) for n in range(8))
    ledger.gone("x")
    assert ledger.engine.decide().events == []
    ledger.engine.own(Shard(frozenset({own})))
    assert len(ledger.engine.decide().placed) == 1


def test_amounts_are_in_the_units_of_the_configuration() -> None:
    """Quota amounts use the configuration's units, for example GiB with `gpuMemoryFactor: 1024`."""
    nvidia = NvidiaConfiguration(gpu_memory_factor=1024)
    change = ConfigurationChanged(by="ann", configuration=Configuration(nvidia=nvidia))
    ledger = Ledger(rack("n1", 4), quota(memory=4), change)
    ledger.submit(inside("a", ask(3000)), inside("b", ask(2000)), inside("c", ask(1000))).settle()
    assert placed(ledger) == {"a", "c"}
    assert structs.asdict(shortage(ledger, "b")) == {
        "quota": "gpus", "resource": MEMORY, "needed": 2, "used": 3, "most": 4,
    }  # fmt: skip


def test_a_pod_with_the_uid_of_one_that_left_before_it_was_counted_is_counted() -> None:
    """A pod counts against the quota even if it reuses the uid of an ended pod."""
    ledger = Ledger(rack("n1", 4)).submit(inside("a", cards())).settle()
    ledger.play(quota(count=1)).gone("a").submit(inside("a", cards()))
    shares = [share("n1-g0", 81_920, 100)]
    ledger.play(placement("a", "n1", shares, namespace="team"))
    assert ledger.submit(inside("b", cards())).settle().where("b") == ""
