"""Tests of replays of histories that are short enough to work out the figures by hand."""

import pytest
from msgspec import structs

from apportion.lab.changes import Changes, WishInvalid
from apportion.lab.recording import DECIDED
from apportion.lab.replaying import OF_NODES, Otherwise, Replay, replay
from apportion.runtime.files.fleets import numbered_nodes
from apportion.runtime.ledger.starting import PROCESS
from apportion_schemas import CATALOGUE, NodeCordoned, PodBound, PodGone, ResizeAsked
from tests.support.fleet import rack
from tests.support.pods import ask, cards, gang, member, pod
from tests.support.virtual_ledger import VirtualLedger

HOUR = 3600.0


def queue_of_three() -> VirtualLedger:
    """Return the history of one GPU and of three pods that request it at the same time, for an hour
    each."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1))
    for name in ("a", "b", "c"):
        ledger.submit(pod(name, cards()), runs_s=HOUR)
    ledger.settle()
    ledger.until(4 * HOUR)
    return ledger


def test_what_happened_in_figures() -> None:
    """A replay reports the original history's pending times, GPU-hours and peak usage."""
    happened = queue_of_three().recorded(end_s=4 * HOUR).happened
    assert (happened.arrived, happened.placed, happened.unplaced) == (3, 3, 0)
    assert happened.gpu_hours == pytest.approx(4)
    assert happened.gpu_hours_used == pytest.approx(3)
    assert happened.gpu_hours_waited == pytest.approx(3)
    assert (happened.wait_mean_s, happened.wait_max_s) == (HOUR, 2 * HOUR)
    assert happened.devices_peak == 1
    assert happened.fragmented_percent == 0
    assert sum(each.used for each in happened.slices) / len(happened.slices) == pytest.approx(0.75)


def test_without_changes_it_is_what_happened() -> None:
    """A replay without changes equals the original history, including the time of each
    placement."""
    ledger = queue_of_three()
    recorded = ledger.recorded(end_s=4 * HOUR)
    one = Replay(recorded, Otherwise(), kept=True)
    assert one.run() == recorded.happened
    assert not one.passed_over
    assert {each.pod: (each.at_s, each.node, each.devices) for each in one.placed} == {
        pod: place[:3] for pod, place in ledger.placed.items()
    }


def test_more_nodes_save_waiting_and_take_more_devices() -> None:
    """If a replay has two more nodes, no pod is pending and the peak usage is higher."""
    recorded = queue_of_three().recorded(end_s=4 * HOUR)
    answer = replay(recorded, Otherwise(changes=Changes(add=("2x1xA100-80GB",))))
    assert answer.replayed.gpu_hours_waited == 0
    assert answer.gpu_hours_waited_saved == pytest.approx(3)
    assert answer.gpus_saved == -2
    assert answer.changes == ("with 2x1xA100-80GB more",)


def test_another_fleet_takes_the_place_of_all_nodes() -> None:
    """If a replay has another fleet, that fleet replaces all nodes of the history."""
    recorded = queue_of_three().recorded(end_s=4 * HOUR)
    fleet = tuple(numbered_nodes("m-{}", 2, ["1xA100-80GB"]))
    answer = replay(recorded, Otherwise(fleet=fleet))
    assert answer.replayed.gpu_hours_waited == pytest.approx(1)
    assert answer.replayed.devices == 2
    [change] = answer.changes
    assert ("2 nodes" in change, "2 devices" in change) == (True, True)


