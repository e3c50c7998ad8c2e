"""Tests that the index, which has one row of amounts per node, always matches the state."""

import itertools

import numpy as np
import pytest

from apportion.core.ledger.state import NodeState, State
from apportion.core.placement.index import columns as node_columns
from apportion.core.placement.index import packed
from apportion.core.placement.index.columns import CORDONED, HOST, OPEN, UNHEALTHY, Columns
from apportion.core.placement.index.device_kinds import FIRST_KIND, HOST_KIND, NO_KIND
from apportion_schemas import (
    DeviceCordoned,
    DeviceHealthChanged,
    NodeCordoned,
    NodeReported,
    NodeSilent,
    PodAdopted,
    PodGone,
    Share,
    Taint,
)
from tests.support.fleet import A100_40, gpu, node, npu, observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, instance, pod, share
from tests.support.pods import placed as placement


def synced(state: State) -> Columns:
    columns = Columns(state)
    columns.sync()
    return columns


def assert_equal(one: Columns, other: Columns) -> None:
    """Check that both indexes have the same nodes in the same order with the same contents.

    The numbers that stand for device kinds may differ, and so may the width of the rows."""
    rows, others = taken(one), taken(other)
    assert [one.names[row] for row in rows] == [other.names[row] for row in others]
    assert [one.nodes[row].name for row in rows] == [other.nodes[row].name for row in others]
    width = other.free.shape[1]
    for name in ("free", "index", "slices", "closed"):
        assert np.array_equal(getattr(one, name)[rows, :width], getattr(other, name)[others]), name
    for name in ("load", "host_load", "schedulable"):
        assert np.array_equal(getattr(one, name)[rows], getattr(other, name)[others]), name
    kinds = [kind_names(other, row) for row in others]
    assert [kind_names(one, row) for row in rows] == kinds
    assert not one.schedulable[one.vacant].any()
    assert (one.free[one.vacant] == packed.GUARDS).all()


def taken(columns: Columns) -> list[int]:
    """Check that `row_of` finds every row by its node's name. Return the rows in use."""
    rows = np.flatnonzero(~columns.vacant).tolist()
    assert [columns.row_of(columns.names[row]) for row in rows] == rows
    assert columns.count == len(rows)
    return rows


def kind_names(columns: Columns, row: int) -> list[str]:
    return [
        columns.kinds[kind - FIRST_KIND].model
        for kind in columns.kind[row].tolist()
        if kind >= FIRST_KIND
    ]


MIXED = (rack("b", 3), node("c"), node("a", npu("u0"), gpu("m1", model=A100_40, mode="mig")))


def test_rows_say_what_the_state_says() -> None:
    """A node's row has the host in column 0 and the node's devices in the following columns. The
    remaining columns are empty."""
    columns = synced(Ledger(*MIXED).state)
    assert columns.names[:3] == ["a", "b", "c"]
    assert columns.kind[:3, HOST].tolist() == [HOST_KIND] * 3
    assert [int((row != NO_KIND).sum()) for row in columns.kind[:3]] == [3, 4, 1]
    assert columns.index[:3].tolist() == [[-1, 0, 1, -1], [-1, 0, 1, 2], [-1] * 4]
    assert columns.free[2].tolist()[1:] == [packed.GUARDS] * 3
    assert columns.free[0, 1] == packed.GUARDS | packed.amounts(21527, 8, 7, 7)
    assert columns.free[1, HOST] == packed.GUARDS | packed.amounts(2_000_000, 256_000, 250)
    assert columns.schedulable[:3].all()


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_nodes_may_join_in_any_order(order: tuple[int, ...]) -> None:
    """The index has the same rows whatever the order in which nodes joined.

    This holds even if a later node has more devices than the index has columns."""
    reports = (*MIXED, rack("d", 6))
    expected = synced(Ledger(*reports).state)
    ledger = Ledger()
    columns = Columns(ledger.state)
    for at in order:
        report: NodeReported = reports[at]
        change = ledger.take(report)
        assert change.node is not None
        columns.touch(change.node)
        columns.sync()
    assert_equal(columns, expected)


CHANGES = [
    ("a share", (pod("p"), placement("p", "b", [share("b-g1", 500)]))),
    ("fewer devices", (rack("b", 1),)),
    ("other devices", (node("b", npu("x0")),)),
    ("more devices", (rack("b", 9),)),
    ("unhealthy", (DeviceHealthChanged(node="b", device="b-g2", healthy=False),)),
    ("cordoned", (DeviceCordoned(device="b-g0", by="ann", reason="fan"),)),
    (
        "an instance",
        (pod("p"), placement("p", "a", [share("m1", 5120, 0, instance=instance("1g.5gb", 6, 1))])),
    ),
    ("a cordon", (NodeCordoned(node="b", by="ann", reason="kernel"),)),
    ("a silent agent", (NodeSilent(node="b", grace_s=40),)),
    ("a taint", (observed("b", taints=(Taint(key="k", effect="NoSchedule"),)),)),
]


