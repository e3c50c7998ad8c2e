"""Tests of which event a diff names as the cause of each difference."""

from pathlib import Path

import pytest

from apportion.core.explain.differences import WHOLE_LIMIT
from apportion.core.ledger.state import State
from apportion.gateway.api.diff import event_behind, who_wrote
from apportion.gateway.past.index import LIMIT, NODE, POD
from apportion.gateway.past.indexing import Indexer, open_index
from apportion_schemas import NodeCordoned, NodeSilent, PlacementVoided, PodGone, QueueObserved
from apportion_schemas.quantities import Payload
from tests.support.fleet import rack
from tests.support.pods import placed, pod, share
from tests.unit.gateway.past.test_indexing import read

BEGIN: tuple[Payload, ...] = (rack("n1", 1), pod("p1"))  # 1, 2
PLACED = placed("p1", "n1", [share("n1-g0", 1000)])
VOIDED = PlacementVoided(pod="p1", node="n1", attempt=1, reason="r")
GONE = PodGone(uid="p1", reason="drained")


@pytest.mark.parametrize(
    ("events", "after", "what", "revision"),
    [
        ((PLACED, GONE), 2, "waiting", 4),
        ((PLACED, VOIDED, GONE), 3, "placement", 5),
        ((PLACED, VOIDED, GONE), 2, "waiting", 5),
        ((PLACED, VOIDED), 1, "waiting", 4),
        ((PLACED, VOIDED), 3, "placement", 4),
        ((PLACED,), 1, "placement", 3),
        ((GONE,), 2, "waiting", 3),
    ],
)
def test_a_pod_is_where_it_is_by_the_newest_of_its_wait_and_its_place(
    events: tuple[Payload, ...], after: int, what: str, revision: int, tmp_path: Path
) -> None:
    """If a pod has ended, a diff names the event that ended it as the cause of all its differences.
    Otherwise the diff names the newest event that changed the field in question."""
    index, checkpoints = open_index(tmp_path, "c")
    read(Indexer(State(), index, checkpoints), BEGIN + events)
    changed = index.changed_by(POD, ["p1"], after=after, upto=99)
    assert event_behind(changed, "p1", what) == revision


def test_a_limit_that_came_is_as_the_newest_event_of_any_side_made_it(tmp_path: Path) -> None:
    """As the cause of a new limit, a diff names the newest event that changed any of the limit's
    fields."""
    index, checkpoints = open_index(tmp_path, "c")
    queues = [QueueObserved(queue=name, weight=number) for name, number in (("a", 1), ("b", 1))]
    heavier = QueueObserved(queue="a", weight=3)
    read(Indexer(State(), index, checkpoints), (*BEGIN, queues[0], heavier, queues[1]))
    changed = index.changed_by(LIMIT, ["queue a", "queue b"], after=2, upto=99)
    assert [event_behind(changed, name, WHOLE_LIMIT) for name in ("queue a", "queue b")] == [4, 5]


@pytest.mark.parametrize(
    ("source", "who"), [("cli/ann@vm", "ann@vm"), ("scheduler/vm", "scheduler/vm"), ("", "")]
)
def test_a_person_has_one_name(source: str, who: str) -> None:
    """If a CLI user wrote an event, a diff shows the user's name without the prefix `cli/`. It
    shows the full name of a service."""
    assert who_wrote(source) == who


def test_the_sides_of_a_node_have_an_event_each(tmp_path: Path) -> None:
    """For a node, a diff names the cause of its state and the cause of its cordon separately."""
    index, checkpoints = open_index(tmp_path, "c")
    cordon = NodeCordoned(node="n1", by="ann", reason="fan")
    read(Indexer(State(), index, checkpoints), (*BEGIN, NodeSilent(node="n1", grace_s=40), cordon))
    changed = index.changed_by(NODE, ["n1"], after=2, upto=99)
    assert [event_behind(changed, "n1", what) for what in ("state", "cordon")] == [3, 4]
    assert event_behind(changed, "n2", "state") == 0
