"""A copy of the ledger in a file of JSON lines that are chained by hashes.

    {"apportion_archive":1,"stream":"APPORTION","created":"…"}
    {"revision":1,"subject":"apportion.v1…","payload":"{…}","hash":"…"}
    {"revisions":1,"hash":"…"}

Each hash is the SHA-256 over the previous hash and the record. A payload that is not text is
`base64`. Invariant: a file under its final name is complete; an incomplete one has another name."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import IO, NamedTuple, Self, TypeVar

import msgspec

from apportion.core.doctor.facts import ArchiveFacts
from apportion.core.ledger.rules import Said, said_at
from apportion.runtime.ledger.port import Record
from apportion_schemas.decoding import from_outside

T = TypeVar("T")
FORMAT = 1
LINE_BYTES_MAX = 16 << 20  # a message of 1 MiB with the most JSON escapes
CLOSING_BYTES_MAX = 256


class ArchiveError(Exception):
    """Error: the archive cannot be used. The message names the line and the reason."""


class Opening(msgspec.Struct, frozen=True):
    """The first line of an archive. `created` is when the ledger's stream was created."""

    apportion_archive: int
    stream: str
    created: str


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    revision: int
    subject: str
    hash: str
    payload: str | None = None
    base64: bytes | None = None


class _Closing(msgspec.Struct, frozen=True):
    revisions: int
    hash: str


_encode = msgspec.json.Encoder().encode
# A hostile line may have millions of nested brackets, which `from_outside` handles.
_decode_line = from_outside(msgspec.json.Decoder(_Line).decode)
_decode_opening = from_outside(msgspec.json.Decoder(Opening).decode)
_decode_closing = from_outside(msgspec.json.Decoder(_Closing).decode)


def _link(before: str, record: Record) -> str:
    # The length makes the encoding of a record unambiguous.
    head = f"{before} {record.revision} {len(record.subject)} {record.subject} "
    return sha256(head.encode() + record.payload).hexdigest()


