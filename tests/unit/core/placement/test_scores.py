"""Tests of scores: which node and which device every policy prefers."""

from typing import get_args

import pytest

from apportion.core.devices.chains import chain
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.state import State
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import POINTS, free_amounts, mean_load
from apportion.core.placement.scores import WEIGH_SHAPES
from apportion.core.placement.scores.devices import Order, order_of
from apportion.core.placement.scores.nodes import LOADS
from apportion_schemas import Policy, PolicyChanged, Shape, Share
from apportion_schemas.operations import POLICIES
from tests.support.fleet import gpu, node, npu, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod, shape, share, wants
from tests.support.pods import placed as placement


@pytest.mark.parametrize(
    ("amounts", "points"),
    [
        ((100, 100, 100, 100), 0),
        ((100, 0, 100, 0), POINTS),
        ((100, 50, 100, 100), POINTS // 4),
        ((100, 50, 100, 50), POINTS // 2),
        ((3, 2, 100, 100), POINTS // 3 // 2),
        ((0, 0, 100, 0), 0),
        ((100, 0, 0, 0), 0),
        ((100, -50, 100, -50), POINTS),
        ((100, 200, 100, 200), 0),
    ],
)
def test_mean_load(amounts: tuple[int, int, int, int], points: int) -> None:
    """The load is the mean of the used fractions of memory and cores.

    If the total of either is 0, the load is 0."""
    assert mean_load(*amounts) == points


def three_nodes() -> State:
    """Return a state with three nodes. One is idle, one has half of its device's memory in use, and
    one has half of its CPU in use."""
    return Ledger(
        *(rack(name, 1, memory_mib=1000) for name in ("empty", "gpu-busy", "host-busy")),
        pod("p1"),
        pod("p2", shape=wants(cpu_milli=128_000, memory_mib=1_000_000)),
        placement("p1", "gpu-busy", [share("gpu-busy-g0", 500, cores=0)]),
        placement("p2", "host-busy"),
    ).state


@pytest.mark.parametrize(
    ("policy", "asked", "percent"),
    [
        ("binpack", shape(ask(1)), [0, 25, 0]),
        ("spread", shape(ask(1)), [100, 75, 100]),
        ("binpack", wants(cpu_milli=1), [0, 0, 50]),
        ("spread", wants(cpu_milli=1), [100, 100, 50]),
        ("bestfit", shape(ask(1)), [91.5, 91.625, 95.5]),
        ("bestfit", wants(cpu_milli=1), [91.5, 91.625, 95.5]),
        ("price", shape(ask(1)), [91.5, 91.625, 95.5]),
        ("fgd", wants(cpu_milli=1), [91.5, 91.625, 95.5]),
    ],
)
def test_node_scores(policy: Policy, asked: Shape, percent: list[float]) -> None:
    """A node is scored by its devices, or by CPU and memory if the pod requests no device.

    The policy `bestfit` prefers nodes with little left free. The policies that use prices act like
    `bestfit` while there are no prices."""
    columns = Columns(three_nodes())
    columns.sync()
    assert columns.names == ["empty", "gpu-busy", "host-busy"]
    class_ = PlacementClass(asked, PolicyChanged(by="ann", node_policy=policy), None)
    class_.refresh(columns)
    assert class_.board.points.tolist() == [round(part * POINTS / 100) for part in percent]
    assert [class_.node_score.total(points) for points in class_.board.points.tolist()] == percent


HELD = {"g0": [], "g1": [share("g1", 40_000, 0)], "g2": [share("g2", 100, 0), share("g2", 100, 0)]}
"""One idle, one half full with one pod, one nearly idle with two."""


@pytest.mark.parametrize(
    ("policy", "order"), [("binpack", ["g1", "g2", "g0"]), ("spread", ["g0", "g1", "g2"])]
)
def test_device_orders(policy: str, order: list[str]) -> None:
    """The policy `binpack` tries the fullest device first; `spread` tries the one with the fewest
    pods."""
    shares: list[Share] = [held for all_held in HELD.values() for held in all_held]
    ledger = Ledger(node("n1", gpu("g0"), gpu("g1"), gpu("g2")), pod("p1"))
    ledger.play(placement("p1", shares=shares))
    assert [state.device.id for state in ordered(ledger, order_of(chain(policy), None))] == order


@pytest.mark.parametrize("policy", get_args(Policy))
def test_equal_devices_come_in_the_order_of_their_index(policy: str) -> None:
    """If two devices are equal under the policy, the one with the lower index comes first."""
    ledger = Ledger(node("n1", npu("u3"), npu("u1"), npu("u2")))
    devices = ordered(ledger, order_of(chain(policy), None))
    assert [state.device.index for state in devices] == [1, 2, 3]


def ordered(ledger: Ledger, order: Order) -> list[DeviceState]:
    return sorted(ledger.node().devices, key=lambda state: order(free_amounts(state), state))


def test_every_policy_that_may_be_chosen_is_known_to_both() -> None:
    """Every policy of the schemas has a node score and a device order."""
    assert set(POLICIES) == set(get_args(Policy)) == {*LOADS, *WEIGH_SHAPES}
