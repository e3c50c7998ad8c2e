"""Tests of accounting: how much of each device pods, queues and labels use over time, and what is
left unallocated."""

import pytest

from apportion.core.ledger.handlers.departures import LEFT_MAX
from apportion.core.ledger.moments import HOUR
from apportion.core.reports.accounts import LATE, Account
from apportion.core.reports.lost import Lost
from apportion.core.reports.meters import Meters, Part
from apportion_schemas import DeviceHealthChanged, NodeCordoned, NodeUncordoned, PodChanged, PodGone
from tests.support.accounts import Accounted
from tests.support.fleet import gpu, node, observed, rack
from tests.support.pods import gang, member, pod, share
from tests.support.pods import placed as placement

HALF = 40_960
"""MiB: half of the default GPU."""


def test_a_share_is_the_part_of_its_cards_memory() -> None:
    """A share counts as its fraction of the GPU's memory, whatever its cores.

    Half of a GPU for four hours is two GPU-hours."""
    accounted = Accounted().at(0, rack("n1", 2), pod("p1"))
    accounted.at(2, placement("p1", shares=[share("n1-g0", HALF, 90)])).at(6, PodGone(uid="p1"))
    answer = accounted.report()
    (row,) = answer.rows
    assert (row.key, row.allocated_gpu_hours, row.allocated_gib_hours) == ("default", 2.0, 160.0)
    total = answer.total
    assert (total.capacity_gpu_hours, total.free_gpu_hours) == (20.0, 18.0)
    assert (total.capacity_gib_hours, total.free_gib_hours) == (1600.0, 1440.0)
    assert (row.capacity_gpu_hours, row.free_gpu_hours) == (2.0, None), "the rest is nobody's"


def test_a_share_without_memory_counts_by_its_cores() -> None:
    """A share without memory counts as its fraction of the GPU's cores."""
    accounted = Accounted().at(0, rack("n1", 1), pod("p1"))
    accounted.at(0, placement("p1", shares=[share("n1-g0", 0, 25)]))
    assert accounted.rows()["default"].allocated_gpu_hours == 2.5


def test_the_rest_of_a_card_is_free_cordoned_or_broken() -> None:
    """The unallocated part of a device counts as free, cordoned or unhealthy; unhealthy precedes
    cordoned. The allocated part stays allocated."""
    accounted = Accounted("node").at(0, rack("n1", 2), pod("p1"))
    accounted.at(0, placement("p1", shares=[share("n1-g0", HALF)]))
    accounted.at(2, NodeCordoned(node="n1", by="x", reason="fan"))
    accounted.at(4, DeviceHealthChanged(node="n1", device="n1-g1", healthy=False))
    accounted.at(7, NodeUncordoned(node="n1", by="x"))
    row = accounted.rows()["n1"]
    assert row.allocated_gpu_hours == 5.0
    assert row.free_gpu_hours == 2 * 1.5 + 3 * 0.5
    assert row.cordoned_gpu_hours == 2 * 1.5 + 3 * 0.5
    assert row.unhealthy_gpu_hours == 6.0
    assert row.capacity_gpu_hours == 20.0


def test_a_card_that_moved_counts_in_one_node() -> None:
    """If a device moves to another node, it counts for the new node as soon as that node first
    reports it."""
    accounted = Accounted("node").at(0, node("n1", gpu("g0")), observed("n1", version=1))
    accounted.at(3, observed("n2", version=2), observed("n1", ready=False, version=3))
    rows = accounted.at(4, node("n1"), node("n2", gpu("g0"))).rows()
    assert (rows["n1"].capacity_gpu_hours, rows["n1"].unhealthy_gpu_hours) == (4.0, 1.0)
    assert rows["n2"].capacity_gpu_hours == 6.0


def test_a_card_counts_in_the_node_that_took_it_from_one_that_is_gone() -> None:
    """If a device of a removed node moves to another node, it counts for the new node as soon as
    that node first reports it."""
    accounted = Accounted("node").at(0, node("n1", gpu("g0")), node("n2"), pod("p1"))
    accounted.at(0, placement("p1", shares=[share("g0", HALF)]))
    accounted.at(2, observed("n2", version=1)).at(4, node("n2", gpu("g0")))
    rows = accounted.rows()
    assert (rows["n1"].capacity_gpu_hours, rows["n1"].allocated_gpu_hours) == (2 + 8 * 0.5, 5.0)
    assert rows["n2"].free_gpu_hours == 6.0


def test_nodes_that_kubernetes_does_not_have_are_no_capacity() -> None:
    """Once Kubernetes has reported any node, the devices of nodes that Kubernetes does not have
    count as no capacity."""
    accounted = Accounted("node").at(0, rack("n1", 1), rack("n2", 1))
    rows = accounted.at(4, observed("n2", version=1)).rows()
    assert rows["n1"].capacity_gpu_hours == 4.0
    assert rows["n2"].capacity_gpu_hours == 10.0


@pytest.mark.parametrize("kind", [Account, Lost])
def test_nodes_that_the_state_drops_count_only_until_then(kind: type[Account]) -> None:
    """If more nodes leave than the state keeps, the dropped nodes are no capacity until they
    return. Another node may report their devices."""
    names = [f"n{number}" for number in range(LEFT_MAX + 44)]
    reports = [rack(name, 1) for name in names]
    accounted = Accounted("node", kind=kind).at(0, *reports)
    accounted.at(1, *(observed(name, version=at) for at, name in enumerate(names, 1)), *reports)
    assert accounted.report().total.capacity_gpu_hours == 10.0 * len(names)

    accounted = Accounted("node", kind=kind).at(0, *reports).at(1, observed("n299", version=1))
    accounted.at(4, node("n299", gpu("n299-g0"), gpu("n0-g0")))
    rows = accounted.rows()
    assert rows["n0"].capacity_gpu_hours == rows["n298"].capacity_gpu_hours == 1.0
    assert rows["n299"].capacity_gpu_hours == 10.0 + 6.0


