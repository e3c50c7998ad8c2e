"""Tests of topology levels: a gang is placed in one domain, such as a rack, if it asks for that."""

from typing import Any

import pytest

from apportion.core.placement.gang_levels import GangLevels
from apportion.core.placement.gang_turn import PART_FINDS_MAX
from apportion_schemas import GangPart, PodSubmitted, QueueObserved, RefusalCode
from tests.support.fleet import T4, V100, observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, gang, member, pod, wants

C = RefusalCode
RACK, BLOCK = "example.com/rack", "example.com/block"


def cluster(**free: int) -> Ledger:
    """Return a ledger with racks of these names. Each rack has the given number of nodes, with one
    GPU each."""
    ledger = Ledger()
    for name, nodes in free.items():
        for number in range(nodes):
            at = f"{name}-{number:02}"
            ledger.report(rack(at, 1), observed(at, labels={RACK: name, BLOCK: name[0]}))
    return ledger


def workers(count: int, first: int = 0) -> list[PodSubmitted]:
    """Return members `m00`, `m01` and so on, which request one whole GPU each."""
    return [member(f"m{n:02}", cards()) for n in range(first, first + count)]


def racks(ledger: Ledger) -> set[str]:
    """Return the racks with placed pods of the gang."""
    pods = ledger.state.groups["team/job"].pods.values()
    return {pod.placement.node[:-3] for pod in pods if pod.placement is not None}


def test_a_gang_gets_the_smallest_rack_with_room_for_all() -> None:
    """A gang takes the rack with the least room that has room for all of its pods. Here, 16 pods
    take the rack with 16 free GPUs, not those with 8 or 20."""
    ledger = cluster(a=8, b=20, c=16).play(gang(min_available=16, required_level=RACK))
    ledger.submit(*workers(16)).settle()
    assert racks(ledger) == {"c"}


def test_a_rack_that_only_seems_to_have_room_is_not_the_last_one_tried() -> None:
    """If a gang's pods do not fit together into the rack with the least room, the scheduler tries
    the next rack."""
    ledger = Ledger()
    for name, devices in (("a", 3), ("b", 4)):
        for number in range(2):
            at = f"{name}-{number:02}"
            ledger.report(rack(at, devices), observed(at, labels={RACK: name}))
    ledger.play(gang(min_available=4, required_level=RACK))
    pods = [member(f"m{n}", cards(1 if n < 2 else 2)) for n in range(4)]
    ledger.submit(*pods, member("m4", cards(2))).settle()
    assert len(racks(ledger)) == 1


def test_a_gang_without_a_rack_for_all_is_refused() -> None:
    """A gang that fits into no rack is pending, even if the cluster has room. The refusal names the
    rack with the most room, and how many pods fit there.

    The gang starts once a rack has room for all of its pods."""
    ledger = cluster(a=3, b=2).play(gang(min_available=4, required_level=RACK))
    ledger.submit(*workers(4)).settle()
    refused = ledger.refusal("m00")
    assert refused.reasons == {C.GANG_DOMAIN_TOO_SMALL: 5}
    assert refused.gang is not None
    assert (refused.gang.level, refused.gang.domain, refused.gang.fitting) == (RACK, "a", 3)
    assert all(device.idle for node in ledger.state.nodes.values() for device in node.devices)
    ledger.report(rack("a-03", 1), observed("a-03", labels={RACK: "a"})).settle()
    assert racks(ledger) == {"a"}


def test_a_gang_starts_when_a_pod_of_another_rack_ends() -> None:
    """The scheduler retries a gang when any rack gets room, not only the rack that the refusal
    names."""
    ledger = cluster(a=3, b=4).submit(pod("x", cards()), pod("y", cards())).settle()
    on_b = [uid for uid in "xy" if ledger.where(uid).startswith("b")]
    ledger.play(gang(min_available=4, required_level=RACK)).submit(*workers(4)).settle()
    if on_b:
        assert racks(ledger) == set()
        ledger.gone(*on_b).settle()
    assert racks(ledger) == {"b"}


