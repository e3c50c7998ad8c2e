"""Tests of which objects each event is indexed under, and of failures to write the index."""

from pathlib import Path

import pytest

from apportion.core.ledger.digest import digest
from apportion.core.ledger.state import State
from apportion.gateway.past.index import CONFIGURATION, DEVICE, NODE, POD, POLICY, Index
from apportion.gateway.past.indexing import Indexer, open_index
from apportion.gateway.past.states import Checkpoints
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    DeviceCordoned,
    NodeGone,
    NodeHeard,
    NodeSilent,
    PlacementVoided,
    PodAdopted,
    PodGone,
    PolicyChanged,
    decode,
    encode,
    subject_of,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import gpu, node, observed
from tests.support.ledger_of import event_of
from tests.support.pods import ask, placed, pod, share

EVENTS: tuple[Payload, ...] = (
    node("n1", gpu("g0"), gpu("g1")),  # 1
    observed("n1"),  # 2
    pod("p1", ask(1000)),  # 3
    placed("p1", "n1", [share("g0")]),  # 4
    PlacementVoided(pod="p1", node="n1", attempt=1, reason="r"),  # 5
    DeviceCordoned(device="g1", by="ann", reason="fan"),  # 6
    PodGone(uid="p1"),  # 7
    NodeSilent(node="n1", grace_s=40),  # 8
    NodeHeard(node="n1"),  # 9
    node("n1", gpu("g1")),  # 10: without g0
    NodeGone(node="n1"),  # 11
    PodGone(uid="p1"),  # 12: contradicts the state, without effect
)


def read(indexer: Indexer, events: tuple[Payload, ...] = EVENTS) -> None:
    """Pass these events to the indexer as a ledger reader does."""
    for data in events:
        revision = indexer.state.revision + 1
        record = Record(revision, subject_of(data), encode(event_of(data)))
        indexer.apply(record, decode(record.payload, subject=record.subject))


def test_whom_events_are_about(tmp_path: Path) -> None:
    """The index lists an event under all pods, nodes and devices that it affects, including those
    that the event does not name. It omits an event without effect."""
    index, checkpoints = open_index(tmp_path, "c")
    read(Indexer(State(), index, checkpoints))
    assert index.facts(POD, ["p1"], after=0, upto=99, limit=99) == [3, 4, 5, 7]
    assert index.facts(NODE, ["n1"], after=0, upto=99, limit=99) == [1, 2, 4, 5, 6, 8, 9, 10, 11]
    assert index.facts(DEVICE, ["g0"], after=0, upto=99, limit=99) == [1, 4, 5, 10]
    assert index.facts(DEVICE, ["g1"], after=0, upto=99, limit=99) == [1, 6]
    marks = index.marks(since=0, upto=99, limit=99)
    assert [(mark.revision, mark.kind) for mark in marks] == [
        (6, "cordon"),
        (8, "failure"),
        (9, "recovery"),
        (11, "failure"),
    ]
    [hold] = index.holds(DEVICE, "g0", since=0, upto=99, skip=0, limit=9)
    assert (hold.uid, hold.from_revision, hold.to_revision) == ("p1", 4, 5)


