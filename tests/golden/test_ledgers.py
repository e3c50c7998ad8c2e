"""Tests that fold recorded ledgers of a real run. Every later build must get the same state.

If a change of the fold is intended, the event gets a new version. If only the encoding of the state
has changed, run `record_ledger --digest` and raise the number of the snapshot format."""

import json
from pathlib import Path

import pytest

from apportion.core.audit import Auditor, Violation
from apportion.core.ledger.digest import canonical, digest
from apportion.core.ledger.rules import Rules, rules_of, said_at
from apportion.core.ledger.snapshot import restore, take
from apportion.core.ledger.state import State
from apportion.runtime.ledger.archive import ArchiveError, read_archive
from apportion.runtime.ledger.port import Record
from apportion_schemas import CATALOGUE, decode

LEDGERS = sorted((Path(__file__).parent / "ledgers").glob("*.jsonl"))
NAMES = [path.stem for path in LEDGERS]


def audited(records: list[Record]) -> tuple[State, list[Violation]]:
    """Fold the records. Return the state and all violated invariants."""
    auditor = Auditor(State(rules=rules_in(records)), full_every=10)
    found = [each for r in records for each in auditor.take(r.revision, r.subject, r.payload)]
    return auditor.state, found + auditor.finish()


def rules_in(records: list[Record]) -> Rules:
    """Return the rules that these records set: enabled event formats, and events to ignore."""
    said = [said_at(r.revision, r.subject, r.payload) for r in records]
    return rules_of(each for each in said if each is not None)


def told(path: Path) -> dict[str, object]:
    """Return the content of the digest file next to this ledger: its last revision and its state's
    digest."""
    found: dict[str, object] = json.loads(path.with_suffix(".digest.json").read_text())
    return found


@pytest.mark.parametrize("path", LEDGERS, ids=NAMES)
def test_a_recorded_ledger_folds_to_its_recorded_digest(path: Path) -> None:
    """The state folded from a recorded ledger has the recorded digest, and breaks no invariant."""
    state, found = audited(list(read_archive(path)))
    assert {"revision": state.revision, "digest": digest(state)} == told(path)
    assert found == []


def version_of(path: Path) -> int:
    """Return the event version in the ledger's name: 1 for `v1.jsonl` and `v1-agreement.jsonl`."""
    return int(path.stem.removeprefix("v").partition("-")[0])


@pytest.mark.parametrize("version", sorted({version_of(path) for path in LEDGERS}))
def test_every_type_of_the_version_is_recorded(version: int) -> None:
    """The recorded ledgers of a version contain every event type of that version.

    Later builds need to read only what the recorded ledgers contain, so no type may be missing."""
    records = [r for path in LEDGERS if version_of(path) == version for r in read_archive(path)]
    written = {json.loads(r.payload)["type"] for r in records if _version(r) == version}
    assert written >= {row.type for row in CATALOGUE if row.version >= version}
    read = {type(decode(r.payload, subject=r.subject).data) for r in records}
    assert read >= {row.payload for row in CATALOGUE if row.version >= version}


def _version(record: Record) -> int:
    return int(json.loads(record.payload)["schemaversion"])


@pytest.mark.parametrize("path", LEDGERS, ids=NAMES)
def test_missing_or_swapped_events_are_noticed(path: Path) -> None:
    """If an event of a recorded ledger is missing or changed, the state's digest differs or an
    invariant is violated."""
    records = list(read_archive(path))
    for gone in range(0, len(records), 7):
        state, found = audited(renumbered([*records[:gone], *records[gone + 1 :]]))
        assert found or digest(state) != told(path)["digest"], records[gone].subject
    rewritten = [
        Record(
            r.revision, r.subject, r.payload.replace(b'"memory_mib":2000,', b'"memory_mib":2001,')
        )
        for r in records
    ]
    assert rewritten != records
    state, found = audited(rewritten)
    assert {each.check for each in found} == {"chain"}
    assert digest(state) != told(path)["digest"]


def renumbered(records: list[Record]) -> list[Record]:
    """Return the same records, numbered from 1 without gaps."""
    return [Record(n, r.subject, r.payload) for n, r in enumerate(records, 1)]


@pytest.mark.parametrize("path", LEDGERS, ids=NAMES)
def test_every_line_of_the_file_is_sealed(path: Path, tmp_path: Path) -> None:
    """Reading an archived ledger fails if a line was changed, removed, moved or truncated."""
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if at >= len(lines) // 3 and b"node-" in line)
    changed = [*lines[:at], lines[at].replace(b"node-", b"n0de-", 1), *lines[at + 1 :]]
    copy = tmp_path / "copy.jsonl"
    for broken, named in (
        (changed, f":{at + 1}:"),
        ([*lines[:at], *lines[at + 1 :]], f":{at + 1}:"),
        ([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]], f":{at + 1}:"),
        (lines[:-1], "the end is missing"),
        ([*lines[:-1], lines[-1][:-9]], "the line is truncated"),
        ([*lines[:-2], lines[-1]], "the last line does not match"),
        ([*lines, b"more\n"], "unexpected content"),
        (lines[1:], "not an archive"),
    ):
        copy.write_bytes(b"".join(broken))
        with pytest.raises(ArchiveError, match=named):
            list(read_archive(copy))


@pytest.mark.parametrize("path", LEDGERS, ids=NAMES)
def test_a_snapshot_anywhere_and_the_tail_are_the_whole(path: Path) -> None:
    """Restoring a snapshot and folding the later events gives the same state as folding the whole
    ledger.

    This holds for a snapshot at any revision."""
    records = list(read_archive(path))
    whole, _ = audited(records)
    auditor = Auditor(State(rules=rules_in(records)))
    for record in records:
        auditor.take(record.revision, record.subject, record.payload)
        if record.revision % 5 == 0:
            again = Auditor(restore(take(auditor.state)))
            assert again.state.rules.go_on(rules_in(records), record.revision)
            assert canonical(again.state) == canonical(auditor.state)
            for later in records[record.revision :]:
                assert again.take(later.revision, later.subject, later.payload) == []
            assert canonical(again.state) == canonical(whole)