def test_nodes_without_the_label_are_in_no_domain() -> None:
    """A gang with a required level is placed only on nodes with the level's label. If no node has
    the label, the gang is refused."""
    ledger = Ledger(rack("n1", 4), gang(min_available=2, required_level=RACK))
    ledger.submit(*workers(2)).settle()
    refused = ledger.refusal("m00")
    assert refused.reasons == {C.GANG_DOMAIN_TOO_SMALL: 1}
    assert refused.gang is not None
    assert (refused.gang.level, refused.gang.domain) == (RACK, "")
    ledger.report(observed("n1", labels={RACK: "a"})).settle()
    assert ledger.where("m00") == "n1"


def test_more_pods_of_the_gang_stay_in_its_domain() -> None:
    """A pod that joins a running gang, or replaces one of its pods, gets a node in the gang's
    domain."""
    ledger = cluster(a=3, b=9).play(gang(min_available=2, required_level=RACK))
    ledger.submit(*workers(2)).settle()
    assert racks(ledger) == {"a"}
    ledger.submit(*workers(2, first=2)).settle()
    assert racks(ledger) == {"a"}
    assert ledger.where("m03") == ""
    ledger.gone("m00").settle()
    assert ledger.where("m03").startswith("a-")


@pytest.mark.parametrize(
    ("preferred", "required", "free", "found"),
    [
        (RACK, "", {"a1": 2, "b1": 3}, {"b1"}),
        (RACK, "", {"a1": 2, "b1": 2}, {"a1", "b1"}),  # falls back to all nodes
        (RACK, BLOCK, {"a1": 2, "b1": 2, "b2": 2}, {"b1", "b2"}),  # and here to one block
        (RACK, BLOCK, {"a1": 2, "b1": 3, "b2": 2}, {"b1"}),
        (RACK, BLOCK, {"a1": 2, "b1": 2}, set()),
        (BLOCK, RACK, {"a1": 2, "a2": 2}, set()),  # no domain is larger than a required one
        (RACK, "example.com/zone", {"a1": 3}, set()),  # no node has the required label
    ],
)
def test_a_preferred_level_is_tried_first(
    preferred: str, required: str, free: dict[str, int], found: set[str]
) -> None:
    """A gang gets a domain of its preferred level if one has room. Otherwise it gets a domain of
    its required level, or any nodes if it requires no level."""
    levels: dict[str, Any] = {"preferred_level": preferred, "required_level": required}
    ledger = cluster(**free).play(gang(min_available=3, **levels)).submit(*workers(3)).settle()
    assert racks(ledger) == found


def test_pods_that_come_one_by_one_get_the_rack_with_most_room() -> None:
    """If a gang may start with one pod, its first pod goes to the rack with the most room, because
    later pods must go to the same rack."""
    ledger = cluster(a=2, b=4).play(gang(min_available=1, required_level=RACK))
    for worker in workers(4):
        ledger.submit(worker).settle()
    assert racks(ledger) == {"b"}
    assert all(ledger.where(f"m{n:02}") for n in range(4))


def test_the_largest_of_many_racks_is_tried() -> None:
    """If there are more racks than one decision tries, the racks with the most room are among those
    that are tried.

    Here every rack seems to have room, but only one rack has room for the pod of 2 GPUs and the pod
    of 4 GPUs together."""
    ledger = Ledger()
    for number in range(70):
        at = f"r{number:02}"
        ledger.report(rack(at, 8 if number == 40 else 4), observed(at, labels={RACK: at}))
    ledger.play(gang(min_available=2, required_level=RACK))
    ledger.submit(member("m0", cards(4)), member("m1", cards(2))).settle()
    assert {ledger.where("m0"), ledger.where("m1")} == {"r40"}