@pytest.mark.parametrize("events", [case[1] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_changes_reach_the_row_and_can_be_taken_back(events: tuple[object, ...]) -> None:
    """After every change, and after the change is undone, the updated index equals a newly built
    index."""
    ledger = Ledger(*MIXED)
    columns = synced(ledger.state)
    for data in (*events, *MIXED[:1]):
        change = ledger.take(data)  # type: ignore[arg-type]
        if change.node is not None:
            columns.touch(change.node)
        columns.sync()
        assert_equal(columns, synced(ledger.state))


def test_closed_devices_say_why() -> None:
    """The index keeps one reason why a device takes no new pods.

    If a device is both unhealthy and cordoned, the reason is that it is unhealthy."""
    ledger = Ledger(
        rack("b", 3),
        DeviceHealthChanged(node="b", device="b-g1", healthy=False),
        DeviceCordoned(device="b-g1", by="ann", reason="fan"),
        DeviceCordoned(device="b-g2", by="ann", reason="fan"),
    )
    columns = synced(ledger.state)
    assert columns.closed[0].tolist() == [OPEN, OPEN, UNHEALTHY, CORDONED]
    assert columns.free[0, 2:].tolist() == [packed.GUARDS] * 2


def test_a_card_that_an_adopted_pod_closed_is_open_once_that_has_ended() -> None:
    """A MIG device is closed while an adopted pod uses slices of it that are unknown. It opens when
    that pod ends."""
    ledger = Ledger(
        node("a", gpu("m1", model=A100_40, mode="mig")),
        PodAdopted(pod="p", node="a", submitted=pod("p", ask(1)), shares=(share("m1", 5120, 0),)),
    )
    columns = synced(ledger.state)
    assert columns.closed[0, 1] == UNHEALTHY
    change = ledger.take(PodGone(uid="p"))
    columns.touch(ledger.node("a"), change.shares)
    columns.sync()
    assert columns.closed[0, 1] == OPEN
    assert_equal(columns, synced(ledger.state))


def test_sync_costs_what_was_touched() -> None:
    """A sync of the index reads only the nodes that changed since the last sync."""
    ledger = Ledger(*(rack(f"n{number:03}", 1) for number in range(100)))
    refreshed: list[str] = []

    class Counted(Columns):
        def _refresh(self, row: int, node: NodeState, shares: list[Share] | None) -> None:
            refreshed.append(node.name)
            super()._refresh(row, node, shares)

    columns = Counted(ledger.state)
    columns.sync()
    assert len(refreshed) == 100
    refreshed.clear()
    columns.touch(ledger.node("n042"))
    columns.touch(ledger.node("n042"))
    end = columns.changed.end
    columns.sync()
    columns.sync()
    assert refreshed == ["n042"]
    since = columns.changed.since(end)
    assert since is not None
    assert [columns.names[row] for row in since.tolist()] == ["n042"]


def test_only_the_devices_of_the_shares_are_read() -> None:
    """When a pod is placed or ends, a sync reads only the devices of its shares, not the whole
    node."""
    ledger = Ledger(rack("n1", 8), pod("p"), pod("q"))
    columns = synced(ledger.state)
    for data in (
        placement("p", shares=[share("n1-g3", memory_mib=1000)]),
        placement("q", shares=[share("n1-g5", memory_mib=2000)]),
        PodGone(uid="p"),
    ):
        columns.touch(ledger.node(), ledger.take(data).shares)
        columns.sync()
        fresh = synced(ledger.state)
        assert columns.free.tolist() == fresh.free.tolist()
        assert columns.load.tolist() == fresh.load.tolist()
    before = columns.free.tolist()
    ledger.node().devices[0].memory_free_mib -= 1  # not reported: the pod has no share there
    columns.touch(ledger.node(), ())
    columns.sync()
    assert columns.free.tolist() == before


def test_changes_of_facts_are_told_apart() -> None:
    """The index logs a placement only as a change of the node's amounts. It logs a report also as a
    change of the node's facts, such as the kinds of its devices."""
    ledger = Ledger(rack("n1", 1), pod("p"))
    columns = synced(ledger.state)
    facts, changed = columns.facts_changed.end, columns.changed.end
    ledger.play(placement("p", shares=[share("n1-g0")]))
    columns.touch(ledger.node())
    columns.sync()
    assert (columns.facts_changed.end, columns.changed.end) == (facts, changed + 1)
    ledger.report(rack("n1", 1))
    columns.touch(ledger.node())
    columns.sync()
    assert (columns.facts_changed.end, columns.changed.end) == (facts + 1, changed + 2)


def test_a_node_that_joins_moves_few_others() -> None:
    """Rows are sorted by node name. A new node moves few other rows, and the log of changes lists
    all of these."""
    ledger = Ledger(*(rack(f"n{number:03}", 1) for number in range(0, 400, 2)))
    columns = synced(ledger.state)
    generation = columns.generation
    for joined in ("n001", "n399", "a", "n201", "n203", "n205", "z", "y"):
        end, before = columns.changed.end, dict(row_numbers(columns))
        columns.touch(ledger.node(ledger.take(rack(joined, 1)).data.node))
        columns.sync()
        since, facts = columns.changed.since(end), columns.facts_changed.since(0)
        assert since is not None
        assert facts is not None
        moved = {row for name, row in row_numbers(columns).items() if before.get(name) != row}
        assert len(moved) <= 40
        assert moved <= set(since.tolist()) <= set(facts.tolist())
        assert_equal(columns, synced(ledger.state))
    assert columns.generation == generation


def row_numbers(columns: Columns) -> dict[str, int]:
    return {columns.names[row]: row for row in taken(columns)}


def test_without_a_spare_row_all_are_laid_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no spare row near the place of a new node, the index is rebuilt with new spare
    rows."""
    monkeypatch.setattr(node_columns, "MOVED_MAX", 3)
    ledger = Ledger(*(rack(f"n{number:03}", 1) for number in range(100)))
    columns = synced(ledger.state)
    generation = columns.generation
    for number in range(8):
        columns.touch(ledger.node(ledger.take(rack(f"n050{number}", 1)).data.node))
        columns.sync()
        assert_equal(columns, synced(ledger.state))
    assert columns.generation > generation
