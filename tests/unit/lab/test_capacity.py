"""Tests of how much less pods would have waited with more nodes, in short histories."""

from decimal import Decimal
from random import Random

import pytest
from msgspec import structs

from apportion.core.reports.prices import Prices
from apportion.lab.capacity import TYPES_MAX, capacity, copies, known_types, named_types
from apportion.lab.changes import Changes, WishInvalid
from apportion.lab.recording import Recorded
from apportion.lab.replaying import Otherwise, replay
from apportion_schemas import NodeConstraints, NodeObserved
from tests.support.fleet import rack
from tests.support.pods import ask, cards, pod, shape
from tests.support.virtual_ledger import VirtualLedger

HOUR = 3600.0
A100 = "NVIDIA A100-SXM4-80GB"


def queue_of(names: str = "abc", memory_mib: int | None = None) -> Recorded:
    """Return the history of one GPU and of pods that all request it at once, for an hour each."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1))
    for name in names:
        ledger.submit(pod(name, cards() if memory_mib is None else ask(memory_mib)), runs_s=HOUR)
    ledger.settle()
    ledger.until(4 * HOUR)
    return ledger.recorded(end_s=4 * HOUR)


def prices(**models: str) -> Prices:
    return Prices("EUR", {name: Decimal(price) for name, price in models.items()})


def test_hours_saved_per_unit_of_money() -> None:
    """Node types are ranked by the hours of waiting that they save per unit of money over the
    period.

    With a second GPU, two of three pods run at once, and the last one waits one hour, not two."""
    recorded = queue_of()
    of = prices(**{A100: "2", "NVIDIA H200": "4", "NVIDIA L4": "0.5", "*": "9"})
    types = known_types(recorded, of)
    assert [(each.name, each.in_fleet) for each in types] == [
        (f"1 x {A100}", True), ("1 x NVIDIA L4", False), ("1 x NVIDIA H200", False),
    ]  # fmt: skip
    answer = capacity(recorded, types, of)
    assert answer.waited_gpu_hours == pytest.approx(3)
    assert [(row.node, row.saved_gpu_hours, row.cost, row.saved_per_unit)
            for row in answer.rows] == [
        ("1 x NVIDIA L4", 2, 2, 1), (f"1 x {A100}", 2, 8, 0.25), ("1 x NVIDIA H200", 2, 16, 0.125),
    ]  # fmt: skip
    [row] = capacity(recorded, types[:1], of, count=2).rows
    assert (row.saved_gpu_hours, row.waited_gpu_hours, row.cost) == (3, 0, 16)
    assert (answer.currency, answer.unpriced) == ("EUR", ())


def test_a_larger_gpu_does_not_make_requests_smaller() -> None:
    """A request counts for the same GPU-hours in all replays, even on an added, larger GPU."""
    recorded = queue_of(memory_mib=61_440)
    answer = capacity(recorded, named_types(["1xH200-141GB"]))
    assert answer.waited_gpu_hours == pytest.approx(3 * 0.75)
    # The two other pods have room at once on the larger GPU.
    assert [row.saved_gpu_hours for row in answer.rows] == [pytest.approx(3 * 0.75)]
    assert [(row.cost, row.saved_per_unit) for row in answer.rows] == [(None, None)]
    # Three of six pods start at once, and the others wait for an hour.
    six = queue_of("abcdef", memory_mib=61_440)
    added = replay(six, Otherwise(changes=Changes(add=("1x1xH200-141GB",)))).replayed
    assert added.gpu_hours_waited == pytest.approx(3 * 0.75)


def test_the_baseline_learns_prices_too() -> None:
    """A node that no pod fits on saves nothing. The replays with and without it place all pods
    alike, even if the recorded scheduler had learned no prices."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 4), rack("n2", 4))
    chance = Random(2)
    for number in range(120):
        whole = chance.random() >= 0.8
        part = cards(2) if whole else ask(chance.choice((20_000, 30_000, 40_000, 60_000, 80_000)))
        ledger.submit(pod(f"p{number}", part), runs_s=chance.random() * 2 * HOUR)
        ledger.settle()
        ledger.until((number + 1) * 300)
    ledger.until(20 * HOUR)
    recorded = ledger.recorded(end_s=20 * HOUR)
    answer = capacity(recorded, named_types(["1xT4"]))
    assert [row.saved_gpu_hours for row in answer.rows] == [0]
    assert answer.waited_gpu_hours != recorded.happened.gpu_hours_waited


