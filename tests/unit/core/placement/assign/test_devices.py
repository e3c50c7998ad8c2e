"""Tests of which devices of the chosen node each container gets."""

import pytest
from msgspec import structs

from apportion.core.placement.assign.devices import assign
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.index.columns import Columns
from apportion_schemas import (
    Ask,
    Device,
    DeviceConstraints,
    NodeReported,
    Policy,
    PolicyChanged,
    RefusalCode,
    Shape,
    Share,
)
from tests.support.fleet import A100_40, A100_80, V100, gpu, node, npu, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, instance, pod, shape, share
from tests.support.pods import placed as placement


def chosen(
    wanted: Shape, report: NodeReported, *held: Share, policy: Policy = "binpack"
) -> tuple[Share, ...] | None:
    """Return the pod's shares on a node on which the shares `held` are in use."""
    ledger = Ledger(report, pod("x"))
    ledger.play(placement("x", report.node, held))
    columns = Columns(ledger.state)
    columns.sync()
    class_ = PlacementClass(wanted, PolicyChanged(by="ann", device_policy=policy), None)
    class_.refresh(columns)
    before = ledger.digest()
    found = assign(class_, columns, 0)
    assert ledger.digest() == before, "assign must leave every device as it found it"
    return found


def devices(shares: tuple[Share, ...] | None) -> list[str]:
    assert shares is not None
    return [found.device for found in shares]


def test_count_is_different_devices() -> None:
    """A request for two devices gets two different devices, each with the whole amount."""
    found = chosen(shape(ask(3000, count=2, cores=50)), rack("n1", 3))
    assert devices(found) == ["n1-g0", "n1-g1"]
    assert [(s.memory_mib, s.cores) for s in found or ()] == [(3000, 50)] * 2


@pytest.mark.parametrize(("policy", "device"), [("binpack", "n1-g1"), ("spread", "n1-g0")])
def test_policy_chooses_the_device(policy: Policy, device: str) -> None:
    """The policy `binpack` chooses a device in use; `spread` chooses an idle device."""
    found = chosen(shape(ask(1000)), rack("n1", 2), share("n1-g1"), policy=policy)
    assert devices(found) == [device]


def test_several_devices_in_the_order_of_preference() -> None:
    """With binpack, a pod with several devices gets devices in use first, and idle devices after
    them."""
    held = (share("n1-g2"), share("n1-g3"))
    assert devices(chosen(shape(ask(1000, count=3)), rack("n1", 4), *held)) == [
        "n1-g2",
        "n1-g3",
        "n1-g0",
    ]


def test_containers_may_share_a_device() -> None:
    """Two containers of a pod may share a device. The shares are in the order of the pod's
    containers."""
    train, test = ask(2000, container="train"), ask(10000, cores=50, container="eval")
    found = chosen(shape(train, test), rack("n1", 2))
    assert [(s.container, s.device) for s in found or ()] == [("train", "n1-g0"), ("eval", "n1-g0")]


def test_containers_that_do_not_fit_on_one_get_two() -> None:
    """Containers that do not fit together on one device get two devices."""
    big = [ask(50_000, container=name) for name in "ab"]
    assert devices(chosen(shape(*big), rack("n1", 2))) == ["n1-g0", "n1-g1"]
    assert chosen(shape(*big), rack("n1", 1)) is None


HARD: list[tuple[str, list[Ask], list[Device], list[Share], str, list[str]]] = [
    (
        "a card alone comes before a share, whatever was written first",
        [ask(1000, container="a"), cards(container="b")],
        [gpu("g0"), gpu("g1")],
        [share("g1", 100, 0)],
        "spread",
        ["g1", "g0"],
    ),
    (
        "alone with little memory comes before more memory",
        [ask(5000, container="a"), ask(10, cores=100, container="b")],
        [gpu("g0"), gpu("g1")],
        [share("g0", 100, 0)],
        "spread",
        ["g0", "g1"],
    ),
    (
        "more memory comes before less",
        [ask(30_000, container="a"), ask(60_000, container="b")],
        [gpu("g0"), gpu("g1", model=V100)],
        [],
        "binpack",
        ["g1", "g0"],
    ),
    (
        "all the memory comes before a part of it",
        [ask(1000, container="a"), ask(container="b")],
        [gpu("g0"), gpu("g1")],
        [share("g1", 100, 0)],
        "spread",
        ["g1", "g0"],
    ),
]


