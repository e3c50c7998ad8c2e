"""Tests of the prices that the scheduler learns from the pods it has seen. A price says how many
devices one pod of a shape is worth."""

import pytest

from apportion.core.placement.pricing.program import NodeType, build
from apportion.core.placement.pricing.sizes import SeenShape, sort_of
from apportion.runtime.solver import learn, solve
from apportion_schemas import Device, PricesLearnt
from tests.support.fleet import A30, gpu, npu
from tests.support.pods import ask, cards
from tests.support.prices import piece, whole

MILLION = 1_000_000
CARD = gpu("g0", memory_mib=10_000)


def racks(nodes: int = 10, devices: int = 4, device: Device = CARD, cores: int = 64) -> NodeType:
    """Return a node type with `nodes` nodes, each with plenty of memory."""
    return NodeType(device, devices, cores * 1000, 1 << 20, nodes)


def seen(wanted: object, pods: int = 10, cores: int = 1, **fields: object) -> SeenShape:
    """Return a pod shape with this request that was seen on `pods` pods."""
    shape = SeenShape(None, cores * 1000, 1024, pods)
    return shape._replace(ask=wanted, **fields)  # type: ignore[arg-type]


def planned(shapes: list[SeenShape], *types: NodeType) -> list[float]:
    """Return how many pods of each shape the best plan places on these nodes."""
    program = build(shapes, list(types))
    used = solve(program).used
    return [round(float(used[program.demands[sort_of(each)]]), 6) for each in shapes]


def value(prices: PricesLearnt, wanted: SeenShape) -> float:
    """Return the learned value of a shape, in devices."""
    (found,) = {shape.value for shape in prices.shapes if sort_of(shape) == sort_of(wanted)}
    return found / MILLION


def test_shares_that_cannot_stand_side_by_side_are_not_planned_so() -> None:
    """If two shares do not fit on one device together, no plan puts them there."""
    assert planned([seen(piece(60))], racks()) == [40]
    assert planned([seen(piece(60)), seen(piece(40))], racks()) == [40, 40]
    assert planned([seen(piece(34))], racks()) == [80]


def test_whole_devices_and_shares_use_the_same_devices() -> None:
    """A device that a plan uses for shares is not also used as a whole device."""
    two, half = seen(whole(2), pods=10), seen(piece(50), pods=40)
    pairs, halves = planned([two, half], racks())
    assert 2 * pairs + halves / 2 == 40
    assert min(pairs, halves) > 0


def test_a_pod_is_planned_only_where_it_fits() -> None:
    """A plan puts a pod only on nodes that have enough devices, CPU and memory for it."""
    assert planned([seen(whole(8))], racks(devices=4)) == [0]
    assert planned([seen(piece(50), cores=65)], racks(cores=64)) == [0]
    assert planned([seen(piece(50), memory_mib=1 << 21)], racks()) == [0]
    assert planned([seen(whole(8))], racks(devices=4), racks(5, 8)) == [5]


def test_pods_stay_with_their_family_and_mode() -> None:
    """A plan puts a pod only on devices of the requested kind and sharing mode."""
    share, cut = seen(piece(50), modes=("hami-core",)), seen(ask(5_000), modes=("mig",))
    types = racks(), racks(1, 1, gpu("m0", model=A30, mode="mig")), racks(5, 8, npu())
    only_share, only_cut = planned([share], *types), planned([cut], *types)
    assert only_share == [80]
    assert only_cut == [4], "an A30 has four instances of 6 GB"


def test_what_takes_scarce_cpu_is_worth_more() -> None:
    """If CPU is scarce, a pod that requests more CPU has a higher value."""
    light, heavy = seen(piece(50), cores=1), seen(piece(50), cores=20)
    scarce = learn([light, heavy], [racks(cores=32)], pods=20)
    ample = learn([light, heavy], [racks(cores=512)], pods=20)
    assert value(scarce, heavy) > 2 * value(scarce, light)
    assert value(ample, heavy) == value(ample, light) == 0.5


def test_all_planned_pods_are_together_worth_what_they_take() -> None:
    """The learned values of all pods in a plan, measured in devices, add up to the number of
    devices that these pods use."""
    shapes = [seen(piece(70), pods=9), seen(piece(60), pods=5, cores=9), seen(whole(), cores=4)]
    prices = learn(shapes, [racks(cores=16)], pods=24)
    amounts = planned(shapes, racks(cores=16))
    worth = sum(n * value(prices, shape) for n, shape in zip(amounts, shapes, strict=True))
    taken = sum(n * size for n, size in zip(amounts, (0.7, 0.6, 1.0), strict=True))
    assert worth == pytest.approx(taken, abs=1e-3)


def test_every_shape_that_was_seen_is_priced() -> None:
    """Each shape that was seen gets a price, even if it fits on no node or requests no device."""
    typed = seen(piece(50), use_types=("A100",))
    shapes = [typed, seen(piece(50)), seen(whole(9)), seen(None, cores=4)]
    prices = learn(shapes, [racks()], pods=40)
    assert [shape.pods for shape in prices.shapes] == [10, 10, 10, 10]
    assert prices.shapes[0].use_types == ("A100",)
    assert prices.shapes[0].value == prices.shapes[1].value > 0
    assert all(shape.value > 0 and shape.size > 0 for shape in prices.shapes)


def test_pods_without_devices_have_a_small_size() -> None:
    """Pods without devices count little in the prices: per CPU core, their size is a tenth of the
    size of pods with devices."""
    shapes = [seen(whole(), cores=8), seen(None, cores=16)]
    prices = learn(shapes, [racks()], pods=20)
    assert prices.shapes[1].size == 200_000


@pytest.mark.parametrize(
    "shapes", [[], [seen(None)], [seen(cards(64))], [seen(ask(1, family="ascend910a"))]]
)
@pytest.mark.parametrize("types", [[], [racks()], [NodeType(None, 0, 1000, 1000, 1)]])
def test_clusters_of_nothing_have_prices_too(
    shapes: list[SeenShape], types: list[NodeType]
) -> None:
    """Learning prices works even in a cluster without pods or without devices."""
    assert len(learn(shapes, types, pods=0).shapes) == len(shapes)


def test_the_same_pods_have_the_same_prices() -> None:
    """Learning twice from the same pods gives exactly the same prices."""
    shapes = [seen(piece(10 + n), pods=50 - n, cores=1 + n % 7) for n in range(40)]
    types = [racks(cores=cores) for cores in (16, 32, 96)]
    assert learn(shapes, types, pods=9) == learn(shapes, types, pods=9)
