"""Tests of a placement class, which keeps every node's score for pods of one shape and scores only
changed nodes again."""

import numpy as np
import pytest

from apportion.core.ledger.state import NodeState, State
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.feasibility.descriptors import Cause
from apportion.core.placement.feasibility.evaluator import FITS, RANK
from apportion.core.placement.feasibility.nodes import FACT_FILTERS, FACTS
from apportion.core.placement.index.board_loops import BLOCK, REFUSED
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import POINTS
from apportion.core.placement.index.score_input import Scoreboard
from apportion_schemas import (
    NodeConstraints,
    NodeCordoned,
    PolicyChanged,
    PreferredTerm,
    RefusalCode,
    Shape,
    Taint,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import A100_40, gpu, node, observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, instance, pod, shape, share, wants
from tests.support.pods import placed as placement

BINPACK = PolicyChanged(by="ann", node_policy="binpack", device_policy="binpack")


def class_of(wanted: Shape, state: State) -> tuple[PlacementClass, Columns]:
    """Return the placement class of this shape with every node scored, and the node index used."""
    columns = Columns(state)
    columns.sync()
    class_ = PlacementClass(wanted, BINPACK, None)
    class_.refresh(columns)
    return class_, columns


def take(ledger: Ledger, columns: Columns, *events: Payload) -> None:
    for data in events:
        change = ledger.take(data)
        if change.node is not None:
            columns.touch(change.node)
    columns.sync()


def three() -> Ledger:
    """Return a ledger with three nodes. Node `b` is half full."""
    ledger = Ledger(*(rack(name, 1, memory_mib=1000) for name in "abc"), pod("x"))
    return ledger.play(placement("x", "b", [share("b-g0", 500, cores=50)]))


def test_best_rows_come_by_points_and_then_by_name() -> None:
    """A placement class returns the best nodes by score, and nodes of equal score by name. The
    query does not change the class."""
    class_, _ = class_of(shape(ask(100)), three().state)
    assert class_.board.best(2) == [(1, POINTS // 2), (0, 0)]
    assert class_.board.best(9) == [(1, POINTS // 2), (0, 0), (2, 0)]
    assert class_.board.best(2) == [(1, POINTS // 2), (0, 0)]
    assert (class_.fitting, class_.fits_somewhere) == (3, True)


def test_where_it_fits_nowhere() -> None:
    """If no node fits, or if there are no nodes, a placement class returns no best node."""
    class_, _ = class_of(shape(ask(9999)), three().state)
    assert (class_.board.best(3), class_.fitting, class_.fits_somewhere) == ([], 0, False)
    nothing, _ = class_of(shape(ask(1)), State())
    assert (nothing.board.best(3), nothing.fitting, nothing.fits_somewhere) == ([], 0, False)


def test_best_among_marked_rows_are_the_same_as_in_a_full_sort() -> None:
    """If some marked nodes fit, only marked ones are returned, in the same order as of all nodes;
    if none fits, all nodes count."""
    drawn = np.random.default_rng(3)
    for rows in (1, 5, 2 * BLOCK + 7):
        for _ in range(30):
            points = drawn.integers(REFUSED, 4, rows).astype(np.int32)
            first = drawn.random(rows) < drawn.random()
            board = Scoreboard(rows)
            board.replace(points)
            among = first if (points[first] != REFUSED).any() else np.ones(rows, np.bool_)
            fitting = [row for row in np.flatnonzero(among).tolist() if points[row] != REFUSED]
            fitting.sort(key=lambda row: -points[row])
            for count in (1, 4):
                assert board.best(count, first) == [(row, points[row]) for row in fitting[:count]]


UNLOOKED = 77


def looked_at(class_: PlacementClass, columns: Columns) -> list[int]:
    """Refresh the placement class. Return the rows of the nodes that it scored again."""
    class_.board.points[:] = UNLOOKED
    class_.refresh(columns)
    return [row for row, points in enumerate(class_.board.points.tolist()) if points != UNLOOKED]


POLICIES = pytest.mark.parametrize("policy", ["binpack", "spread", "bestfit"])


@POLICIES
def test_only_changed_rows_are_looked_at(policy: str) -> None:
    """A refresh of a placement class scores only the nodes that changed since the last refresh, and
    each of them once."""
    ledger = three()
    class_, columns = class_of(shape(ask(100), node_policy=policy), ledger.state)
    assert UNLOOKED not in class_.board.points
    assert looked_at(class_, columns) == []
    take(ledger, columns, pod("y"), placement("y", "c", [share("c-g0", 1, 1)]))
    take(ledger, columns, pod("z"), placement("z", "c", [share("c-g0", 1, 1)]))
    assert looked_at(class_, columns) == [2]
    take(ledger, columns, rack("d", 1, memory_mib=1000))
    class_.refresh(columns)
    assert UNLOOKED not in class_.board.points
    assert len(class_.board.points) == 4


@POLICIES
def test_a_class_that_was_not_asked_for_long_looks_at_every_row(policy: str) -> None:
    """If a placement class has missed more changes than there are nodes, a refresh scores each
    node once instead of once per change."""
    ledger = three()
    class_, columns = class_of(shape(ask(100), node_policy=policy), ledger.state)
    for number in range(5):
        take(ledger, columns, pod(f"y{number}"), placement(f"y{number}", "c"))
    assert looked_at(class_, columns) == [0, 1, 2]


def test_a_row_follows_its_node() -> None:
    """When a node fills up or is cordoned, a placement class refuses the node, and knows which
    filter the node fails."""
    ledger = three()
    class_, columns = class_of(shape(ask(600)), ledger.state)
    assert class_.board.points.tolist() == [0, REFUSED, 0]
    take(ledger, columns, pod("y"), placement("y", "a", [share("a-g0", 500, 0)]))
    class_.refresh(columns)
    assert class_.board.points.tolist() == [REFUSED, REFUSED, 0]
    ledger.engine.observe(change := ledger.take(NodeCordoned(node="c", by="ann", reason="x")))
    assert change.node is not None
    columns.touch(change.node)
    columns.sync()
    class_.refresh(columns)
    assert class_.board.points.tolist() == [REFUSED] * 3
    assert class_.facts.ranks.tolist() == [FITS, FITS, RANK[RefusalCode.NODE_CORDONED]]


def test_a_filter_that_names_no_closed_nodes_is_applied_to_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a filter does not list the nodes that it may refuse, a placement class applies the filter
    to every node."""

    def short(shape: Shape, node: NodeState) -> tuple[int, int]:
        return len(node.name), len(shape.asks)

    more = (*FACT_FILTERS, (RefusalCode.MODE_MISMATCH, short))
    monkeypatch.setattr("apportion.core.placement.feasibility.evaluator.FACT_FILTERS", more)
    cause = Cause(RefusalCode.MODE_MISMATCH, "", "", (), check=short)
    monkeypatch.setattr("apportion.core.placement.feasibility.nodes.FACTS", (*FACTS, cause))
    class_, _ = class_of(shape(ask(100)), Ledger(rack("a", 1), rack("long", 1)).state)
    assert class_.facts.ranks.tolist() == [FITS, RANK[RefusalCode.MODE_MISMATCH]]


def test_collided_row_is_refused_until_it_changes() -> None:
    """If a pod's containers do not fit a node together, the class offers the node only once it
    changes.

    The node still counts as fitting."""
    ledger = three()
    class_, columns = class_of(shape(ask(300), ask(301, container="b")), ledger.state)
    assert class_.may_collide
    class_.exclude(1)
    class_.exclude(1)
    assert class_.board.best(3) == [(0, 0), (2, 0)]
    assert class_.fitting == 3
    take(ledger, columns, pod("y"), placement("y", "a", [share("a-g0", 1, 1)]))
    class_.refresh(columns)
    assert [row for row, _ in class_.board.best(3)] == [0, 2]
    ledger.gone("x")
    columns.touch(ledger.node("b"))
    columns.sync()
    class_.refresh(columns)
    assert sorted(row for row, _ in class_.board.best(3)) == [0, 1, 2]


def test_containers_that_ask_alike_are_counted_beside_one_another() -> None:
    """If a pod's containers have equal requests, a placement class refuses nodes that have room for
    only one of the containers."""
    ledger = Ledger(
        rack("a", 1, memory_mib=1000),
        rack("b", 2, memory_mib=300),
        rack("c", 1, memory_mib=599),
        rack("d", 1, memory_mib=2000),
        pod("x"),
        placement("x", "d", [share("d-g0", 1500, 0)]),
    )
    pair = shape(ask(300), ask(300, container="b"))
    class_, _ = class_of(pair, ledger.state)
    assert not class_.may_collide
    assert [points != REFUSED for points in class_.board.points.tolist()] == [
        True,
        True,
        False,
        False,
    ]
    assert class_.fitting == 2
    twos = shape(*(ask(300, count=2, container=name) for name in "ab"))
    assert class_of(twos, ledger.state)[0].may_collide


def test_slices_count_beside_amounts() -> None:
    """A placement class refuses a MIG device that has enough memory but no suitable free slices."""
    held = [share("m0", 5120, 0, instance=instance("1g.5gb", start, 1)) for start in (3, 6)]
    ledger = Ledger(
        node("a", gpu("m0", model=A100_40, mode="mig")),
        node("b", gpu("m1", model=A100_40, mode="mig")),
        pod("x"),
        placement("x", "a", held),
    )
    class_, _ = class_of(shape(ask(20_000)), ledger.state)
    assert [score == REFUSED for score in class_.board.points.tolist()] == [True, False]


def test_count_is_devices_with_room() -> None:
    """A placement class refuses a node on which fewer devices than requested have enough room, even
    if the node has more devices."""
    ledger = Ledger(rack("a", 2), rack("b", 3), pod("x"), placement("x", "b", [share("b-g0")]))
    class_, _ = class_of(shape(cards(2)), ledger.state)
    assert [score == REFUSED for score in class_.board.points.tolist()] == [False, False]
    class_, _ = class_of(shape(cards(3)), ledger.state)
    assert [score == REFUSED for score in class_.board.points.tolist()] == [True, True]


def test_host_amounts_count_as_well() -> None:
    """A placement class also compares a pod's CPU, memory and extended resources with those of the
    node."""
    ledger = Ledger(rack("a", 1))
    for wanted, fits in (
        (wants(cpu_milli=256_000, memory_mib=2_000_000), True),
        (wants(cpu_milli=256_001), False),
        (wants(memory_mib=2_000_001), False),
        (wants(extended={"example.com/nic": 1}), False),
    ):
        class_, _ = class_of(wanted, ledger.state)
        assert class_.fits_somewhere is fits


def test_the_first_node_that_is_shunned_is_a_point_of_all_others() -> None:
    """If the first node gets a PreferNoSchedule taint, the scores of all other nodes change too. A
    refreshed placement class then has the same scores as a new one."""
    prefers = NodeConstraints(preferred=(PreferredTerm(weight=1, term=()),))
    ledger = three()
    class_, columns = class_of(shape(node=prefers), ledger.state)
    shunned = Taint(key="t", effect="PreferNoSchedule")
    for taints in ((shunned,), ()):
        take(ledger, columns, observed("a", taints=taints))
        class_.refresh(columns)
        anew, _ = class_of(shape(node=prefers), ledger.state)
        assert class_.board.points.tolist() == anew.board.points.tolist()