def test_a_preferred_rack_has_one_model_for_all() -> None:
    """A gang prefers a rack that has enough devices of a single model for all of its pods."""
    ledger = Ledger()
    for at, name, model in (
        ("a-00", "a", T4), ("a-01", "a", V100), ("a-02", "a", V100), ("b-00", "b", T4),
    ):  # fmt: skip
        ledger.report(rack(at, 1, model=model), observed(at, labels={RACK: name}))
    ledger.play(gang(min_available=2, preferred_level=RACK)).submit(*workers(2)).settle()
    assert {ledger.where("m00"), ledger.where("m01")} == {"a-01", "a-02"}


def test_a_pod_stays_in_the_rack_although_other_nodes_lost_the_label() -> None:
    """A pod that joins a gang goes to the gang's rack, even if most of the gang's nodes have lost
    the label of that rack."""
    ledger = cluster(a=4).play(gang(min_available=3, required_level=RACK))
    ledger.submit(*workers(3)).settle()
    nodes = [ledger.where(f"m{n:02}") for n in range(3)]
    ledger.report(observed(nodes[0], labels={}), observed(nodes[1], labels={}))
    ledger.submit(*workers(1, first=3)).settle()
    assert ledger.where("m03")


def test_a_refusal_follows_the_level_of_the_pod_group() -> None:
    """If the required level of a PodGroup changes, the gang's refusal has the new level and a
    domain of this level."""
    ledger = cluster(a1=1, a2=1).play(gang(min_available=3, required_level="example.com/zone"))
    ledger.submit(*workers(3)).settle()
    for level, domain in ((RACK, "a1"), (BLOCK, "a")):
        ledger.play(gang(min_available=3, required_level=level)).settle()
        refused = ledger.refusal("m00").gang
        assert refused is not None
        assert (refused.level, refused.domain) == (level, domain)


@pytest.mark.parametrize("level", ["required_level", "preferred_level"])
def test_pods_are_evicted_in_one_domain(level: str) -> None:
    """If pods are evicted for a gang with a level, all of them are in one domain of this level, and
    the gang is placed there. Without the level, the scheduler would evict the two pods of the
    lowest priority, which are in different domains."""
    ledger = cluster(a=2, b=2)
    for at in "ab":
        here = wants(cards(), selector={RACK: at})
        ledger.submit(*(pod(f"{at}{n}", priority=n, shape=here) for n in range(2)))
    ledger.settle().play(gang("team/job", 2, **{level: RACK}))
    ledger.submit(*(member(f"m{n}", cards(), priority=1000) for n in range(2))).settle()
    gone = sorted(ledger.state.evictions)
    assert len(gone) == 2
    for uid in gone:
        ledger.gone(uid)
    ledger.settle()
    assert len(racks(ledger)) == 1
    assert len(ledger.state.pods) == 4


@pytest.mark.parametrize(("ran_s", "together"), [(500, True), (700, False)])
def test_one_domain_is_worth_five_minutes_of_work_for_each_device(
    ran_s: int, together: bool
) -> None:
    """A gang of two devices takes back devices in one rack if that loses at most ten minutes of
    work more. In each rack, one pod has just written a checkpoint, and one has written none."""
    ledger = cluster(a=2, b=2)
    ledger.play(QueueObserved(queue="team", deserved={"nvidia.com/gpu": 2}))
    for at in "ab":
        here = wants(cards(), selector={RACK: at})
        ledger.submit(
            pod(f"{at}-new", shape=here, checkpoint_s=ran_s), pod(f"{at}-old", shape=here)
        )
    ledger.settle().play(gang("team/job", 2, preferred_level=RACK, queue="team"))
    ledger.engine.tell_time((1_767_225_600 + ran_s) * 1_000_000)
    ledger.submit(*(member(f"m{n}", cards(), queue="team") for n in range(2))).settle()
    assert sorted(ledger.state.evictions) == (
        ["a-new", "a-old"] if together else ["a-new", "b-new"]
    )


