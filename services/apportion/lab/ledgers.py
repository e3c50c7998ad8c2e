"""Record spans of real ledgers, over NATS or from archive files.

Invariant: a recording begins with the ledger's own state, from a snapshot or its first event."""

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
from apportion.runtime.ledger.moments import Moment, MomentError, is_relative, parse_moment
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reading import read_while
from apportion_schemas.decoding import from_outside

TELL_EVERY: Final = 1_000
Tell = Callable[[int, int], None]
S = TypeVar("S", Recording, Shadowing)


class _Timed(msgspec.Struct):
    time: str = ""


_decode_time = from_outside(msgspec.json.Decoder(_Timed).decode)


class SpanInvalid(ValueError):
    """Raised if a span cannot be recorded; names its start or end, the value and the fix."""


class Wanted(NamedTuple):
    """The span that the user requested, as text. An empty `begin` or `end` sets no bound.

    Relative times such as -7d count from `newest`, if given, and else from `now`."""

    begin: str
    end: str
    now: datetime
    newest: datetime | None = None

    def moments(self) -> tuple[Moment | None, Moment | None]:
        """Parse the beginning and the end of the span; None if not given. Raises SpanInvalid."""
        return self._moment("--from", self.begin), self._moment("--to", self.end)

    def _moment(self, name: str, text: str) -> Moment | None:
        if not text:
            return None
        try:
            now = self.newest if self.newest is not None and is_relative(text) else self.now
            return parse_moment(text, now)
        except MomentError as error:
            raise SpanInvalid(f"{name}: {error}; {error.fix}") from None


async def read_ledger(
    ledger: JetStreamLedger,
    wanted: Wanted,
    sink: Callable[[State, Limits], S],
    *,
    tell: Tell = lambda _, __: None,
    endless: bool = False,
) -> S:
    """Create a `sink` from the state before a span, pass it each event of the span, and return it.

    `tell` is called with the number of events read and the number of all events. With `endless`,
    the function continues with new events until cancelled. Raises SpanInvalid, LedgerError,
    UnknownEvent or RecordingFailed."""
    begin, end = wanted.moments()
    state = (await stream.read_info(ledger.wire)).state
    limits = await _limits(ledger, begin, end, (state.first_seq, state.last_seq), wanted.now)
    # The ledger must have all events after the restored state.
    first, after = state.first_seq, limits.after
    restored = await Snapshots(ledger.wire).restore(at_most=after)
    if restored.revision + 1 < first:
        raise SpanInvalid(
            f"the ledger begins at revision {first} and has no snapshot at or before {after}; "
            "set a later --from, or read its archives with --archive"
        )
    start, upto = restored.revision, sys.maxsize if endless else limits.upto
    made = sink(restored, limits)

    def take(record: Record) -> bool:
        wants_more = made.take(record)
        if record.revision % TELL_EVERY == 0:
            tell(record.revision - start, upto - start)
        return wants_more

    if upto > start:
        await read_while(ledger, take, start=start + 1)
    return made


async def _limits(
    ledger: JetStreamLedger, begin: Moment | None, end: Moment | None, span: tuple[int, int],
    now: datetime,
) -> Limits:  # fmt: skip
    first, last = span
    after, begin_s = first - 1, 0.0
    if begin is not None and begin.revision is not None:
        after = _within("--from", begin.revision, span) - 1
    elif begin is not None and begin.time is not None:
        after = await stream.newest_stored_by(ledger.wire, begin.time)
        begin_s = begin.time.timestamp()
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
            f"{name} is revision {revision}, but the ledger has {span[0]} to {span[1]}; use a "
            "revision in this range, or read its archives with --archive"
        )
    return revision


def _ordered(limits: Limits) -> Limits:
    if limits.end_s <= limits.begin_s:
        raise SpanInvalid("--to is not after --from; set a later --to or an earlier --from")
    return limits


async def _stored_s(ledger: JetStreamLedger, revision: int) -> float:
    stored = await stream.read_stored(ledger.wire, {"seq": revision})
    if stored is None:
        raise SpanInvalid(
            f"revision {revision} is not in the ledger; it was trimmed, or never used"
        )
    return stored.at.timestamp()


# ------------------------------------------------------------------ archives


def read_archives(
    paths: Sequence[Path],
    wanted: Wanted,
    sink: Callable[[State, Limits], S],
    *,
    tell: Tell = lambda _, __: None,
) -> S:
    """Pass a span of archived events to a new `sink`, like `read_ledger`.

    The archives must be consecutive and start with the first event. Relative times count from the
    time of the last event. Raises SpanInvalid, ArchiveError, OSError, UnknownEvent or
    RecordingFailed."""
    if paths and any(map(is_relative, (wanted.begin, wanted.end))):
        newest_s = max(map(_time_s, read_archive(paths[-1])), default=0.0)
        newest = datetime.fromtimestamp(newest_s, UTC) if newest_s else None
        wanted = wanted._replace(newest=newest)
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
                    f"{path}: revision {record.revision} follows {revision}; list the archives "
                    "in order, starting with the first of the ledger"
                )
            if record.revision == revision + 1:
                revision = record.revision
                yield record


def _archived_limits(paths: Sequence[Path], begin: Moment | None, end: Moment | None) -> Limits:
    after, upto, begin_s, end_s, last_s = 0, 0, 0.0, 0.0, 0.0
    for record in _archived(paths):
        last_s = max(_time_s(record), last_s)
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


def _time_s(record: Record) -> float:
    with contextlib.suppress(ValueError):
        return seconds_of(_decode_time(record.payload).time)
    return 0.0


def _is_in(moment: Moment, revision: int, at_s: float, *, open_end: bool) -> bool:
    if moment.revision is not None:
        return revision >= moment.revision if open_end else revision <= moment.revision
    assert moment.time is not None  # noqa: S101 - a moment has one or the other
    its = moment.time.timestamp()
    return at_s > its if open_end else at_s <= its


def record(source: str | Path | Sequence[Path], begin: str = "", end: str = "") -> Recorded:
    """Record a span of a ledger: `source` is a NATS URL, or archives that begin at revision 1.

    `begin` and `end` are as for `apportion replay`, by default the whole ledger. You can call this
    in a notebook, where an event loop is running. Raises SpanInvalid, LedgerError, ArchiveError,
    OSError, UnknownEvent or RecordingFailed."""
    wanted = Wanted(begin, end, now())
    if not isinstance(source, str) or "://" not in source:
        paths = [Path(source)] if isinstance(source, str | Path) else list(source)
        return read_archives(paths, wanted, Recording).finish()

    async def record_url() -> Recorded:
        async with await jetstream.connect(source, name="apportion lab") as ledger:
            await jetstream.check_stream(ledger)
            return (await read_ledger(ledger, wanted, Recording)).finish()

    with ThreadPoolExecutor(1) as beside:
        return beside.submit(lambda: asyncio.run(record_url())).result()


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)
