"""Tests of the figures of queues and namespaces in replays of short, hand-checked histories."""

import pytest
from msgspec import structs

from apportion.lab.gates import GateInvalid, bounds_of
from apportion.lab.recording import Recorded
from apportion.lab.replaying import Otherwise, replay
from apportion.runtime.files.fleets import numbered_nodes
from apportion_schemas import NodeGone, PlacementVoided, PodGone, QueueObserved
from tests.support.fleet import rack
from tests.support.pods import cards, pod
from tests.support.virtual_ledger import VirtualLedger
from tests.unit.lab.test_setups import HOUR, QUEUES, setup_of, team, two_teams


def one_gpu() -> VirtualLedger:
    """Return the history of one GPU: pod `a` runs for 30 hours, and pod `b` waits for it."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1))
    for name in "ab":
        each = pod(name, cards(), queue=name, namespace=f"team-{name}")
        ledger.submit(each, runs_s=30 * HOUR)
    ledger.settle()
    return ledger


def from_hour(ledger: VirtualLedger, begin: float, end: float) -> Recorded:
    """Return a recording that covers the hours `begin` to `end` of the ledger."""
    ledger.until(begin * HOUR)
    after = ledger.state.revision
    ledger.until(end * HOUR)
    return ledger.recorded(after=after, begin_s=begin * HOUR, end_s=end * HOUR)


def test_a_team_counts_whose_pods_only_run_on() -> None:
    """A queue has figures even if its pods run throughout the time span without any event."""
    answer = replay(from_hour(one_gpu(), 10, 12), Otherwise())
    for each in team(answer, "queue", "a"):
        assert (each.arrived, each.gpus, each.gpu_hours_used) == (0, 1, 2)


def test_waits_count_from_the_submission() -> None:
    """If a pod was already pending when the time span begins, its wait counts from its submission.
    Its pending GPU-hours count from the start of the span."""
    recorded = from_hour(one_gpu(), 10, 12)
    gates = bounds_of(["queue/b:wait-max<=11h", "queue/b:gpu-hours-pending<=2"])
    same = replay(recorded, Otherwise(), bounds=gates)
    assert [(gate.measured, gate.verdict) for gate in same.gates] == [
        (12 * HOUR, "exceeded"), (2, "kept"),
    ]  # fmt: skip
    assert (same.happened.wait_max_s, same.replayed.wait_max_s) == (12 * HOUR, 12 * HOUR)
    fleet = tuple(numbered_nodes("new", 1, ["2xA100-80GB"]))
    other = replay(recorded, Otherwise(fleet=fleet))
    assert [each.wait_max_s for each in team(other, "queue", "b")] == [12 * HOUR, 10 * HOUR]
    assert [each.wait_max_s for each in team(other, "queue", "a")] == [0, 0]


def test_evicted_work_counts_from_the_placement() -> None:
    """The GPU-hours that an eviction wastes count from the placement, even before the time span."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 2))
    for number in range(2):
        each = pod(f"web-{number}", cards(), queue="web", namespace="team-a")
        ledger.submit(structs.replace(each, owner="Job/web"), runs_s=20 * HOUR)
    ledger.settle()
    ledger.until(10 * HOUR)
    after = ledger.state.revision
    ledger.until(10.5 * HOUR)
    ledger.submit(pod("ml-0", cards(), queue="ml", namespace="team-b"), runs_s=HOUR)
    ledger.settle()
    ledger.until(14 * HOUR)
    recorded = ledger.recorded(after=after, begin_s=10 * HOUR, end_s=14 * HOUR)
    answer = replay(recorded, Otherwise(setup=setup_of(QUEUES)))
    _, web = team(answer, "queue", "web")
    assert (web.evicted, web.gpu_hours_evicted) == (1, 10.5)
    assert web.gpu_hours_used == pytest.approx(2 * 0.5 + 3.5), "in the span"


def test_pods_count_once() -> None:
    """A pod whose placement was voided and that is placed again counts once. A pod that is deleted
    while it is pending does not count as placed."""
    ledger = one_gpu()
    ledger.until(HOUR)
    placement = ledger.state.pods["a"].placement
    assert placement is not None
    ledger.write(PodGone(uid="b"), PlacementVoided(
        pod="a", node="n1", attempt=placement.attempt, reason="bind failed"
    ))  # fmt: skip
    ledger.settle()
    ledger.until(3 * HOUR)
    answer = replay(ledger.recorded(end_s=3 * HOUR), Otherwise())
    a, b = (team(answer, "queue", name)[0] for name in "ab")
    assert (a.arrived, a.placed, a.unplaced) == (1, 1, 0)
    assert (b.arrived, b.placed, b.unplaced) == (1, 0, 0)
    assert (answer.happened.arrived, answer.happened.placed) == (2, 1)


def test_use_ends_with_its_node() -> None:
    """When a node is gone, its pods no longer add to the usage of their queue or to the total."""
    ledger = one_gpu()
    ledger.until(HOUR)
    ledger.write(NodeGone(node="n1"))
    ledger.until(5 * HOUR)
    answer = replay(ledger.recorded(end_s=5 * HOUR), Otherwise())
    for each in team(answer, "queue", "a"):
        assert each.gpu_hours_used == 1
    assert (answer.happened.gpu_hours_used, answer.replayed.gpu_hours_used) == (1, 1)


def test_a_queue_with_another_parent_counts_above_it() -> None:
    """If a queue gets a parent, the usage of its pods counts for the parent from then on."""
    ledger = one_gpu()
    ledger.until(HOUR)
    ledger.write(
        QueueObserved(queue="lab"), QueueObserved(queue="a", parent="lab"),
        QueueObserved(queue="b", parent="lab"),
    )  # fmt: skip
    ledger.until(4 * HOUR)
    answer = replay(ledger.recorded(end_s=4 * HOUR), Otherwise())
    for name, figures in (("lab", (2, 1, 1, 3)), ("a", (1, 1, 0, 4)), ("b", (1, 0, 1, 0))):
        for each in team(answer, "queue", name):
            found = (each.arrived, each.placed, each.unplaced, each.gpu_hours_used)
            assert found == figures, name
    assert team(answer, "queue", "lab")[0].wait_max_s == 4 * HOUR


def test_a_gate_of_the_root_queue_is_refused() -> None:
    """The root queue, which is above all others, has no figures, so a gate cannot name it."""
    root = "---\napiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: root}\n"
    answer = replay(two_teams().recorded(end_s=6 * HOUR), Otherwise(setup=setup_of(QUEUES + root)))
    assert "root" not in {each.name for each in answer.teams}
    with pytest.raises(GateInvalid, match="'root' is above all queues"):
        replay(two_teams().recorded(end_s=6 * HOUR), Otherwise(),
               bounds=bounds_of(["queue/root:wait-max<=0s"]))  # fmt: skip