def test_a_free_type_that_saves_something_is_first() -> None:
    """A node type that costs nothing is ranked first if it saves any hours, and otherwise last."""
    of = prices(**{A100: "0.1", "NVIDIA H200": "0", "NVIDIA L4": "0"})
    answer = capacity(
        queue_of(memory_mib=70_000), named_types(["2xA100-80GB", "1xH200-141GB", "1xL4-24GB"]), of
    )
    assert [(row.node, row.cost, row.saved_gpu_hours > 0) for row in answer.rows] == [
        ("1xH200-141GB", 0, True), ("2xA100-80GB", 0.8, True), ("1xL4-24GB", 0, False),
    ]  # fmt: skip


def test_additional_nodes_have_names_of_their_own() -> None:
    """If the fleet already has a node `added-1`, the additional node gets another name."""
    ledger = VirtualLedger()
    ledger.write(rack("added-1", 1))
    for name in "abcd":
        ledger.submit(pod(name, cards()), runs_s=HOUR)
    ledger.settle()
    after = ledger.state.revision
    ledger.until(5 * HOUR)
    recorded = ledger.recorded(after=after, end_s=5 * HOUR)
    answer = capacity(recorded, known_types(recorded, None))
    # Two pods after one hour instead of three after one, two and three hours.
    assert (answer.waited_gpu_hours, [row.saved_gpu_hours for row in answer.rows]) == (6, [4])


def test_types_that_save_nothing_are_reported() -> None:
    """A node type on which no pending pod fits saves nothing. Without a price, it has no cost."""
    recorded = queue_of(memory_mib=70_000)
    types = named_types(["4xL4-24GB", "1xA100-80GB"])
    answer = capacity(recorded, types, prices(**{"NVIDIA L4": "1"}))
    assert [(row.node, row.saved_gpu_hours, row.cost) for row in answer.rows] == [
        ("4xL4-24GB", 0, 16), ("1xA100-80GB", pytest.approx(2 * 70_000 / 81_920, rel=0.01), None),
    ]  # fmt: skip
    assert answer.unpriced == (A100,)


def test_without_pending_pods_no_type_is_tried() -> None:
    """If no pod waited, the answer has no rows, and no replay with an additional node is made."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1))
    ledger.submit(pod("a", cards()), runs_s=HOUR)
    ledger.settle()
    ledger.until(2 * HOUR)
    told: list[tuple[int, int]] = []
    recorded = ledger.recorded(end_s=2 * HOUR)
    answer = capacity(
        recorded, known_types(recorded, None), tell=lambda done, of: told.append((done, of))
    )
    assert (answer.waited_gpu_hours, answer.rows) == (0, ())
    assert told == [(0, 2 * recorded.facts.count)]


def test_an_added_node_is_like_the_nodes_of_its_type() -> None:
    """An added node has the labels and host resources of its type's nodes, but healthy devices."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1), NodeObserved(
        node="n1", ready=True, cpu_milli=64_000, memory_mib=512_000, pods=110,
        labels={"pool": "train"},
    ))  # fmt: skip
    for name in "ab":
        needs = shape(cards(), node=NodeConstraints(selector={"pool": "train"}))
        ledger.submit(pod(name, shape=needs), runs_s=HOUR)
    ledger.settle()
    began = ledger.state.revision
    ledger.until(3 * HOUR)
    recorded = ledger.recorded(after=began, end_s=3 * HOUR)
    [each] = known_types(recorded, None)
    assert [row.saved_gpu_hours for row in capacity(recorded, [each]).rows] == [1]
    failed = structs.replace(each.node.devices[0], healthy=False, health_reason="XID 79")
    [one, two] = copies(structs.replace(each.node, devices=(failed,)), 2)
    assert {device.id for node in (one, two) for device in node.devices} == {
        "added-1-0", "added-2-0",
    }  # fmt: skip
    assert [device.healthy for node in (one, two) for device in node.devices] == [True, True]


def test_invalid_and_too_many_types_are_refused() -> None:
    """The lab refuses an unknown GPU model, and more node types than the limit."""
    with pytest.raises(WishInvalid, match=r"--node: .*unknown model 'H1000'; .*8xH100-80GB"):
        named_types(["8xH1000"])
    specs = [f"{count}xT4" for count in range(1, TYPES_MAX + 2)]
    assert len(named_types(specs[:TYPES_MAX] * 2)) == TYPES_MAX
    with pytest.raises(WishInvalid, match=f"name up to {TYPES_MAX}"):
        named_types(specs)


def test_nodes_cost_nothing_before_the_first_event() -> None:
    """If the period begins before the first event, added nodes cost nothing before that event."""
    ledger = VirtualLedger()
    ledger.until(HOUR)
    ledger.write(rack("n1", 1))
    for name in "ab":
        ledger.submit(pod(name, cards()), runs_s=HOUR)
    ledger.settle()
    ledger.until(3 * HOUR)
    recorded = ledger.recorded(end_s=3 * HOUR)
    of = prices(**{A100: "3"})
    assert [row.cost for row in capacity(recorded, known_types(recorded, of), of).rows] == [6]
