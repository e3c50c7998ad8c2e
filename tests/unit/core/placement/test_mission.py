"""Tests of the rows of the compatibility table that depend on placement only."""

import pytest

from apportion_schemas import (
    Ask,
    DeviceConstraints,
    DeviceHealthChanged,
    MigInstance,
    PodPlaced,
    PolicyChanged,
    RefusalCode,
    Taint,
    Toleration,
)
from tests.support.fleet import A30, A100_40, A100_80, T4, V100, gpu, node, npu, observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape, wants

HAMI_CORE = DeviceConstraints(modes=("hami-core",))
MIG = DeviceConstraints(modes=("mig",))
SHARED = rack("shared", 2)
CUT = rack("cut", 2, model=A100_40, mode="mig")
BINPACK = PolicyChanged(by="ann", node_policy="binpack", device_policy="binpack")


def amounts(ledger: Ledger, uid: str) -> list[tuple[str, int, int]]:
    """Return device, memory in MiB and cores of each of the pod's shares."""
    return [(share.device, share.memory_mib, share.cores) for share in ledger.shares(uid)]


def instances(ledger: Ledger, uid: str) -> list[str]:
    return [share.instance.profile for share in ledger.shares(uid) if share.instance]


def test_A1_slice_by_memory_and_cores() -> None:
    """A share of 3000 MiB and 50 % cores is placed on a HAMi-core GPU, not on the MIG node."""
    wanted = shape(ask(3000, cores=50, cap_memory=True), devices=HAMI_CORE)
    ledger = Ledger(CUT, SHARED, pod("p", shape=wanted)).settle()
    assert amounts(ledger, "p") == [("shared-g0", 3000, 50)]


@pytest.mark.parametrize(
    ("model", "memory_mib", "profile"),
    [
        (A100_40, 3000, "1g.5gb"),
        (A100_40, 8000, "2g.10gb"),
        (A30, 3000, "1g.6gb"),
        (A100_80, 30000, "3g.40gb"),
    ],
)
def test_A2_smallest_instance_that_holds_the_memory(
    model: str, memory_mib: int, profile: str
) -> None:
    """A share gets the smallest MIG instance with enough memory, and uses only that instance's
    slices."""
    wanted = shape(ask(memory_mib, cap_memory=True), devices=MIG)
    ledger = Ledger(rack("n1", 1, model=model, mode="mig"), pod("p", shape=wanted)).settle()
    assert instances(ledger, "p") == [profile]
    (share,) = ledger.shares("p")
    assert share.instance is not None
    assert ledger.device("n1-g0").slices.bit_count() == share.instance.size


def test_A2_geometry_changes_on_demand() -> None:
    """A MIG device is split on demand: into small instances, then two halves, then one whole."""
    small, half, whole = (
        shape(ask(mib, cap_memory=True), devices=MIG) for mib in (3000, 20000, 40000)
    )
    ledger = Ledger(rack("n1", 1, model=A100_40, mode="mig"))
    ledger.submit(*(pod(f"s{n}", shape=small) for n in range(8))).settle()
    assert sum(bool(ledger.where(f"s{n}")) for n in range(8)) == 7
    assert ledger.reasons("s7") == {RefusalCode.MIG_SLICES_OCCUPIED: 1}
    ledger.gone(*(f"s{n}" for n in range(8)))
    ledger.submit(pod("h0", shape=half), pod("h1", shape=half)).settle()
    assert instances(ledger, "h0") + instances(ledger, "h1") == ["3g.20gb"] * 2
    ledger.gone("h0", "h1").submit(pod("w", shape=whole)).settle()
    assert instances(ledger, "w") == ["7g.40gb"]


def test_A2_instances_never_overlap() -> None:
    """MIG instances never overlap, however pods come and go."""
    ledger = Ledger(rack("n1", 1, model=A100_40, mode="mig"))
    for number, mib in enumerate((3000, 20000, 8000, 3000)):
        ledger.submit(pod(f"p{number}", shape=shape(ask(mib), devices=MIG))).settle()
    ledger.gone("p0", "p2").submit(pod("q", shape=shape(ask(8000), devices=MIG))).settle()
    held = [
        range(s.instance.start, s.instance.start + s.instance.size)
        for uid in ("p1", "p3", "q")
        for s in ledger.shares(uid)
        if s.instance
    ]
    slices = [slice_ for each in held for slice_ in each]
    assert len(set(slices)) == len(slices) == 4 + 1 + 2