class ArchiveWriter:
    """Context manager that writes one archive: renames it when complete, removes it on error."""

    def __init__(self, path: Path, *, stream: str, created: str) -> None:
        if path.exists():
            raise ArchiveError(f"{path} already exists; choose another name, or move it")
        self._path = path
        self._draft = path.with_name(path.name + ".partial")
        self._opening = Opening(FORMAT, stream, created)
        self._file: IO[bytes]
        self._hash = ""
        self.revisions = 0

    def __enter__(self) -> Self:
        descriptor = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        opening = _encode(self._opening)
        self._hash = sha256(opening).hexdigest()
        self._file.write(opening + b"\n")
        return self

    def add(self, record: Record) -> None:
        """Append the next record to the archive. Raises OSError."""
        self._hash = _link(self._hash, record)
        try:
            line = _Line(
                record.revision, record.subject, self._hash, payload=record.payload.decode()
            )
        except UnicodeDecodeError:
            line = _Line(record.revision, record.subject, self._hash, base64=record.payload)
        self._file.write(_encode(line) + b"\n")
        self.revisions += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        file = self._file
        try:
            if kind is None:
                file.write(_encode(_Closing(self.revisions, self._hash)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
                file.close()
                self._draft.rename(self._path)
        finally:
            with contextlib.suppress(OSError):
                file.close()  # flushes its buffer, which fails again on a full disk
            self._draft.unlink(missing_ok=True)


def read_opening(path: Path) -> Opening:
    """Read the first line of an archive, its `Opening`. Raises ArchiveError, OSError."""
    with path.open("rb") as file:
        return _opening(_read(file, path, 1), path)


class Place(NamedTuple):
    """A position in an archive: after `revisions` records, `number` lines and `offset` bytes."""

    offset: int
    number: int
    hash: str
    revisions: int


class ArchiveReader:
    """Iterator over an archive's verified records; another reader can continue at its `place`."""

    def __init__(self, path: Path, place: Place | None = None) -> None:
        self._path = path
        self.place = place

    def __iter__(self) -> Iterator[Record]:
        path = self._path
        with path.open("rb") as file:
            offset, number, before, revisions = self.place or _beginning(file, path)
            file.seek(offset)
            while True:
                number += 1
                line = _read(file, path, number)
                offset += len(line) + 1
                where = f"{path}:{number}"
                if line.startswith(b'{"revisions"'):
                    end = _decoded(_decode_closing, line, f"{where}: invalid last line")
                    if (end.revisions, end.hash) != (revisions, before):
                        raise ArchiveError(
                            f"{where}: the last line does not match the records before it"
                        )
                    if file.read(1):
                        raise ArchiveError(f"{where}: unexpected content after the last line")
                    return
                written = _decoded(_decode_line, line, f"{where}: invalid record")
                payload = written.base64 if written.payload is None else written.payload.encode()
                record = Record(written.revision, written.subject, payload or b"")
                if _link(before, record) != written.hash:
                    raise ArchiveError(
                        f"{where}: the hash of revision {written.revision} does not match; this "
                        "record was changed, or the one before it is missing"
                    )
                before = written.hash
                revisions += 1
                self.place = Place(offset, number, before, revisions)
                yield record


def read_archive(path: Path) -> Iterator[Record]:
    """Yield the verified records of an archive. Raises ArchiveError, OSError."""
    yield from ArchiveReader(path)


def read_said(paths: Iterable[Path]) -> list[Said]:
    """Return the FormatEnabled and RevisionSetAside events in the archives.

    Stops at the first record that cannot be read."""
    said = []
    with contextlib.suppress(ArchiveError, OSError):
        for path in paths:
            for each in read_archive(path):
                found = said_at(each.revision, each.subject, each.payload)
                said += [found] if found is not None else []
    return said


def read_span(path: Path) -> tuple[int, int]:
    """Return the first and last revision; (1, 0) if empty. Raises ArchiveError, OSError."""
    with path.open("rb") as file:
        _beginning(file, path)
        line = _read(file, path, 2)
        if line.startswith(b'{"revisions"'):
            return 1, 0
        first = _decoded(_decode_line, line, f"{path}:2: invalid record").revision
        file.seek(max(0, path.stat().st_size - CLOSING_BYTES_MAX))
        closing = file.read().removesuffix(b"\n").rpartition(b"\n")[2]
        end = _decoded(_decode_closing, closing, f"{path}:-1: invalid last line")
        return first, first + end.revisions - 1


def _beginning(file: IO[bytes], path: Path) -> Place:
    opening = _read(file, path, 1)
    _opening(opening, path)
    return Place(len(opening) + 1, 1, sha256(opening).hexdigest(), 0)


def _opening(line: bytes, path: Path) -> Opening:
    found = _decoded(_decode_opening, line, f"{path} is not an archive of a ledger")
    if found.apportion_archive != FORMAT:
        raise ArchiveError(
            f"{path} has format {found.apportion_archive}, but this build reads format {FORMAT}"
        )
    return found


def _decoded(decode: Callable[[bytes], T], line: bytes, why: str) -> T:
    try:
        return decode(line)
    except msgspec.DecodeError as error:
        raise ArchiveError(f"{why}: {error}") from None


def _read(file: IO[bytes], path: Path, number: int) -> bytes:
    line = file.readline(LINE_BYTES_MAX)
    if not line:
        raise ArchiveError(f"{path}:{number}: the end is missing; the file is truncated")
    if not line.endswith(b"\n"):
        raise ArchiveError(
            f"{path}:{number}: the line is truncated or longer than {LINE_BYTES_MAX} bytes"
        )
    return line[:-1]


def archive_facts(folder: Path, *, now: datetime) -> ArchiveFacts:
    """Return the facts for `doctor` about a folder's archives (`*.jsonl`), such as their age."""
    try:
        made = [path.stat().st_mtime for path in folder.glob("*.jsonl")]
    except OSError:
        made = []
    age_s = now.timestamp() - max(made) if made else 0.0
    return ArchiveFacts(folder=str(folder), archives=len(made), newest_age_s=age_s)
