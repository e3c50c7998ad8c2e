"""Tests that the scores `price` and `fgd` equal slow reference formulas exactly."""

import random
from math import exp, floor

import pytest
from msgspec import structs

from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import POINTS
from apportion.core.placement.pricing.price_table import PriceTable
from apportion.core.placement.pricing.states import DEVICE_COUNTS, PERCENT
from apportion.core.placement.pricing.states import IDLE as IDLE_STATE
from apportion_schemas import (
    DeviceConstraints,
    Host,
    NodeConstraints,
    NodeReported,
    PodPlaced,
    PodSubmitted,
    Policy,
    PolicyChanged,
    PricedShape,
    PricesLearnt,
    Shape,
)
from apportion_schemas.quantities import COUNT_MAX, WHOLE
from tests.support import prices as slow
from tests.support.fleet import A100_40, gpu, node
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, instance, placed, pod, share, wants
from tests.support.prices import IDLE, Left, learnt, piece, priced, whole

MEMORY_MIB = 10_000
NODES = 8


def shapes(drawn: random.Random) -> tuple[PricedShape, ...]:
    """Return random shapes of pods with their prices: shares, whole devices and a pod without
    devices."""
    shares = [
        priced(
            piece(size),
            drawn.randrange(8_000, 12_000) * size,
            drawn.randrange(1, 8) * 1000,
            memory_mib=drawn.randrange(1, 9) * 1000,
            pods=drawn.randrange(1, 50),
        )
        for size in drawn.sample(range(20, 90), 4)
    ]
    wholes = [priced(whole(n), 960_000 * n, 6000 * n, pods=9) for n in (1, 2)]
    return *shares, *wholes, priced(None, 50_000, 6000, pods=12)


def shape_of(sort: PricedShape) -> Shape:
    asks = (sort.ask,) if sort.ask else ()
    return wants(*asks, cpu_milli=sort.cpu_milli, memory_mib=sort.memory_mib)


def nodes(drawn: random.Random) -> list[NodeReported]:
    """Return nodes of up to four devices, some with little CPU or memory."""
    found = []
    for number in range(NODES):
        name = f"n{number}"
        devices = [
            gpu(f"{name}-g{index}", memory_mib=MEMORY_MIB) for index in range(drawn.randrange(5))
        ]
        host = Host(cpu_milli=drawn.choice((9_000, 30_000)), memory_mib=drawn.choice((9000, 90000)))
        found.append(node(name, *devices, host=host))
    return found