def test_a_card_that_offers_less_than_is_held_is_what_is_held() -> None:
    """If a device offers less than its pods use, the used amount counts as its capacity.

    The rows of the report therefore still add up to the capacity."""
    accounted = Accounted().at(0, node("n1", gpu("g0")), pod("p1"))
    accounted.at(0, placement("p1", shares=[share("g0", 81_920)]))
    total = accounted.at(5, node("n1", gpu("g0", memory_mib=HALF))).report().total
    assert (total.allocated_gpu_hours, total.capacity_gpu_hours) == (15.0, 15.0)
    assert (total.allocated_gib_hours, total.capacity_gib_hours) == (800.0, 800.0)


def test_rows_follow_labels_and_queues_as_they_change() -> None:
    """If a pod's label or queue changes, its later GPU-hours count in the new row. The earlier ones
    stay in the old row."""
    accounted = Accounted("label:team").at(0, rack("n1", 1), pod("p1", labels={"team": "a"}))
    accounted.at(0, placement("p1", shares=[share("n1-g0", HALF)]))
    rows = accounted.at(4, PodChanged(uid="p1", labels={"team": "b"})).rows()
    assert {key: row.allocated_gpu_hours for key, row in rows.items()} == {"b": 3.0, "a": 2.0}

    accounted = Accounted("queue").at(0, rack("n1", 1), gang(queue="ml"), member("p1"))
    accounted.at(0, placement("p1", shares=[share("n1-g0", HALF)]))
    rows = accounted.at(4, gang(queue="web")).rows()
    assert {key: row.allocated_gpu_hours for key, row in rows.items()} == {"web": 3.0, "ml": 2.0}


def test_the_user_is_a_label() -> None:
    """Accounting by `user` groups pods by the label that names their user.

    Pods without this label have a row of their own."""
    accounted = Accounted("user").at(0, rack("n1", 1))
    accounted.at(0, pod("p1", labels={"apportion.dev/user": "ada"}), pod("p2"))
    accounted.at(0, placement("p1", shares=[share("n1-g0", HALF)]))
    accounted.at(0, placement("p2", shares=[share("n1-g0", HALF // 2)]))
    assert {key: row.allocated_gpu_hours for key, row in accounted.rows().items()} == {
        "ada": 5.0,
        "(none)": 2.5,
    }


def test_what_nobody_held_stands_apart_from_who_has_no_label() -> None:
    """Unallocated capacity and pods without the label have separate rows, also in each time step of
    the report."""
    accounted = Accounted("label:team", hours=4, step=4).at(0, rack("n1", 1), pod("p1"))
    answer = accounted.at(0, placement("p1", shares=[share("n1-g0", HALF)])).report()
    nobody, unnamed = answer.steps
    assert (nobody.key, nobody.free_gpu_hours, nobody.capacity_gpu_hours) == ("", 2.0, 2.0)
    assert (unnamed.key, unnamed.allocated_gpu_hours) == ("(none)", 2.0)
    assert {row.key: row.capacity_gpu_hours for row in answer.rows} == {"(none)": 2.0}


def test_steps_are_the_whole_cut_at_their_edges() -> None:
    """A report in steps splits the period at fixed times. The last step may be shorter."""
    accounted = Accounted(hours=5, step=2).at(0, rack("n1", 1), pod("p1"))
    accounted.at(1, placement("p1", shares=[share("n1-g0", HALF)]))
    steps = accounted.report().steps
    held = [(row.start[11:16], row.allocated_gpu_hours) for row in steps if row.key]
    assert held == [("00:00", 0.5), ("02:00", 1.0), ("04:00", 0.5)]
    nobody = [(row.start[11:16], row.capacity_gpu_hours) for row in steps if not row.key]
    assert nobody == [("00:00", 1.5), ("02:00", 1.0), ("04:00", 0.5)]


def test_steps_begin_with_the_clock_whenever_the_period_does() -> None:
    """The steps of a report begin at round times, so the first step may be shorter."""
    meters = Meters(3 * HOUR // 2, 5 * HOUR, 2 * HOUR)
    meters.turn(("a", "T4"), Part.ALLOCATED, 1, 0)
    meters.finish()
    found = {step: sums.cards[Part.ALLOCATED] for (step, _), sums in meters.cells.items()}
    assert found == {0: HOUR // 2, 1: 2 * HOUR, 2: HOUR}
    assert [meters.edges(step) for step in found] == [
        (3 * HOUR // 2, 2 * HOUR), (2 * HOUR, 4 * HOUR), (4 * HOUR, 5 * HOUR),
    ]  # fmt: skip


def test_what_comes_after_the_period_changes_nothing() -> None:
    """Placements after the period do not count. The report still reads one more hour of events, for
    usage that nodes report late."""
    accounted = Accounted(hours=2).at(0, rack("n1", 1), pod("p1"))
    accounted.at(3, placement("p1", shares=[share("n1-g0", HALF)]))
    over = [accounted.account.over]
    accounted.at(2 + LATE / HOUR, PodGone(uid="p1"))
    assert [*over, accounted.account.over] == [False, True]
    assert accounted.report().total.free_gpu_hours == 2.0