def test_A3_modes_live_side_by_side() -> None:
    """A cluster may have nodes of several sharing modes. Each pod is placed on a node of the mode
    that it requests."""
    ledger = Ledger(
        CUT,
        SHARED,
        rack("mps", 1, mode="mps"),
        *(
            pod(mode, shape=shape(ask(3000), devices=DeviceConstraints(modes=(mode,))))
            for mode in ("mig", "hami-core", "mps")
        ),
    ).settle()
    where = {mode: ledger.where(mode) for mode in ("mig", "hami-core", "mps")}
    assert where == {"mig": "cut", "hami-core": "shared", "mps": "mps"}


def test_A6_memory_above_the_card_is_capped() -> None:
    """If capping is on and a pod requests more memory than a device has, the pod gets all memory of
    one device."""
    ledger = Ledger(SHARED, pod("p", ask(999_999, cap_memory=True))).settle()
    assert amounts(ledger, "p") == [("shared-g0", 81920, 0)]


def test_A6_memory_is_per_vgpu() -> None:
    """Memory is per vGPU: two vGPUs of 3000 MiB use 3000 MiB on each of two devices."""
    ledger = Ledger(SHARED, pod("p", ask(3000, count=2, cap_memory=True))).settle()
    assert amounts(ledger, "p") == [("shared-g0", 3000, 0), ("shared-g1", 3000, 0)]


def test_A6_percentage() -> None:
    """A memory percentage refers to the device on which the pod is placed."""
    quarter = ask(memory_percent=25)
    ledger = Ledger(rack("n1", 1, model=V100), pod("p", quarter)).settle()
    assert amounts(ledger, "p") == [("n1-g0", 8192, 0)]


@pytest.mark.parametrize(("nodes", "where"), [((CUT, SHARED), "cut"), ((SHARED,), "shared")])
def test_A7_without_a_mode_fit_and_policy_choose(nodes: tuple[object, ...], where: str) -> None:
    """A pod that requests no sharing mode fits devices of every mode, and gets the first of equal
    nodes."""
    ledger = Ledger(BINPACK, *nodes, pod("p", ask(4096, cap_memory=True))).settle()  # type: ignore[arg-type]
    assert ledger.where("p") == where
    assert instances(ledger, "p") == (["1g.5gb"] if where == "cut" else [])


def test_A7_policy_prefers_the_fuller_node_whatever_its_mode() -> None:
    """The binpack policy prefers the fuller node, whatever the node's mode."""
    ledger = Ledger(BINPACK, CUT, SHARED)
    ledger.submit(pod("first", shape=shape(ask(8000), devices=HAMI_CORE))).settle()
    ledger.submit(pod("p", ask(4096))).settle()
    assert ledger.where("p") == "shared"


def test_B4_shared_takes_the_tightest_node_and_card_that_fit() -> None:
    """A share is placed on the fullest node and the fullest device on which it fits."""
    ledger = Ledger(BINPACK, rack("a", 2), rack("b", 2))
    filler = shape(ask(70_000, cores=70), devices=DeviceConstraints(use_ids=("b-g1",)))
    ledger.submit(pod("filler", shape=filler)).settle()
    ledger.submit(pod("p", shape=wants(ask(2560, cores=20), cpu_milli=2000, memory_mib=2048)))
    ledger.settle()
    assert amounts(ledger, "p") == [("b-g1", 2560, 20)]


def test_B4_exclusive_is_that_many_whole_cards() -> None:
    """A pod that requests two whole devices (in vcuda: 200 cores) gets two devices that no other
    pod uses, with all of their memory."""
    ledger = Ledger(rack("n1", 3), pod("other", ask(1))).settle()
    ledger.submit(pod("p", cards(2))).settle()
    assert amounts(ledger, "p") == [("n1-g1", 81920, 100), ("n1-g2", 81920, 100)]
    ledger.submit(pod("late", ask(1))).settle()
    assert ledger.devices("late") == ["n1-g0"]


def test_C1_sharing_by_memory() -> None:
    """Two replicas of 4096 MiB each may share a device."""
    needs = {"cpu_milli": 2000, "memory_mib": 4096}
    pods = [member(f"i{n}", shape=wants(ask(4096), **needs)) for n in range(2)]
    ledger = Ledger(BINPACK, rack("n1", 2), gang(min_available=2), *pods)
    assert [type(event) for event in ledger.decide()] == [PodPlaced, PodPlaced]
    assert [amounts(ledger, f"i{n}") for n in range(2)] == [[("n1-g0", 4096, 0)]] * 2


def test_C2_whole_cards_by_number() -> None:
    """A whole device is not shared with any other pod."""
    ledger = Ledger(rack("n1", 1), pod("p", cards(1))).settle()
    assert amounts(ledger, "p") == [("n1-g0", 81920, 100)]
    ledger.submit(pod("q", ask(1))).settle()
    assert not ledger.where("q")


