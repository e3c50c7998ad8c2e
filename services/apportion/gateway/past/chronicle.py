"""Reads all records: from the ledger, and from archives of what the ledger has dropped.

Invariants: records are delivered in revision order without a gap. Archives are verified as they are
read. A part of a file can be read without the rest."""

import asyncio
import bisect
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.archive import (
    ArchiveError,
    ArchiveReader,
    Place,
    read_opening,
    read_span,
)
from apportion.runtime.ledger.port import Record
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.waiting import first_of
from apportion_schemas.decoding import from_outside

SLICE_RECORDS = 500
PLACE_EVERY = 1_000
AT_ONCE = 32
ARCHIVES_MAX = 1_000

Deliver = Callable[[Record], None]
_log = get_logger(__name__)


class _Timed(msgspec.Struct):
    time: str = ""


_decode_time = from_outside(msgspec.json.Decoder(_Timed).decode)


class _Span:
    """Delivers records up to a revision, then drops its reference to the receiver.

    An error raised in `take` would keep the receiver in memory until a full garbage collection,
    which is rare here. So `take` stores the error, and `check` raises it."""

    def __init__(self, deliver: Deliver, upto: int) -> None:
        self._deliver: Deliver | None = deliver
        self._upto = upto
        self._failure: Exception | None = None
        self.done = asyncio.Event()

    def take(self, record: Record) -> None:
        """Deliver the record, unless it is beyond the last requested one or there was an error."""
        if self._deliver is None:
            return
        try:
            if record.revision <= self._upto:
                self._deliver(record)
        except Exception as failure:  # noqa: BLE001 - `check` raises it
            self._failure = failure
        if self._failure is not None or record.revision >= self._upto:
            self.close()
            self.done.set()

    def close(self) -> None:
        self._deliver = None

    def check(self) -> None:
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # breaks the reference cycle of the traceback and this frame


def time_of(record: Record) -> str:
    """Return the time of the record's event, or "" if it has none or cannot be read."""
    try:
        said = _decode_time(record.payload).time
        return said if datetime.fromisoformat(said).tzinfo is not None else ""
    except ValueError:
        return ""


class ArchiveFile:
    """An archive file. It remembers positions, by revision, at which reading can begin."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first, self.last = read_span(path)
        self.places: list[tuple[int, Place]] = []

    async def read(self, deliver: Deliver, *, after: int, upto: int) -> None:
        """Deliver records after `after` up to `upto`. Raises ArchiveError, OSError."""
        known = bisect.bisect_right(self.places, after, key=lambda place: place[0])
        reader = ArchiveReader(self.path, self.places[known - 1][1] if known else None)
        noted = self.places[-1][0] if self.places else self.first - 1
        for number, record in enumerate(reader):
            if record.revision > after:
                deliver(record)
            if record.revision >= noted + PLACE_EVERY and reader.place is not None:
                noted = record.revision
                self.places.append((noted, reader.place))
            if record.revision >= upto:
                return
            if number % SLICE_RECORDS == 0:
                await asyncio.sleep(0)


def open_archives(folder: Path | None, created: str) -> list[ArchiveFile]:
    """Return the usable archives of the stream created at `created`, oldest first."""
    found: list[ArchiveFile] = []
    paths = sorted(folder.iterdir())[:ARCHIVES_MAX] if folder is not None else []
    for path in paths:
        if not path.is_file() or path.suffix != ".jsonl":
            continue
        try:
            if read_opening(path).created != created:
                raise ArchiveError(f"{path} is an archive of another ledger")
            found.append(ArchiveFile(path))
        except (ArchiveError, OSError) as error:
            _log.warning("archive not used", error=str(error))
    return sorted(found, key=lambda archive: (archive.first, -archive.last))


class Chronicle:
    """The ledger and its archives as one sequence of records."""

    def __init__(self, ledger: JetStreamLedger, archives: Sequence[ArchiveFile] = ()) -> None:
        self._ledger = ledger
        self.archives = list(archives)
        self._consumer = asyncio.Lock()

    async def span(self) -> tuple[int, int]:
        """Return the first and last revision that can be read. Raises LedgerError."""
        state = (await stream.read_info(self._ledger.wire)).state
        first = max(state.first_seq, 1)
        for archive in reversed(self.archives):
            if archive.first < first <= archive.last + 1:
                first = archive.first
        return first, state.last_seq

    async def read(self, deliver: Deliver, *, after: int, upto: int) -> None:
        """Deliver records after `after` up to `upto`. Raises LedgerError, ArchiveError."""
        if after >= upto:
            return
        begins = await self._ledger.first_revision()
        for archive in self.archives:
            if after + 1 >= begins or after >= upto:
                break
            if archive.first <= after + 1 <= archive.last:
                await archive.read(deliver, after=after, upto=min(upto, archive.last))
                after = min(upto, archive.last)
        if after < upto:
            async with self._consumer:  # one consumer of the ledger at a time
                await self._read_ledger(deliver, after=after, upto=upto)

    async def _read_ledger(self, deliver: Deliver, *, after: int, upto: int) -> None:
        span = _Span(deliver, upto)
        subscription = await self._ledger.follow(span.take, start=after + 1)
        try:
            await first_of(span.done.wait(), subscription.join())
        finally:
            span.close()
            await subscription.stop()
        span.check()

    async def records(self, revisions: Sequence[int]) -> list[Record]:
        """Return the records at these ascending revisions; those that are gone are left out."""
        begins = await self._ledger.first_revision()
        found: list[Record] = []
        for revision in revisions:
            holding = (each for each in self.archives if each.first <= revision <= each.last)
            if revision < begins and (archive := next(holding, None)):
                await archive.read(found.append, after=revision - 1, upto=revision)
        here = [revision for revision in revisions if revision >= begins]
        for start in range(0, len(here), AT_ONCE):
            asked = (
                stream.read_record(self._ledger.wire, revision)
                for revision in here[start : start + AT_ONCE]
            )
            found += [record for record in await asyncio.gather(*asked) if record is not None]
        return found

    async def revision_at(self, time: datetime) -> int:
        """Return the newest revision recorded at or before `time`; 0 if there is none.

        In the ledger, the server's time of storage counts; in an archive, the event's own time."""
        revision = await stream.newest_stored_by(self._ledger.wire, time)
        if revision:
            return revision
        begins = await self._ledger.first_revision()
        low, high = (await self.span())[0] - 1, begins
        while high - low > 1:
            middle = (low + high) // 2
            [record] = await self.records([middle])
            said = time_of(record)
            if not said or datetime.fromisoformat(said) <= time:
                low = middle
            else:
                high = middle
        return low if low >= (await self.span())[0] else 0

    async def time_at(self, revision: int) -> str:
        """Return the time of the event at `revision`, or "" if it is unknown."""
        for record in await self.records([revision]):
            said = time_of(record)
            if said:
                return said
            stored = await stream.read_stored(self._ledger.wire, {"seq": revision})
            return "" if stored is None else stored.at.astimezone(UTC).isoformat()
        return ""