def test_no_pod_is_evicted_if_no_domain_is_large_enough() -> None:
    """The scheduler evicts no pods for a gang that does not fit any domain of its required level.
    If the level is only preferred, pods of several domains are evicted."""
    ledger = cluster(a=2, b=2).submit(*(pod(f"p{n}", cards()) for n in range(4))).settle()
    ledger.play(gang(min_available=3, required_level=RACK))
    ledger.submit(*(member(f"m{n}", cards(), priority=1000) for n in range(3))).settle()
    assert not ledger.state.evictions
    ledger.play(gang(min_available=3, preferred_level=RACK)).settle()
    assert len(ledger.state.evictions) == 3


ZONE = "example.com/zone"
TREE = (ZONE, BLOCK, RACK)


def tree(*nodes: tuple[str, str, str]) -> Ledger:
    """Return a ledger with a node of one GPU for each of these zones, blocks and racks."""
    ledger = Ledger()
    for number, levels in enumerate(nodes):
        at = f"n{number:02}"
        ledger.report(rack(at, 1), observed(at, labels=dict(zip(TREE, levels, strict=True))))
    return ledger


def found_on(ledger: Ledger, level: str) -> list[str]:
    """Return the value of this label for the node of each placed pod of the gang."""
    pods = ledger.state.groups["team/job"].pods.values()
    nodes = [pod.placement.node for pod in pods if pod.placement is not None]
    return sorted(ledger.state.nodes[node].host.labels[level] for node in nodes)


@pytest.mark.parametrize(("required", "blocks", "zones"), [("", 1, 1), (ZONE, 1, 1), (BLOCK, 1, 1)])
def test_each_coarser_level_is_tried(required: str, blocks: int, zones: int) -> None:
    """If no rack has room for the gang, a block is tried before a zone and before all nodes."""
    racks_of = [("z1", "b1", "r1"), ("z1", "b2", "r2"), ("z1", "b2", "r3"), ("z2", "b3", "r4")]
    levels: dict[str, Any] = {"preferred_level": RACK, "required_level": required, "levels": TREE}
    ledger = tree(*racks_of).play(gang(min_available=2, **levels)).submit(*workers(2)).settle()
    assert len(set(found_on(ledger, BLOCK))) == blocks
    assert len(set(found_on(ledger, ZONE))) == zones
    assert found_on(ledger, RACK) == ["r2", "r3"]


def test_racks_of_one_name_in_two_zones_are_two_domains() -> None:
    """With a topology, racks of equal names are different domains if their zones differ."""
    same = [("z1", "b", "r"), ("z2", "b", "r"), ("z2", "b", "r")]
    levels: dict[str, Any] = {"required_level": RACK, "levels": TREE}
    ledger = tree(*same).play(gang(min_available=2, **levels)).submit(*workers(2)).settle()
    assert found_on(ledger, ZONE) == ["z2", "z2"]
    ledger = tree(*same).play(gang(min_available=3, **levels)).submit(*workers(3)).settle()
    assert found_on(ledger, ZONE) == []


def test_KAI_documents_a_zone_that_is_filled_rack_by_rack() -> None:
    """KAI's example of a required zone and a preferred rack: the zone with less room is taken, and
    the pods are on two of its racks instead of three."""
    a = [("A", "-", "A1"), ("A", "-", "A2"), ("A", "-", "A3"), ("A", "-", "A4"), ("A", "-", "A1")]
    b = [("B", "-", rack) for rack in ("B1", "B1", "B2", "B2", "B3", "B3")]
    levels: dict[str, Any] = {
        "required_level": ZONE,
        "preferred_level": RACK,
        "levels": (ZONE, RACK),
    }
    ledger = tree(*a, *b).play(gang(min_available=3, **levels)).submit(*workers(3)).settle()
    assert found_on(ledger, RACK) == ["A1", "A1", "A2"]