def test_C3_mps_share() -> None:
    """A share of 8000 MiB and 25 % cores is placed on a device under MPS."""
    wanted = shape(ask(8000, cores=25), devices=DeviceConstraints(modes=("mps",)))
    ledger = Ledger(SHARED, rack("n1", 1, model=A30, mode="mps"), pod("p", shape=wanted)).settle()
    assert amounts(ledger, "p") == [("n1-g0", 8000, 25)]


def test_C4_smallest_template_that_holds_the_memory() -> None:
    """A request for 6 GiB of a 310P gets template vir02, with the template's cores and AI CPUs."""
    ledger = Ledger(node("n1", npu("u0")), pod("p", ask(6144, family="ascend310p"))).settle()
    (share,) = ledger.shares("p")
    assert (share.template, share.memory_mib, share.cores) == ("vir02", 6144, 2)
    assert ledger.device("u0").template_cpu_free == 5


def test_C7_whole_cards_on_one_node() -> None:
    """A pod with four whole devices needs them on one node: two nodes with three devices each do
    not fit."""
    ledger = Ledger(rack("a", 3), rack("b", 3), pod("p", cards(4))).settle()
    assert ledger.reasons("p") == {RefusalCode.DEVICES_TOO_FEW: 2}
    ledger.report(rack("c", 4)).settle()
    assert ledger.devices("p") == [f"c-g{n}" for n in range(4)]


def test_C7_distributed_training_all_or_none() -> None:
    """Four workers of two devices each start together: with seven free devices none starts, and
    with eight all start."""
    pods = [member(f"w{n}", cards(2)) for n in range(4)]
    ledger = Ledger(rack("a", 4), rack("b", 3), gang(min_available=4), *pods).settle()
    assert not any(ledger.where(f"w{n}") for n in range(4))
    assert all(device.idle for at in ledger.state.nodes.values() for device in at.devices)
    ledger.report(rack("b", 4))
    assert [type(event) for event in ledger.decide()] == [PodPlaced] * 4
    held = [device for n in range(4) for device in ledger.devices(f"w{n}")]
    assert len(set(held)) == 8


FLEET = (
    rack("a", 1, model=T4),
    rack("b", 1, model="NVIDIA A10"),
    rack("c", 1, model=V100),
    rack("d", 1, model=A100_80),
)


@pytest.mark.parametrize(
    ("constraints", "fits"),
    [
        (DeviceConstraints(use_types=("A100", "V100")), {"c", "d"}),
        (DeviceConstraints(nouse_types=("T4",)), {"b", "c", "d"}),
        (DeviceConstraints(use_types=("a10",)), {"b"}),
        (DeviceConstraints(use_ids=("c-g0",)), {"c"}),
        (DeviceConstraints(nouse_ids=("a-g0", "b-g0")), {"c", "d"}),
    ],
)
def test_C8_types_and_uuids(constraints: DeviceConstraints, fits: set[str]) -> None:
    """Types and UUIDs in annotations select or exclude devices; the type A10 does not match an
    A100."""
    ledger = Ledger(*FLEET)
    wanted = shape(cards(1), devices=constraints)
    ledger.submit(*(pod(f"p{n}", shape=wanted) for n in range(5))).settle()
    assert {ledger.where(f"p{n}") for n in range(5)} - {""} == fits


def test_C8_card_indexes() -> None:
    """An index annotation restricts a pod to devices 0 and 2 of a node."""
    wanted = shape(cards(2), devices=DeviceConstraints(indexes=(0, 2)))
    ledger = Ledger(rack("n1", 4), pod("p", shape=wanted)).settle()
    assert ledger.devices("p") == ["n1-g0", "n1-g2"]


def test_C8_unhealthy_cards_are_left_out() -> None:
    """The scheduler places no pod on an unhealthy device, such as one listed in
    `volcano.sh/gpu-unhealthy-ids`."""
    sick = DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79")
    ledger = Ledger(rack("n1", 2), sick, pod("p", cards(1)), pod("q", cards(1))).settle()
    assert ledger.devices("p") == ["n1-g1"]
    assert not ledger.where("q")


@pytest.mark.parametrize(
    ("wanted", "memory_mib", "cores"),
    [(ask(3000, cores=30), 3000, 30), (ask(memory_percent=50), 40960, 0)],
)
def test_D1_memory_cores_and_percentage(wanted: Ask, memory_mib: int, cores: int) -> None:
    """Memory, cores and percentages are allocated as requested."""
    ledger = Ledger(SHARED, pod("p", wanted)).settle()
    assert amounts(ledger, "p") == [("shared-g0", memory_mib, cores)]