@pytest.mark.parametrize(
    ("asks", "offered", "held", "policy", "where"),
    [case[1:] for case in HARD],
    ids=[case[0] for case in HARD],
)
def test_hardest_first(
    asks: list[Ask], offered: list[Device], held: list[Share], policy: Policy, where: list[str]
) -> None:
    """If a pod has several device requests, the most demanding one is served first.

    Otherwise a smaller request could take the only device that fits the larger one."""
    found = chosen(shape(*asks), node("n1", *offered), *held, policy=policy)
    assert devices(found) == where


def test_instances_are_cut_from_the_end() -> None:
    """Small MIG instances are placed from the last slice downwards, so that the first half stays
    free for a large instance."""
    seven = [ask(3000, container=f"c{n}") for n in range(7)]
    found = chosen(shape(*seven), node("n1", gpu("m0", model=A100_40, mode="mig")))
    starts = [s.instance.start for s in found or () if s.instance]
    assert starts == [6, 5, 4, 3, 2, 1, 0]
    assert {s.instance.profile for s in found or () if s.instance} == {"1g.5gb"}
    eight = [*seven, ask(3000, container="one too many")]
    assert chosen(shape(*eight), node("n1", gpu("m0", model=A100_40, mode="mig"))) is None


def test_instance_goes_where_its_slices_are_free() -> None:
    """A MIG instance needs free slices at an allowed start position, not only free memory."""
    card = gpu("m0", model=A100_80, mode="mig")
    low = share("m0", 9728, 0, instance=instance("1g.10gb", 6, 1))
    found = chosen(shape(ask(30_000)), node("n1", card), low)
    assert [s.instance for s in found or ()] == [instance("3g.40gb", 0, 4)]
    both = (low, share("m0", 9728, 0, instance=instance("1g.10gb", 3, 1)))
    assert chosen(shape(ask(30_000)), node("n1", card), *both) is None


def test_no_instance_goes_where_one_of_others_is() -> None:
    """The scheduler places no MIG instance on slices that another scheduler's instances use, even
    if the device has enough free memory."""
    card = gpu("m0", model=A100_80, mode="mig", closed_slices=0b1100)
    found = chosen(shape(ask(30_000)), node("n1", card))
    assert [s.instance for s in found or ()] == [instance("3g.40gb", 4, 4)]
    held = share("m0", 40_192, 0, instance=instance("3g.40gb", 4, 4))
    assert chosen(shape(ask(30_000)), node("n1", card), held) is None
    two = chosen(shape(*(ask(9000, container=c) for c in "ab")), node("n1", card), held)
    assert [s.instance for s in two or ()] == [instance("1g.10gb", n, 1) for n in (1, 0)]
    three = shape(*(ask(9000, container=c) for c in "abc"))
    assert chosen(three, node("n1", card), held) is None
    theirs = share("m0", 19_968, 0, instance=instance("2g.20gb", 2, 2))
    assert chosen(shape(ask(40_192)), node("n1", card), held, theirs) is None


def test_slices_of_others_are_closed_until_a_report_has_them_no_more() -> None:
    """MIG slices that a node reports as in use by others stay closed until a report no longer lists
    them."""
    card = gpu("m0", model=A100_40, mode="mig", slots=7, closed_slices=0b1110000)
    ledger = Ledger(node("n1", card), pod("p1", ask(20_000)), pod("p2", ask(20_000)))
    ledger.settle()
    assert ledger.reasons("p2") == {RefusalCode.MIG_SLICES_OCCUPIED: 1}
    ledger.gone("p1").settle()
    assert ledger.shares("p2")[0].instance == instance("3g.20gb", 0, 4)
    ledger.submit(pod("p3", ask(20_000))).settle()
    assert not ledger.where("p3")
    ledger.play(node("n1", structs.replace(card, closed_slices=0))).settle()
    assert ledger.shares("p3")[0].instance == instance("3g.20gb", 4, 4)