def test_who_ran_before_goes_on_for_as_long_as_it_had_left() -> None:
    """If a pod is already running when the replayed time span begins, it runs in the replay for the
    rest of its recorded running time."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1))
    ledger.submit(pod("a", cards()), runs_s=2 * HOUR)
    ledger.settle()
    began = ledger.state.revision
    ledger.until(HOUR)
    ledger.submit(pod("b", cards()), runs_s=HOUR)
    ledger.settle()
    ledger.until(4 * HOUR)
    recorded = ledger.recorded(after=began, begin_s=HOUR, end_s=4 * HOUR)
    assert recorded.happened.gpu_hours_waited == pytest.approx(1)
    same = replay(recorded, Otherwise())
    assert same.replayed == same.happened
    fleet = tuple(numbered_nodes("m", 1, ["1xA100-80GB"]))
    other = replay(recorded, Otherwise(fleet=fleet))
    assert other.replayed.gpu_hours_waited == pytest.approx(1)
    assert other.replayed.gpu_hours_used == pytest.approx(2)


def test_a_lost_node_lets_its_pods_begin_again() -> None:
    """If a replay leaves out one of two nodes, the pods of that node start again on the other."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1), rack("n2", 1))
    for name in ("a", "b"):
        ledger.submit(pod(name, cards()), runs_s=2 * HOUR)
    ledger.settle()
    began = ledger.state.revision
    ledger.until(4 * HOUR)
    recorded = ledger.recorded(after=began, begin_s=HOUR, end_s=4 * HOUR)
    answer = replay(recorded, Otherwise(changes=Changes(lose=("n1",))))
    assert answer.happened.devices_peak == 2
    assert answer.replayed.devices_peak == 1
    assert answer.replayed.gpu_hours_waited == pytest.approx(1)


def resized() -> VirtualLedger:
    """Return the history of a pod that has half a GPU for an hour, then a whole GPU for an hour
    after a resize."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1))
    ledger.submit(pod("a", ask(40_960)), runs_s=2 * HOUR)
    ledger.settle()
    ledger.write(PodBound(pod="a", node="n1", attempt=1))
    ledger.until(HOUR)
    ledger.write(ResizeAsked(pod="a", by="ada", memory_mib=81_920))
    ledger.settle()
    ledger.until(2 * HOUR)
    return ledger


def test_a_resize_has_its_effect_at_its_time() -> None:
    """A replay resizes a pod at the recorded time."""
    answer = replay(resized().recorded(end_s=2 * HOUR), Otherwise())
    assert answer.passed_over == 0
    assert answer.happened.gpu_hours_used == pytest.approx(1.5)
    assert answer.replayed == answer.happened


def test_facts_that_come_to_nothing_in_the_other_course_are_told_by_kind() -> None:
    """If recorded events have no effect on the changed cluster, the replay counts them by type."""
    fleet = tuple(numbered_nodes("m", 1, ["1xT4"]))
    answer = replay(resized().recorded(end_s=2 * HOUR), Otherwise(fleet=fleet))
    assert (answer.passed_over, answer.passed_over_types) == (1, {"ResizeAsked": 1})


def two_cards(names: str) -> VirtualLedger:
    """Return the history of a node with two GPUs. One pod per letter of `names` requests a GPU for
    an hour, all at the same time."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 2))
    for name in names:
        ledger.submit(pod(name, cards()), runs_s=HOUR)
    ledger.settle()
    return ledger


@pytest.mark.parametrize("began", [False, True])
def test_a_lost_device_is_as_if_it_had_failed(*, began: bool) -> None:
    """If a replay assumes that a device is lost, the device counts as failed throughout."""
    ledger = two_cards("ab")
    after = ledger.state.revision if began else 0
    ledger.write(rack("n1", 2))  # the node reports the device again as healthy
    ledger.until(4 * HOUR)
    recorded = ledger.recorded(after=after, end_s=4 * HOUR)
    one = Replay(recorded, Otherwise(changes=Changes(lose=("n1-g1",))), kept=True)
    replayed = one.run()
    assert (recorded.happened.devices_peak, replayed.devices_peak) == (2, 1)
    assert replayed.gpu_hours_waited == pytest.approx(1)
    assert not [each for each in one.placed if "n1-g1" in each.devices]
    assert ["n1-g1" in change for change in one.changes] == [True]


def test_what_is_lost_must_be_there_at_some_time() -> None:
    """A replay is refused if it leaves out a node or device that never existed in the replayed time
    span."""
    recorded = two_cards("a").recorded(end_s=HOUR)
    for name, problem in (
        ("n1-g7", "no node or device 'n1-g7' in this time; did you mean n1-g1, n1-g0\\?"),
        ("n1-", "no node or device"),
    ):
        with pytest.raises(WishInvalid, match=problem):
            replay(recorded, Otherwise(changes=Changes(lose=(name,))))
    ledger = VirtualLedger()
    ledger.write(rack("node-0001", 1), rack("node-00010", 1))
    answer = replay(ledger.recorded(end_s=HOUR), Otherwise(changes=Changes(lose=("node-0001",))))
    assert answer.replayed.devices == 1, "the card of node-00010 is there"
    with pytest.raises(WishInvalid, match="2 device ids: node-0001-g0, node-00010-g0"):
        replay(ledger.recorded(end_s=HOUR), Otherwise(changes=Changes(lose=("node-000",))))


