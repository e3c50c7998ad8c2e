"""Recordings of real ledgers: over NATS, or out of archive files.

Invariant: what is recorded begins with the state that the ledger itself says, folded from a
snapshot or from its first event, and never from a guess."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from apportion.core.ledger.rules import rules_of
from apportion.core.ledger.state import State
from apportion.lab.recording import Limits, Recorded, Recording, seconds_of
from apportion.lab.shadowing import Shadowing
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.archive import read_archive, read_said
from apportion.runtime.ledger.moments import Moment, MomentError, parse_moment
from apportion.runtime.ledger.port import Record
from apportion_schemas.decoding import from_outside

TELL_EVERY: Final = 1_000
Tell = Callable[[int, int], None]
S = TypeVar("S", Recording, Shadowing)


class _Timed(msgspec.Struct):
    time: str = ""


_decode_time = from_outside(msgspec.json.Decoder(_Timed).decode)


class SpanInvalid(ValueError):
    """A span that cannot be recorded: the message names the end, its value and the fix."""


class _Enough(Exception):
    """The last record of the span has come."""


class Wanted(NamedTuple):
    """A span as people write it, each end a moment or empty; `now` is what time it is."""

    begin: str
    end: str
    now: datetime

    def moments(self) -> tuple[Moment | None, Moment | None]:
        """The moments of both ends, None for one that was left out. Raises SpanInvalid."""
        return self._moment("--from", self.begin), self._moment("--to", self.end)

    def _moment(self, name: str, text: str) -> Moment | None:
        if not text:
            return None
        try:
            return parse_moment(text, self.now)
        except MomentError as error:
            raise SpanInvalid(f"{name}: {error}; {error.fix}") from None


def _nothing(_done: int, _of: int) -> None:
    """Say nothing."""


async def read_ledger(
    ledger: JetStreamLedger,
    wanted: Wanted,
    sink: Callable[[State, Limits], S],
    *,
    tell: Tell = _nothing,
    endless: bool = False,
) -> S:
    """What `sink` makes of the state at the beginning of the span, given all events behind it.

    `tell` hears how many events of how many were read. `endless`: go on with what comes, until
    cancelled. Raises SpanInvalid, LedgerError, UnknownEvent, RecordingFailed."""
    begin, end = wanted.moments()
    state = (await stream.read_info(ledger.wire)).state
    limits = await _limits(ledger, begin, end, (state.first_seq, state.last_seq), wanted.now)
    # Behind the state the ledger holds everything.
    first, after = state.first_seq, limits.after
    restored = await Snapshots(ledger.wire).restore(at_most=after)
    if restored.revision + 1 < first:
        raise SpanInvalid(
            f"the ledger begins at revision {first}, and no snapshot is at or before {after}; name "
            "a later --from, or read its archives with --archive"
        )
    start, upto = restored.revision, sys.maxsize if endless else limits.upto
    made = sink(restored, limits)

    def deliver(record: Record) -> None:
        wants_more = made.take(record)
        if record.revision % TELL_EVERY == 0:
            tell(record.revision - start, upto - start)
        if not wants_more:
            raise _Enough

    if upto > start:
        with contextlib.suppress(_Enough):
            await (await ledger.follow(deliver, start=start + 1)).join()
    return made


async def _limits(
    ledger: JetStreamLedger, begin: Moment | None, end: Moment | None, span: tuple[int, int],
    now: datetime,
) -> Limits:  # fmt: skip
    """The span by revisions and seconds. Raises SpanInvalid."""
    first, last = span
    after, begin_s = first - 1, 0.0
    if begin is not None and begin.revision is not None:
        after = _within("--from", begin.revision, span) - 1
    elif begin is not None and begin.time is not None:
        after, begin_s = (
            await stream.newest_stored_by(ledger.wire, begin.time),
            begin.time.timestamp(),
        )
    upto, end_s = last, now.timestamp()
    if end is not None and end.revision is not None:
        upto = _within("--to", end.revision, span)
        end_s = await _stored_s(ledger, upto)
    elif end is not None and end.time is not None:
        upto, end_s = await stream.newest_stored_by(ledger.wire, end.time), end.time.timestamp()
    begin_s = begin_s or await _stored_s(ledger, min(after + 1, last))
    return _ordered(Limits(after=max(after, first - 1), upto=upto, begin_s=begin_s, end_s=end_s))


def _within(name: str, revision: int, span: tuple[int, int]) -> int:
    if not span[0] <= revision <= span[1]:
        raise SpanInvalid(
            f"{name} is revision {revision}, and the ledger has {span[0]} to {span[1]}; name one "
            "of these, or read its archives with --archive"
        )
    return revision


def _ordered(limits: Limits) -> Limits:
    if limits.end_s <= limits.begin_s:
        raise SpanInvalid("--to is not behind --from; name a later --to, or an earlier --from")
    return limits


async def _stored_s(ledger: JetStreamLedger, revision: int) -> float:
    stored = await stream.read_stored(ledger.wire, {"seq": revision})
    if stored is None:
        raise SpanInvalid(f"revision {revision} is not in the ledger; it is empty, or was trimmed")
    return stored.at.timestamp()


# ------------------------------------------------------------------ archives


def read_archives(
    paths: Sequence[Path],
    wanted: Wanted,
    sink: Callable[[State, Limits], S],
    *,
    tell: Tell = _nothing,
) -> S:
    """As `read_ledger`, of archives, which begin with the first event and follow one another.

    Raises SpanInvalid, ArchiveError, OSError, UnknownEvent, RecordingFailed."""
    limits = _archived_limits(paths, *wanted.moments())
    made = sink(State(rules=rules_of(read_said(paths))), limits)
    for record in _archived(paths):
        if not made.take(record):
            break
        if record.revision % TELL_EVERY == 0:
            tell(record.revision, limits.upto)
    return made


def _archived(paths: Sequence[Path]) -> Iterator[Record]:
    revision = 0
    for path in paths:
        for record in read_archive(path):
            if record.revision > revision + 1:
                raise SpanInvalid(
                    f"{path}: revision {record.revision} follows {revision}; name the archives "
                    "from the ledger's beginning on, in order"
                )
            if record.revision == revision + 1:
                revision = record.revision
                yield record


def _archived_limits(paths: Sequence[Path], begin: Moment | None, end: Moment | None) -> Limits:
    """The span, by a first look at the times of all records."""
    after, upto, begin_s, end_s, last_s = 0, 0, 0.0, 0.0, 0.0
    for record in _archived(paths):
        with contextlib.suppress(ValueError):  # a record without a time has that of the one before
            last_s = max(seconds_of(_decode_time(record.payload).time), last_s)
        if begin is not None and not _is_in(begin, record.revision, last_s, open_end=True):
            after = record.revision
        elif not begin_s:
            begin_s = last_s
        if end is None or _is_in(end, record.revision, last_s, open_end=False):
            upto, end_s = record.revision, last_s
    if begin is not None and begin.time is not None:
        begin_s = begin.time.timestamp()
    if end is not None and end.time is not None:
        end_s = min(end.time.timestamp(), last_s)
    return _ordered(Limits(after=after, upto=upto, begin_s=begin_s, end_s=end_s))


def _is_in(moment: Moment, revision: int, at_s: float, *, open_end: bool) -> bool:
    """Whether a record is at or behind the moment (`open_end`), or at or before it."""
    if moment.revision is not None:
        return revision >= moment.revision if open_end else revision <= moment.revision
    assert moment.time is not None  # noqa: S101 - one of the two is there
    its = moment.time.timestamp()
    return at_s > its if open_end else at_s <= its


def record(source: str | Path | Sequence[Path], begin: str = "", end: str = "") -> Recorded:
    """A span of a ledger: of a NATS URL, or of archive files from its beginning on.

    `begin` and `end` are moments as for `apportion replay`; left out, all of it. It may be called
    where an event loop runs already, as in a notebook.

    Raises SpanInvalid, LedgerError, ArchiveError, OSError, UnknownEvent, RecordingFailed."""
    wanted = Wanted(begin, end, now())
    if isinstance(source, str) and "://" in source:
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(lambda: asyncio.run(_record_url(source, wanted))).result()
    paths = [Path(source)] if isinstance(source, str | Path) else list(source)
    return read_archives(paths, wanted, Recording).finish()


async def _record_url(url: str, wanted: Wanted) -> Recorded:
    ledger = await jetstream.connect(url, name="apportion lab")
    try:
        await jetstream.check_stream(ledger)
        return (await read_ledger(ledger, wanted, Recording)).finish()
    finally:
        await ledger.close()


def now() -> datetime:
    """What time it is, for whoever has no clock of its own."""
    return datetime.now(UTC)