def test_templates_fill_a_device() -> None:
    """A vNPU template also uses AI CPUs. If an NPU has too few of them left for a second template,
    that template goes to the next NPU."""
    found = chosen(
        shape(*(ask(12_000, family="ascend310p", container=c) for c in "ab")),
        node("n1", npu("u0", memory_mib=99_999), npu("u1")),
    )
    assert [(s.device, s.template) for s in found or ()] == [("u0", "vir04"), ("u1", "vir04")]


def test_numa_bind_keeps_all_devices_on_one_numa_node() -> None:
    """With `numa_bind`, all devices of a pod are on the first NUMA node that has enough of them.
    A device without a NUMA node is used only if no device of its node has one: then the machine
    has a single NUMA node."""
    wanted = shape(cards(2), devices=DeviceConstraints(numa_bind=True))
    near = [gpu(f"g{n}", numa=n // 2) for n in range(4)]
    assert devices(chosen(wanted, node("n1", *near))) == ["g0", "g1"]
    assert devices(chosen(wanted, node("n1", *near), share("g1"))) == ["g2", "g3"]
    assert chosen(wanted, node("n1", *near), share("g1"), share("g2")) is None
    assert devices(chosen(wanted, rack("n1", 2))) == ["n1-g0", "n1-g1"]
    assert chosen(wanted, node("n1", gpu("g0", numa=0), gpu("g1"), gpu("g2"))) is None


def test_ids_and_indexes_leave_devices_out() -> None:
    """A pod's constraints on ids and indexes exclude all other devices of the node."""
    wanted = shape(ask(1), devices=DeviceConstraints(nouse_ids=("n1-g0",), indexes=(0, 2)))
    assert devices(chosen(wanted, rack("n1", 4))) == ["n1-g2"]


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_whether_a_pod_fits_does_not_depend_on_the_order_of_devices(policy: Policy) -> None:
    """If the preferred devices leave no room for a later request, the search tries others."""
    report = node("n1", gpu("g0", memory_mib=15_360), gpu("g1", memory_mib=15_360))
    held = share("g0", 9_000, 0), share("g1", 13_000, 0)
    small, both = ask(2048, container="a"), ask(1024, container="b", count=2)
    found = chosen(shape(small, both), report, *held, policy=policy)
    assert devices(found) == ["g0", "g0", "g1"] or devices(found) == ["g0", "g1", "g0"]


def test_a_pod_of_many_containers_that_cannot_fit_is_given_up_soon() -> None:
    """A pod of many containers that cannot fit is refused quickly, because the search tries equal
    devices only once."""
    report = node("n1", *(gpu(f"g{at}", memory_mib=10_000) for at in range(8)))
    asks = [ask(6_000, container=f"c{at}", count=2) for at in range(5)]
    assert chosen(shape(*asks), report) is None


def test_G13_unequal_parts_of_one_pod_are_on_different_npus() -> None:
    """Containers of one pod get unequal parts of different NPUs, because HAMi's plugin gives each
    of them the part of the last one on the same NPU. Equal parts share an NPU."""
    small, large = ask(3072, container="a", cores=0), ask(12_288, container="b", cores=0)
    hami = DeviceConstraints(plugin="hami")

    def on(report: NodeReported, *asks: Ask, devices: DeviceConstraints = hami) -> set[str] | None:
        npus = (structs.replace(each, family="ascend310p") for each in asks)
        found = chosen(shape(*npus, devices=devices), report)
        return None if found is None else {each.device for each in found}

    one, two = node("n1", npu("u0")), node("n1", npu("u0"), npu("u1"))
    assert on(two, small, large) == {"u0", "u1"}
    assert on(one, small, large) is None
    assert on(one, small, large, devices=DeviceConstraints()) == {"u0"}
    equal = structs.replace(small, container="b")
    assert on(two, small, equal) == {"u0"}
    third = structs.replace(small, container="c")
    assert on(two, small, large, third) == {"u0", "u1"}
    split = node("n1", structs.replace(npu("u0"), mode="hami-core"))
    softly = DeviceConstraints(plugin="hami", modes=("hami-core",))
    assert on(split, small, equal, devices=softly) == {"u0"}
    assert on(split, small, large, devices=softly) is None