def test_a_gang_that_is_drained_whole_has_its_place_again() -> None:
    """A replay places a drained gang again, even if its new pods were submitted in the history
    before its old pods ended."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 2), rack("n2", 2), gang(min_available=2))
    for name in ("a", "b"):
        ledger.submit(member(name, cards()), runs_s=None)
    ledger.settle()
    ledger.until(HOUR)
    ledger.write(NodeCordoned(node="n1", by="ann", reason="fan"))
    ledger.write(member("a2", cards()), member("b2", cards()), PodGone(uid="a"), PodGone(uid="b"))
    ledger.settle()
    ledger.until(2 * HOUR)
    recorded = ledger.recorded(end_s=2 * HOUR)
    one = Replay(recorded, Otherwise(), kept=True)
    replayed = one.run()
    assert [(each.pod, each.node) for each in one.placed] == [
        ("a", "n1"), ("b", "n1"), ("a2", "n2"), ("b2", "n2"),
    ]  # fmt: skip
    assert replayed == recorded.happened


def test_who_makes_way_for_one_of_its_name_goes_when_that_comes() -> None:
    """In a replay, a drained pod ends only when its replacement arrives. No other pod can take its
    devices in between."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1), rack("n2", 1))
    drained = structs.replace(pod("a", cards()), priority=10)
    ledger.submit(drained, runs_s=None)
    ledger.settle()
    began = ledger.state.revision
    ledger.write(NodeCordoned(node="n2", by="ann", reason="fan"))
    ledger.submit(pod("b", cards()), runs_s=None)
    ledger.settle()
    ledger.until(HOUR)
    ledger.write(structs.replace(drained, uid="a2"), PodGone(uid="a"))
    ledger.settle()
    ledger.until(2 * HOUR)
    for after in (0, began):
        recorded = ledger.recorded(after=after, end_s=2 * HOUR)
        answer = replay(recorded, Otherwise())
        assert answer.replayed == answer.happened
        assert answer.replayed.gpu_hours_waited == pytest.approx(2), "b, all the time"
    recorded = ledger.recorded(after=began, end_s=2 * HOUR)
    elsewhere = Replay(recorded, Otherwise(changes=Changes(lose=("n1",))), kept=True)
    used = elsewhere.run().gpu_hours_used
    assert ([(each.name, each.node) for each in elsewhere.placed], used) == ([("a", "n2")], 1)


def evicted(runs: dict[str, float | None]) -> VirtualLedger:
    """Return a history in which pod `high` evicts `a` or `b`. The evicted pod is then submitted
    again."""
    ledger = VirtualLedger(watched=True)
    ledger.write(rack("n1", 1), rack("n2", 1))
    for name in ("a", "b"):
        ledger.submit(pod(name, cards()), runs_s=runs[name])
    ledger.settle()
    ledger.until(HOUR)
    ledger.submit(structs.replace(pod("high", cards()), priority=10), runs_s=runs["high"])
    ledger.settle()
    ledger.until(6 * HOUR)
    return ledger


def test_who_was_evicted_and_came_again_is_replayed_so() -> None:
    """A recorded eviction happens once in the replay, whether the replay starts at the beginning or
    later."""
    ledger = evicted({"a": 2 * HOUR, "b": 4 * HOUR, "high": HOUR})
    recorded = ledger.recorded(end_s=6 * HOUR)
    assert recorded.happened.evicted == 1
    answer = replay(recorded, Otherwise())
    assert answer.replayed == answer.happened
    later = ledger.recorded(after=6, begin_s=HOUR / 2, end_s=6 * HOUR)
    again = replay(later, Otherwise())
    assert again.replayed == again.happened


def test_who_was_evicted_then_and_is_not_here_comes_once() -> None:
    """If a pod was evicted in the history but not in the replay, it arrives once and runs for its
    total time."""
    recorded = evicted({"a": 2 * HOUR, "b": 4 * HOUR, "high": HOUR}).recorded(end_s=6 * HOUR)
    answer = replay(recorded, Otherwise(changes=Changes(add=("1x1xA100-80GB",))))
    assert (answer.happened.evicted, answer.replayed.evicted) == (1, 0)
    assert (answer.happened.arrived, answer.replayed.arrived) == (4, 3)
    used = (answer.happened.gpu_hours_used, answer.replayed.gpu_hours_used)
    assert used[0] == pytest.approx(used[1])