def test_what_each_event_made_otherwise(tmp_path: Path) -> None:
    """For each event, the index has exactly the fields that the event changed. This includes fields
    of objects that the event does not name."""
    index, checkpoints = open_index(tmp_path, "c")
    running = PodAdopted(
        pod="old", submitted=pod("old", ask(1000)), node="n1", attempt=1, running=True,
        shares=(share("unseen"),), evidence="annotations",
    )  # fmt: skip
    asks_for = ConfigurationChanged(by="ann", configuration=Configuration(scheduler_names=("a",)))
    read(Indexer(State(), index, checkpoints), (
        node("n1", gpu("g0")),  # 1
        node("n2", gpu("g1")),  # 2
        observed("n1", version=1),  # 3: from now on only nodes that Kubernetes knows exist
        pod("p1"),  # 4
        placed("p1", "n1", []),  # 5
        running,  # 6
        DeviceCordoned(device="g0", by="ann", reason="fan"),  # 7
        NodeSilent(node="n1", grace_s=40),  # 8
        NodeSilent(node="n1", grace_s=40),  # 9: already silent
        PolicyChanged(by="ann", node_policy="spread"),  # 10
        asks_for,  # 11
        PolicyChanged(by="bob", node_policy="spread"),  # 12: the same policy
        PodGone(uid="p1"),  # 13
    ))  # fmt: skip

    def by(kind: int, *keys: str) -> dict[tuple[str, str], int]:
        return index.changed_by(kind, keys, after=0, upto=99)

    assert by(NODE, "n1", "n2") == {("n1", "state"): 8, ("n2", "state"): 3}
    assert by(DEVICE, "g0", "g1", "unseen") == {
        ("g0", "health"): 1, ("g0", "cordon"): 7, ("g1", "health"): 2, ("unseen", "health"): 6,
    }  # fmt: skip
    assert by(POD, "p1", "old") == {
        ("p1", "placement"): 13, ("p1", "waiting"): 5, ("old", "placement"): 6,
    }  # fmt: skip
    assert index.changed_by(POD, ["p1"], after=0, upto=12) == {
        ("p1", "placement"): 5, ("p1", "waiting"): 5,
    }  # fmt: skip
    assert by(POLICY, "policy") == {("policy", "policy"): 10}
    assert by(CONFIGURATION, "scheduler_names") == {("scheduler_names", "scheduler_names"): 11}


def test_what_was_kept_goes_on(tmp_path: Path) -> None:
    """After a restart, the gateway continues from the last checkpoint and reaches the same state
    and index."""
    index, checkpoints = open_index(tmp_path, "c")
    indexer = Indexer(State(), index, checkpoints)
    read(indexer, EVENTS[:5])
    indexer.keep()
    read(indexer, EVENTS[5:])  # lost, since the process ends before it stores a checkpoint
    index.close()
    again, kept = open_index(tmp_path, "c")
    assert again.revision == 5
    state = kept.load(5)
    assert state is not None
    indexer = Indexer(state, again, kept)
    read(indexer, EVENTS[5:])
    assert indexer.cells.all[-1].last == 12
    assert sum(sum(cell.counts.values()) for cell in indexer.cells.all) == 12
    assert again.facts(POD, ["p1"], after=0, upto=99, limit=99) == [3, 4, 5, 7]
    whole = StateFold(quiet=True)
    for revision, data in enumerate(EVENTS, 1):
        whole.take(Record(revision, subject_of(data), encode(event_of(data))))
    assert digest(indexer.state) == digest(whole.state)


def test_a_disk_that_takes_no_checkpoint_is_asked_as_seldom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the gateway cannot write a checkpoint, it tries again only after the usual number of
    events."""
    index, _ = open_index(tmp_path, "c")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    indexer = Indexer(State(), index, Checkpoints(folder, every_events=3))
    folder.rmdir()
    read(indexer)
    assert capsys.readouterr().out.count("no checkpoint written") == len(EVENTS) // 3
    folder.mkdir()
    read(indexer, EVENTS[:3])
    assert [int(path.stem) for path in folder.iterdir()] == [len(EVENTS) + 3]
    assert index.revision == len(EVENTS) + 3


@pytest.mark.parametrize("damage", [b"nothing of SQLite" * 99, b"SQLite format 3\0", b""])
def test_a_file_that_is_no_index_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    """If the index file is not an index, the gateway replaces it and builds the index again."""
    (tmp_path / "index.sqlite").write_bytes(damage)
    index, checkpoints = open_index(tmp_path, "c")
    read(Indexer(State(), index, checkpoints))
    assert index.facts(POD, ["p1"], after=0, upto=99, limit=99) == [3, 4, 5, 7]


def test_an_index_that_cannot_be_written(tmp_path: Path) -> None:
    """If the gateway cannot write the index, it continues to fold events and stores the error."""
    index, checkpoints = open_index(tmp_path, "c")
    indexer = Indexer(State(), index, checkpoints)
    read(indexer, EVENTS[:2])
    index.close()
    read(indexer, EVENTS[2:])
    assert indexer.state.revision == len(EVENTS)
    assert "free space" in indexer.failed
    assert Index(tmp_path / "index.sqlite").revision == 0
