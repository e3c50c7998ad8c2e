"""Tests of reading a ledger archive, from the start or from a place in the middle."""

import gzip
from pathlib import Path

import pytest

from apportion.runtime.ledger.archive import (
    LINE_BYTES_MAX,
    ArchiveError,
    ArchiveReader,
    ArchiveWriter,
    Place,
    read_archive,
    read_span,
)
from apportion.runtime.ledger.port import Record

RECORDS = [Record(revision, "apportion.v1.x", f"{revision}é".encode()) for revision in range(7, 27)]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return the path of an archive of twenty records, the first of which has revision 7."""
    path = tmp_path / "a.jsonl"
    with ArchiveWriter(path, stream="S", created="c") as writer:
        for record in RECORDS:
            writer.add(record)
    return path


def test_from_every_place(archive: Path) -> None:
    """A reader can continue after any record of an archive. It then returns the same records as a
    reader that began at the start."""
    reader = ArchiveReader(archive)
    places: list[Place] = []
    for _ in reader:
        assert reader.place is not None
        places.append(reader.place)
    for number, place in enumerate(places, 1):
        assert list(ArchiveReader(archive, place)) == RECORDS[number:]
    assert list(read_archive(archive)) == RECORDS


def test_a_place_that_is_not_of_it(archive: Path) -> None:
    """The archive reader refuses a start position that has the wrong hash."""
    reader = iter(ArchiveReader(archive))
    next(reader)
    with pytest.raises(ArchiveError):
        list(ArchiveReader(archive, Place(0, 0, "", 0)))


def test_its_span_by_its_ends(archive: Path, tmp_path: Path) -> None:
    """An archive's span is the revisions of its first and last record. An empty archive has no
    span, and a truncated archive is refused."""
    assert read_span(archive) == (7, 26)
    empty = tmp_path / "empty.jsonl"
    with ArchiveWriter(empty, stream="S", created="c"):
        pass
    assert read_span(empty) == (1, 0)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(ArchiveError):
        read_span(cut)


OPENING = b'{"apportion_archive":1,"stream":"S","created":"c"}\n'
DEEP = b"[" * 1_000_000 + b"\n"


@pytest.mark.parametrize(
    "data",
    [
        b'{"apportion_archive":1,"more":' + DEEP,
        OPENING + b'{"revision":1,"subject":"x","hash":"h","more":' + DEEP,
        OPENING + b'{"revisions":0,"hash":"","more":' + DEEP,
        OPENING + b'{"revision":1,"subject":"x","hash":"h","payload":"' + b"x" * LINE_BYTES_MAX,
        OPENING + b'{"revision":1,"subject":"\xff","hash":"h"}\n',
        gzip.compress(OPENING * 1_000_000),
        b"\0" * 1_000_000,
    ],
    ids=["opening", "record", "closing", "long line", "no text", "compressed", "zeros"],
)
def test_what_is_made_to_hurt_is_no_archive(tmp_path: Path, data: bytes) -> None:
    """The reader refuses a hostile archive with a single error. It neither unpacks such an archive
    nor reads an unlimited amount of it."""
    path = tmp_path / "bomb.jsonl"
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"bomb\.jsonl"):
        list(read_archive(path))