def test_who_is_evicted_only_here_comes_again() -> None:
    """If a pod is evicted only in the replay, it is submitted again. Otherwise a smaller cluster
    would seem to be better."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1), rack("n2", 1))
    ledger.submit(pod("a", cards()), runs_s=3 * HOUR)
    ledger.settle()
    ledger.until(HOUR)
    ledger.submit(structs.replace(pod("high", cards()), priority=10), runs_s=HOUR)
    ledger.settle()
    ledger.until(5 * HOUR)
    one = Replay(
        ledger.recorded(end_s=5 * HOUR), Otherwise(changes=Changes(lose=("n1",))), kept=True
    )
    replayed = one.run()
    begin_s = one.placed[0].at_s
    places = [(each.name, (each.at_s - begin_s) / HOUR) for each in one.placed]
    assert places == [("a", 0), ("high", 1), ("a", 2)]
    assert (replayed.arrived, replayed.evicted) == (3, 1)
    assert replayed.gpu_hours_waited == pytest.approx(1)
    assert replayed.gpu_hours_used == pytest.approx(4), "a runs what it had left"


def test_a_command_that_is_evicted_does_not_come_again() -> None:
    """If a replay evicts a command of `apportion run`, the command is not submitted again."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1), rack("n2", 1))
    ledger.submit(structs.replace(pod("a", cards()), owner=f"{PROCESS}/1"), runs_s=3 * HOUR)
    ledger.settle()
    ledger.until(HOUR)
    ledger.submit(structs.replace(pod("high", cards()), priority=10), runs_s=HOUR)
    ledger.settle()
    ledger.until(5 * HOUR)
    recorded = ledger.recorded(end_s=5 * HOUR)
    answer = replay(recorded, Otherwise(changes=Changes(lose=("n1",))))
    assert (answer.replayed.arrived, answer.replayed.evicted) == (2, 1)


def test_who_was_deleted_while_waiting_leaves_at_that_time() -> None:
    """If a pod was deleted while it was pending, the replay deletes it at the same time."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1))
    ledger.submit(pod("a", cards()), runs_s=None)
    ledger.submit(pod("b", cards()), runs_s=None)
    ledger.settle()
    ledger.until(HOUR)
    ledger.write(PodGone(uid="b"))
    ledger.until(2 * HOUR)
    answer = replay(ledger.recorded(end_s=2 * HOUR), Otherwise())
    assert answer.replayed == answer.happened
    assert answer.happened.gpu_hours_waited == pytest.approx(1)


def test_shares_count_as_parts() -> None:
    """A replay counts a share as a part of a GPU-hour, and the rest of the share's GPU as
    fragmented."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 2))
    ledger.submit(pod("a", ask(memory_percent=50, cores=50)), runs_s=None)
    ledger.settle()
    ledger.until(HOUR)
    happened = ledger.recorded(end_s=HOUR).happened
    assert happened.gpu_hours_used == pytest.approx(0.5)
    assert happened.fragmented_percent == pytest.approx(25)


def test_every_event_is_taken_from_the_ledger_or_made_anew() -> None:
    """Each event type is in one of three groups: taken from the history, decided again by the
    replay, or about nodes. The test fails if a new type is in none of them."""
    from_outside = {
        "PodSubmitted", "PodChanged", "PodGone", "PodAdopted", "PodGroupObserved", "PodGroupGone",
        "QueueObserved", "QuotaObserved", "QuotaGone", "BudgetObserved", "BudgetGone",
        "NamespaceObserved", "NamespaceGone", "VolumeClaimObserved", "VolumeClaimGone",
        "PricesLearnt", "ResizeAsked", "PolicyChanged", "ConfigurationChanged",
    }  # fmt: skip
    decided = {kind.__name__ for kind in DECIDED}
    of_nodes = {kind.__name__ for kind in OF_NODES}
    assert from_outside.isdisjoint(decided)
    assert of_nodes.isdisjoint(decided)
    assert from_outside | decided | of_nodes == {row.name for row in CATALOGUE}