def test_D2_one_percent() -> None:
    """A hundred pods of 1 % fill a device of a hundred slots, and no more fit."""
    ledger = Ledger(rack("n1", 1, slots=200))
    ledger.submit(*(pod(f"p{n}", ask(memory_percent=1, cores=1)) for n in range(101))).settle()
    assert amounts(ledger, "p0") == [("n1-g0", 819, 1)]
    assert sum(bool(ledger.where(f"p{n}")) for n in range(101)) == 100
    assert ledger.reasons("p100") == {RefusalCode.CORES_INSUFFICIENT: 1}


@pytest.mark.parametrize("cores", [0, 100])
def test_D3_no_cores_is_any_card_with_the_memory_and_all_is_the_card_alone(cores: int) -> None:
    """A pod without a core request may share any device with enough memory. A pod with 100 cores
    gets a device of its own."""
    ledger = Ledger(BINPACK, rack("n1", 2), pod("there", ask(1000, cores=10))).settle()
    ledger.submit(pod("p", ask(5000, cores=cores))).settle()
    assert amounts(ledger, "p") == [("n1-g1" if cores else "n1-g0", 5000, cores)]


def test_D3_no_cores_is_refused_where_all_are_taken() -> None:
    """A pod without a core request is refused if all cores are in use (HAMi's
    CardComputeUnitsExhausted)."""
    ledger = Ledger(rack("n1", 1), pod("all", ask(1000, cores=100)), pod("p", ask(1))).settle()
    assert ledger.reasons("p") == {RefusalCode.CORES_INSUFFICIENT: 1}


def test_D3_each_container_has_its_own_share() -> None:
    """Each container has its own share; some containers may have none."""
    asks = (ask(10_000, cores=50, container="train"), ask(2000, container="eval"))
    ledger = Ledger(SHARED, pod("p", *asks)).settle()
    assert [(s.container, s.device, s.memory_mib) for s in ledger.shares("p")] == [
        ("train", "shared-g0", 10_000),
        ("eval", "shared-g0", 2000),
    ]


def test_D4_split_count_and_scaling() -> None:
    """A device with ten slots runs ten pods, and scaled memory may exceed the physical memory."""
    scaled = gpu("g0", memory_mib=163_840, physical_memory_mib=81_920)
    ledger = Ledger(node("n1", scaled))
    ledger.submit(*(pod(f"p{n}", ask(16_384)) for n in range(11))).settle()
    assert sum(bool(ledger.where(f"p{n}")) for n in range(11)) == 10
    assert ledger.reasons("p10") == {RefusalCode.SLOTS_EXHAUSTED: 1}


def test_E1_taint_of_the_vgpu_nodes() -> None:
    """On tainted vGPU nodes, the scheduler places only pods that tolerate the taint."""
    taint = Taint(key="volcano.sh/vgpu", value="hami", effect="NoSchedule")
    tolerating = Toleration(key="volcano.sh/vgpu", operator="Exists", effect="NoSchedule")
    ledger = Ledger(rack("n1", 1), observed("n1", taints=(taint,)))
    ledger.submit(pod("p", shape=wants(ask(1), tolerations=(tolerating,))), pod("q", ask(1)))
    ledger.settle()
    assert ledger.where("p") == "n1"
    assert ledger.reasons("q") == {RefusalCode.TAINT_NOT_TOLERATED: 1}


def test_E3_two_vgpus_are_two_different_cards() -> None:
    """If a pod requests two vGPUs, they are on two devices, even if one device has room for
    both."""
    wanted = ask(3000, count=2, cores=50, cap_memory=True)
    ledger = Ledger(SHARED, pod("p", wanted)).settle()
    assert amounts(ledger, "p") == [("shared-g0", 3000, 50), ("shared-g1", 3000, 50)]
    single = Ledger(rack("n1", 1), pod("p", wanted)).settle()
    assert single.reasons("p") == {RefusalCode.DEVICES_TOO_FEW: 1}


def test_E4_only_the_count_is_whole_cards() -> None:
    """A pod with only a device count gets whole devices, even on nodes of NVIDIA's own plugin (E5).

    A share does not fit such a node."""
    exclusive = rack("plain", 2, mode="exclusive")
    ledger = Ledger(exclusive, pod("p", cards(2)), pod("q", ask(1))).settle()
    assert amounts(ledger, "p") == [("plain-g0", 81920, 100), ("plain-g1", 81920, 100)]
    assert ledger.reasons("q") == {RefusalCode.MODE_MISMATCH: 1}


def test_whole_card_of_a_mig_node_is_its_largest_instance() -> None:
    """A whole device on a MIG node is the largest instance, which fills the device."""
    ledger = Ledger(CUT, pod("p", cards(1)), pod("q", ask(1, container="x"))).settle()
    assert [share.instance for share in ledger.shares("p")] == [
        MigInstance(profile="7g.40gb", start=0, size=8)
    ]
    assert ledger.devices("q") == ["cut-g1"]