def test_a_pod_that_joins_a_gang_goes_to_a_rack_of_its_pods() -> None:
    """A further pod of a gang in a zone gets a node in a rack of the gang, if one is free."""
    nodes = [("z", "-", "r1")] * 3 + [("z", "-", "r2")] * 3 + [("z", "-", "r3")] * 5
    levels: dict[str, Any] = {
        "required_level": ZONE,
        "preferred_level": RACK,
        "levels": (ZONE, RACK),
    }
    ledger = tree(*nodes).submit(pod("x", cards())).settle()
    ledger.play(gang(min_available=6, **levels)).submit(*workers(6)).settle()
    before = set(found_on(ledger, RACK))
    assert len(before) == 2
    ledger.submit(*workers(2, first=6)).settle()
    assert len(found_on(ledger, RACK)) == 8
    assert set(found_on(ledger, RACK)) == before


def finds_of(monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> int:
    """Let the engine decide. Return how often it has searched for a node for a pod of a gang."""
    found = 0
    find = GangLevels.find

    def counted(*args: Any) -> Any:
        nonlocal found
        found += 1
        return find(*args)

    monkeypatch.setattr(GangLevels, "find", counted)
    ledger.settle()
    return found


@pytest.mark.parametrize(("level", "devices"), [("required_level", 1), ("preferred_level", 2)])
def test_nested_parts_that_do_not_fit_take_few_finds(
    monkeypatch: pytest.MonkeyPatch, level: str, devices: int
) -> None:
    """If each of many nested subgroups has several domains to try, one decision limits the number
    of searches for all of these subgroups together."""
    ledger = cluster(a=1, b=1, c=1, d=1)
    levels: dict[str, Any] = {level: RACK}
    ledger.report(rack("x", 8), observed("x", labels={}))
    part = GangPart(tasks=("t",), **levels)
    ledger.play(gang(min_available=5, min_tasks={"t": 5}, parts=(part,) * 12))
    ledger.submit(*(member(f"m{n}", cards(devices), task="t") for n in range(5)))
    assert finds_of(monkeypatch, ledger) < 2 * PART_FINDS_MAX


def test_many_partitions_that_do_not_fit_take_few_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a partition does not fit in a domain, equal partitions are not tried there. So 20 of them
    take few searches."""
    ledger = cluster(**{f"{n:02}": 7 for n in range(20)})
    part = GangPart(tasks=("t",), required_level=RACK, split_by="part", size=8)
    ledger.play(gang(min_available=160, min_tasks={"t": 160}, parts=(part,)))
    for n in range(160):
        ledger.submit(member(f"m{n:03}", cards(), task="t", labels={"part": str(n // 8)}))
    assert finds_of(monkeypatch, ledger) < 100
    assert racks(ledger) == set()


def test_a_gang_of_many_partitions_starts() -> None:
    """A gang may have more partitions than a PodGroup has subgroups."""
    ledger = Ledger()
    for n in range(33):
        ledger.report(rack(f"n{n:02}", 8), observed(f"n{n:02}", labels={RACK: "a"}))
    part = GangPart(tasks=("t",), required_level=RACK, split_by="part", size=1)
    ledger.play(gang(min_available=257, min_tasks={"t": 257}, parts=(part,)))
    for n in range(257):
        ledger.submit(member(f"m{n:03}", cards(), task="t", labels={"part": str(n)}))
    ledger.settle()
    assert all(ledger.where(f"m{n:03}") for n in range(257))


def test_a_partition_of_one_pod_gets_the_rack_with_least_room() -> None:
    """A partition cannot grow, so even one with a single pod gets the smallest rack that fits."""
    ledger = cluster(a=2, b=1)
    part = GangPart(tasks=("t",), required_level=RACK, split_by="part", size=1)
    ledger.play(gang(min_available=1, parts=(part,)))
    ledger.submit(member("m0", cards(), task="t", labels={"part": "0"})).settle()
    assert racks(ledger) == {"b"}