def holders(drawn: random.Random, reports: list[NodeReported]) -> list[PodSubmitted | PodPlaced]:
    """Return the events that place pods on random parts of these nodes' devices."""
    found: list[PodSubmitted | PodPlaced] = []
    for report in reports:
        for device in report.devices:
            percent = drawn.choice((0, 0, 15, 40, 75, 100))
            if percent:
                uid = f"on-{device.id}"
                found.append(pod(uid))
                held = share(device.id, MEMORY_MIB * percent // 100, percent)
                found.append(placed(uid, report.node, [held]))
    return found


def lefts(ledger: Ledger, report: NodeReported) -> Left:
    """Return the node's free CPU, memory and devices, in the form that the reference formulas
    take."""
    state = ledger.node(report.node)
    devices = tuple(IDLE if device.idle else device.cores_free for device in state.devices)
    return Left(report.host.cpu_milli, report.host.memory_mib, devices)


def after(sort: PricedShape, left: Left) -> list[tuple[int, Left]]:
    """Return every way to place a pod of this shape on the node, as (device, rest) pairs.

    `device` is the first device that the pod uses, and `rest` is what the node then has free."""
    host = (sort.cpu_milli, sort.memory_mib)
    if left.cpu_milli < host[0] or left.memory_mib < host[1]:
        return []
    if sort.ask is None:
        return [(-1, left.without(*host, *left.devices))]
    found = []
    for first, here in enumerate(left.devices):
        devices = list(left.devices)
        if slow.size_of(sort) < 100 and min(here, 100) >= slow.size_of(sort):
            devices[first] = min(here, 100) - slow.size_of(sort)
            found.append((first, left.without(*host, *devices)))
        idle = [at for at, state in enumerate(devices) if state == IDLE and at >= first]
        if slow.size_of(sort) == 100 and here == IDLE and len(idle) >= sort.ask.count:
            for at in idle[: sort.ask.count]:
                devices[at] = 0
            found.append((first, left.without(*host, *devices)))
    return found


def scored(
    ledger: Ledger, policy: Policy, sort: PricedShape
) -> tuple[PlacementClass, dict[str, int]]:
    """Return the placement class for this shape of pod, and the score of every node under the
    policy."""
    assert ledger.state.prices is not None
    columns = Columns(ledger.state)
    columns.sync()
    price_table = PriceTable(ledger.state.prices, columns.offered())
    class_ = PlacementClass(
        shape_of(sort), PolicyChanged(by="ann", node_policy=policy), price_table
    )
    class_.refresh(columns)
    return class_, dict(zip(columns.names, class_.board.points.tolist(), strict=True))


def cluster(seed: int) -> tuple[Ledger, list[NodeReported], tuple[PricedShape, ...]]:
    """Return a ledger with random nodes, pods and prices, together with its nodes and its priced
    shapes."""
    drawn = random.Random(seed)
    sorts, reports = shapes(drawn), nodes(drawn)
    ledger = Ledger(*reports, *holders(drawn, reports), learnt(*sorts))
    return ledger, reports, sorts


@pytest.mark.parametrize("seed", range(6))
def test_price_is_what_the_pod_would_leave(seed: int) -> None:
    """The `price` score of a node falls by the value and variety that the node would lose.

    Variety is the weighted number of pods of each shape that still fit on the node."""
    ledger, reports, sorts = cluster(seed)
    for sort in sorts:
        class_, points = scored(ledger, "price", sort)
        for row, report in enumerate(reports):
            left = lefts(ledger, report)
            ways = after(sort, left)
            if not ways:
                assert points[report.node] == -1
                continue
            device, best = max(
                ways,
                key=lambda way: (
                    slow.node_value(sorts, way[1]),
                    -min(left.devices[way[0]], 100) if way[0] >= 0 else 0,
                    -way[0],
                ),
            )
            worth = slow.node_value(sorts, left) + slow.node_variety(sorts, left)
            kept = slow.node_value(sorts, best) + slow.node_variety(sorts, best)
            assert points[report.node] == POINTS - (worth - kept)
            assert class_.node_score.device(row) == device


@pytest.mark.parametrize("seed", range(6))
def test_fgd_is_the_fall_of_expected_fragments(seed: int) -> None:
    """The `fgd` score of a node follows the published formula: it compares the expected fragments
    before and after the placement. Of equal devices, the pod gets the first."""
    ledger, reports, sorts = cluster(seed)
    total = sum(sort.pods for sort in sorts) * 100
    for sort in sorts:
        class_, points = scored(ledger, "fgd", sort)
        for row, report in enumerate(reports):
            left = lefts(ledger, report)
            ways = after(sort, left)
            if not ways:
                assert points[report.node] == -1
                continue
            before = slow.node_fragments(sorts, left)
            score = {
                device: floor(100 / (1 + exp((slow.node_fragments(sorts, way) - before) / total)))
                for device, way in ways
            }
            wanted, device = max(score.values()), max(score, key=score.__getitem__)
            assert points[report.node] == wanted * (POINTS // 100)
            assert class_.node_score.device(row) == device


@pytest.mark.parametrize("policy", ["price", "fgd"])
def test_the_device_taken_is_the_one_that_was_scored(policy: Policy) -> None:
    """A node's score assumes a certain device, and the pod gets exactly that device."""
    ledger, _, sorts = cluster(3)
    ledger.play(PolicyChanged(by="ann", node_policy=policy, device_policy=policy))
    for number, sort in enumerate(sorts):
        if sort.ask is None or slow.size_of(sort) == 100:
            continue
        class_, points = scored(ledger, policy, sort)
        name = max(sorted(points), key=points.__getitem__)
        device = class_.node_score.device(sorted(points).index(name))
        ledger.submit(pod(f"p{number}", shape=shape_of(sort))).decide()
        assert ledger.where(f"p{number}") == name
        assert ledger.devices(f"p{number}") == [f"{name}-g{device}"]


@pytest.mark.parametrize("policy", ["price", "fgd"])
def test_decisions_do_not_depend_on_how_the_state_came_about(policy: Policy) -> None:
    """The order in which nodes and prices arrived does not change the scheduler's decisions."""

    def placements(seed: int, *, prices_first: bool) -> list[tuple[str, list[str]]]:
        drawn = random.Random(1)
        sorts, reports = shapes(drawn), nodes(drawn)
        held = holders(drawn, reports)
        random.Random(seed).shuffle(reports)
        prices: list[PricesLearnt] = [learnt(*sorts)]
        chosen = PolicyChanged(by="ann", node_policy=policy, device_policy=policy)
        first = prices if prices_first else []
        ledger = Ledger(chosen, *first, *reports, *held, *prices)
        for number in range(30):
            ledger.submit(pod(f"p{number:02}", shape=shape_of(sorts[number % len(sorts)])))
        ledger.settle()
        pods = sorted(ledger.state.pods)
        return [(ledger.where(uid), ledger.devices(uid)) for uid in pods if ledger.where(uid)]

    wanted = placements(0, prices_first=False)
    assert len(wanted) > 20
    assert all(placements(seed, prices_first=bool(seed % 2)) == wanted for seed in range(1, 4))


def test_new_prices_count_from_the_next_decision() -> None:
    """New prices apply from the next decision. Here the old prices prefer a full device, and the
    new ones an idle device."""
    small, large = priced(piece(30), 300_000), priced(piece(70), 700_000)
    ledger = Ledger(
        node("n1", gpu("a-g0", memory_mib=MEMORY_MIB), gpu("a-g1", memory_mib=MEMORY_MIB)),
        pod("held"),
        placed("held", "n1", [share("a-g1", 3000, 30)]),
        learnt(small, large),
    )
    ledger.submit(pod("p1", shape=shape_of(small))).decide()
    assert ledger.devices("p1") == ["a-g0"], "the large share fits exactly where the small one is"
    ledger.gone("p1").play(learnt(small)).submit(pod("p2", shape=shape_of(small))).decide()
    assert ledger.devices("p2") == ["a-g1"], "small ones fill a device by themselves"


def test_modes_part_the_market() -> None:
    """If many pods accept only MPS, a pod that requests a whole GPU gets the one in MIG mode.

    That GPU has the lower price, because MPS pods cannot use it."""
    cut = DeviceConstraints(modes=("mig",))
    constraints = NodeConstraints(cpu_milli=1000, memory_mib=1024)
    mps_only = priced(piece(50), 900_000, modes=("mps",), pods=100)
    ledger = Ledger(
        node("cut", gpu("c-g0", mode="mig")),
        node("shared", gpu("s-g0", mode="mps")),
        learnt(mps_only, priced(whole(), 1_000_000)),
    )
    ledger.submit(pod("p1", shape=Shape(asks=(whole(),), node=constraints))).decide()
    assert ledger.where("p1") == "cut"
    ledger.submit(pod("p2", shape=Shape(asks=(whole(),), node=constraints, devices=cut))).settle()
    assert ledger.where("p2") == ""


def test_a_card_with_closed_slices_is_worth_what_is_left_of_it() -> None:
    """MIG slices that another scheduler uses lower a device's value as much as a share's slices."""
    card = gpu("a", model=A100_40, mode="mig", slots=7)
    held = share("b", 20_096, 0, instance=instance("3g.20gb", 0, 4))
    prices = learnt(priced(whole(), 1_000_000), priced(ask(4_000, container="any"), 100_000))
    ledger = Ledger(
        node("closed", structs.replace(card, closed_slices=0b1111)),
        node("shared", structs.replace(card, id="b")),
        pod("x", shape=Shape(asks=(ask(20_000),))),
        placed("x", "shared", [held]),
        prices,
    )
    columns = Columns(ledger.state)
    columns.sync()
    readings = PriceTable(prices, columns.offered()).read(columns)
    closed, shared = (columns.row_of(name) for name in ("closed", "shared"))
    assert readings.idles[closed] == readings.idles[shared]
    assert readings.least[closed] == readings.least[shared] > 0


def test_nothing_learnt_from_no_pods_is_no_reason_to_stop() -> None:
    """If there were no pods to learn prices from, all nodes have equal scores, and the scheduler
    chooses the first by name."""
    ledger = Ledger(node("n1", gpu("a-g0")), node("n2", gpu("b-g0")), learnt())
    ledger.submit(pod("p1", shape=Shape(asks=(whole(),)))).decide()
    assert ledger.where("p1") == "n1"


@pytest.mark.parametrize("policy", ["price", "fgd"])
def test_points_are_told_as_0_to_100(policy: Policy) -> None:
    """A placement reports the scores of the chosen node and the runners-up as numbers from 0 to
    100."""
    ledger, _, sorts = cluster(2)
    told = []
    for sort in sorts:
        class_, points = scored(ledger, policy, sort)
        told += [class_.node_score.total(each) for each in points.values() if each != -1]
    assert len(told) > 10
    assert all(0 <= total <= 100 for total in told)


@pytest.mark.parametrize("policy", ["price", "fgd"])
def test_prices_outlive_the_devices(policy: Policy) -> None:
    """The scheduler accepts prices while the fleet has no devices, and places pods once it has
    some."""
    chosen = PolicyChanged(by="ann", node_policy=policy, device_policy=policy)
    ledger = Ledger(chosen, learnt(priced(piece(50), 500_000)), pod("p1", piece(50))).settle()
    assert ledger.where("p1") == ""
    ledger.play(node("n1", gpu("a-g0"))).settle()
    assert ledger.where("p1") == "n1"


def test_what_fits_by_a_fraction_is_no_gift() -> None:
    """A pod of size 23 % that takes the last 22.9 % of a device lowers the score by their value."""
    exact = priced(ask(2_290, container="any"), 300_000)
    ledger = Ledger(
        node("n1", gpu("a-g0", memory_mib=MEMORY_MIB)),
        pod("x"),
        placed("x", "n1", [share("a-g0", MEMORY_MIB - 2_290, 1)]),
        learnt(exact, priced(piece(20), 250_000)),
    )
    _, points = scored(ledger, "price", exact)
    assert points["n1"] <= POINTS - 250_000, "another pod could have earned as much there"


def test_numbers_that_loops_know_are_those_of_the_schemas() -> None:
    """The constants that the compiled loops repeat have the same values as in the schemas."""
    assert (PERCENT, IDLE_STATE, DEVICE_COUNTS) == (WHOLE, WHOLE + 1, COUNT_MAX + 1)
