"""Tests of what `apportion verify` prints about archived events that changed nothing."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from apportion.cli.main import root
from apportion.cli.verbs.ledger.verify import CONTRADICTIONS_NAMED
from apportion.runtime.ledger.archive import ArchiveWriter
from apportion.runtime.ledger.port import Record
from apportion_schemas import Event, NodeCordoned, PodGone, encode
from apportion_schemas.catalogue import subject_of
from tests.support.golden import Golden

LATE = CONTRADICTIONS_NAMED + 5


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return the path of an archive with more invalid events than `verify` lists."""
    path = tmp_path / "ledger.jsonl"
    with ArchiveWriter(path, stream="APPORTION", created="now") as writer:
        for revision in range(1, LATE + 1):
            data = PodGone(uid=f"p{revision}", reason="test")
            time = "2026-01-01T00:00:00.000000Z"
            event = Event(id=f"p{revision}/gone", source="watcher", time=time, data=data)
            subject = f"apportion.v1.workload.p{revision}"
            writer.add(Record(revision, subject, encode(event)))
    return path


def test_events_that_changed_nothing_are_named(golden: Golden, archive: Path) -> None:
    """`verify` lists the newest events that changed nothing, with their reasons, and counts the
    others."""
    said = CliRunner().invoke(root, ["verify", "--archive", str(archive)], catch_exceptions=False)
    named = [line for line in said.stdout.splitlines() if line.startswith("revision ")]
    assert len(named) == CONTRADICTIONS_NAMED
    golden({f"{LATE} events that changed nothing": said.stdout})


def test_that_every_event_changed_something_is_no_count_of_none(
    golden: Golden, tmp_path: Path
) -> None:
    """`verify` prints how many events changed nothing in the state. If there are no such events, it
    prints that every event changed something, instead of a count of zero."""
    path = tmp_path / "sound.jsonl"
    with ArchiveWriter(path, stream="APPORTION", created="now") as writer:
        data = NodeCordoned(node="n1", by="ada", reason="fan")
        event = Event(id="n1", source="cli", time="2026-01-01T00:00:00.000000Z", data=data)
        writer.add(Record(1, subject_of(data), encode(event)))
    said = CliRunner().invoke(root, ["verify", "--archive", str(path)], catch_exceptions=False)
    golden({"one event": said.stdout})


def test_a_script_reads_them_too(archive: Path) -> None:
    """`verify --json` has a row for each listed event that changed nothing, and the total number of
    such events."""
    said = CliRunner().invoke(root, ["verify", "--json", "--archive", str(archive)])
    told = json.loads(said.stdout)
    assert (told["ok"], told["contradictions"]) == (True, LATE)
    assert len(told["contradicting"]) == CONTRADICTIONS_NAMED
    newest = {"revision": LATE, "type": "PodGone", "reason": f"pod p{LATE} is not live"}
    assert told["contradicting"][-1] == newest
