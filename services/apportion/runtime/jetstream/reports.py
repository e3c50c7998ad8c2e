"""Makes usage reports, from the request to the answer, for the gateway and the command line.

The ledger is read in chunks from the snapshot before the period, and folded off the event loop.
Invariants: a request is checked before the ledger is read; a report is refused if part of its
period is no longer in the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from apportion.core.ledger.fold import Change
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.rules import rules_of
from apportion.core.ledger.state import State
from apportion.core.reports.accounts import Account
from apportion.core.reports.answers import (
    IdleAnswer,
    IdleShare,
    LostAnswer,
    LostRow,
    ReportAnswer,
    ReportRow,
)
from apportion.core.reports.focus import COLUMNS, focus_rows
from apportion.core.reports.lost import Lost
from apportion.core.reports.meters import Meters
from apportion.core.reports.prices import PRICES_BYTES_MAX, PriceError, Prices, prices_of
from apportion.core.reports.report import (
    DIGITS,
    Period,
    Reading,
    idle_answer,
    lost_answer,
    report_answer,
)
from apportion.core.reports.rows import By
from apportion.core.reports.used import IDLE
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.jetstream.wire import Wire
from apportion.runtime.ledger.archive import read_archive, read_said
from apportion.runtime.ledger.moments import MomentError, parse_moment
from apportion.runtime.ledger.port import Readable, Record, Subscription
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.ledger.reading import following
from apportion_schemas import Event

LOST: Final = "lost"  # the report that needs an account of causes


class Asked(Struct, frozen=True, kw_only=True):
    """A report request, in which times and step are still unparsed text."""

    report: str
    by: By
    start: str = ""
    end: str = ""
    step: str = ""
    prices: Prices | None = None
    archives: tuple[Path, ...] = ()
    account: str = "apportion"
    at_least: str = ""  # shortest idle period, by default an hour


def read_prices(path: Path) -> Prices:
    """Read the prices in a file. Raises PriceError."""
    try:
        with path.open("rb") as file:
            return prices_of(file.read(PRICES_BYTES_MAX + 1))
    except OSError as error:
        raise PriceError(f"cannot read {path}: {error.strerror or error}") from None


async def read(
    ledger: JetStreamLedger, asked: Asked, now: datetime, progress: Progress = lambda *_: None
) -> Reading:
    """Read a report's data. Raises PeriodError and the errors of `read_account`."""
    period = await period_of(ledger.wire, asked.start, asked.end, asked.step, now=now)
    idle = length_of("at-least", asked.at_least) or IDLE
    return await read_account(
        ledger,
        asked.by,
        period,
        kind=Lost if asked.report == LOST else Account,
        idle=idle,
        archives=asked.archives,
        progress=progress,
    )


async def answered(asked: Asked, reading: Reading) -> ReportAnswer | IdleAnswer | LostAnswer:
    """Build the answer in a thread, because it may be large. Raises PriceError."""
    if asked.report == "idle":
        return await asyncio.to_thread(idle_answer, reading, asked.prices)
    if asked.report == LOST:
        return await asyncio.to_thread(lost_answer, reading, asked.prices)
    return await asyncio.to_thread(report_answer, asked.report, reading, asked.prices)


def as_csv(answer: ReportAnswer | IdleAnswer | LostAnswer) -> str:
    """Format an answer as CSV: its rows, its time steps, or its idle shares.

    Each column adds up to the total, except for rounding: a row with an empty key has the capacity
    that is in no other row."""
    if isinstance(answer, IdleAnswer):
        return _csv(IdleShare, answer.shares)
    if isinstance(answer, LostAnswer):
        return _csv(LostRow, answer.steps or answer.rows)
    rows, total = list(answer.steps or answer.rows), answer.total
    if not answer.steps and answer.by not in {"node", "model"}:
        unheld = msgspec.structs.replace(
            total,
            allocated_gpu_hours=0.0,
            allocated_gib_hours=0.0,
            reported_gpu_hours=0.0,
            used_gpu_hours=0.0,
            used_gib_hours=0.0,
            cost=None if total.cost is None else 0.0,
            capacity_gpu_hours=_less(total.capacity_gpu_hours, total.allocated_gpu_hours),
            capacity_gib_hours=_less(total.capacity_gib_hours, total.allocated_gib_hours),
            capacity_cost=_less(total.capacity_cost, total.cost),
        )
        rows.append(unheld)
    return _csv(ReportRow, rows)


def _less(whole: float | None, part: float | None) -> float | None:
    return None if whole is None else round(whole - (part or 0.0), DIGITS)


def as_focus(asked: Asked, reading: Reading) -> str:
    """Format the report as FOCUS 1.0 records in CSV. Raises PriceError."""
    if asked.prices is None:
        raise PriceError("FOCUS records require prices; name a price file")
    return csv_of(COLUMNS, focus_rows(reading, asked.prices, asked.account))


def _csv(kind: type[Struct], rows: Sequence[Struct]) -> str:
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    return csv_of(names, map(msgspec.to_builtins, rows))


def csv_of(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Format rows as CSV (RFC 4180, UTF-8); None is an empty cell."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, lineterminator="\r\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        # Floats have no exponent, because spreadsheets disagree about 1e-06.
        writer.writerow({k: f"{v:.6f}" if isinstance(v, float) else v for k, v in row.items()})
    return out.getvalue()


CHUNK = 10_000
SMALL = 500  # records folded at a time off the loop, so that others get their turn

Progress = Callable[[int, int], None]  # called with a revision and the last one to read


class TooEarly(ValueError):
    """Error: the period begins before the readable ledger. The message has the readable period."""


class _Books(StateFold):
    def __init__(
        self, state: State, by: By, period: Period, kind: type[Account], idle: int
    ) -> None:
        super().__init__(state, quiet=True)
        self.by, self.period = by, period
        self.meters = Meters(period.start, period.end, period.step)
        self.account = kind(state, by, self.meters, idle)
        self._stored_ns = 0

    def apply(self, record: Record, event: Event) -> Change:
        """Fold the event at the server's time of storage, or at its own time if it is archived."""
        change = super().apply(record, event)
        self.account.observe(change, self._stored_ns // 1_000 or micros_of(event.time) or 0)
        return change

    def take_all(self, records: Iterable[Dated]) -> None:
        for record, stored_ns in records:
            if record.revision > self.state.revision and not self.account.over:
                self._stored_ns = stored_ns
                self.take(record)

    def closed(self) -> Reading:
        self.account.finish()
        return Reading(self.state.revision, self.by, self.period, self.meters, self.account)


async def read_account(
    ledger: JetStreamLedger,
    by: By,
    period: Period,
    *,
    kind: type[Account] = Account,
    idle: int = IDLE,
    archives: Sequence[Path] = (),
    progress: Progress = lambda *_: None,
) -> Reading:
    """Read a report's data from archives, oldest first, then from the ledger.

    Raises TooEarly, TooMuch, ArchiveError, OSError, LedgerError, UnknownEvent (newer build)."""
    info = await stream.read_info(ledger.wire)
    first, last = info.state.first_seq, info.state.last_seq
    if archives:
        said = [*await asyncio.to_thread(read_said, archives), *await stream.read_said(ledger.wire)]
        state = State(rules=rules_of(said))
    else:
        state = await _begin(ledger.wire, Snapshots(ledger.wire), period.start, first)
    books = await asyncio.to_thread(_Books, state, by, period, kind, idle)
    archived = itertools.chain.from_iterable(map(read_archive, archives))
    while chunk := [Dated(record, 0) for record in itertools.islice(archived, CHUNK)]:
        await asyncio.to_thread(books.take_all, chunk)
        progress(books.state.revision, last)
    if books.state.revision + 1 < first:
        raise TooEarly(
            f"the ledger begins at revision {first}, but the archives end at "
            f"{books.state.revision}; give all archives in between"
        )
    while books.state.revision < last and not books.account.over:
        chunk = await history(ledger, books.state.revision, CHUNK)
        if not chunk:
            break
        for at in range(0, len(chunk), SMALL):
            await asyncio.to_thread(books.take_all, chunk[at : at + SMALL])
        progress(books.state.revision, last)
    return books.closed()


async def _begin(wire: Wire, snapshots: Snapshots, start: int, first: int) -> State:
    """Return the newest stored state from before the period, or an empty state. Raises TooEarly."""
    for each in await snapshots.stored():
        stored = await stream.read_stored(wire, {"seq": each.revision})
        if stored is not None and micros_since(stored.at) <= start:
            state = await snapshots.load(each)
            if state is not None:
                return state
    if first <= 1:
        return State(rules=await snapshots.rules())
    raise TooEarly(
        f"the ledger begins at revision {first}, after the start of the period; start "
        "later, or give the archives of the dropped events"
    )


class Dated(NamedTuple):
    """A record, and the time at which the server stored it in ns since 1970 (0 if unknown)."""

    record: Record
    stored_ns: int


class _Enough(Exception): ...


async def history(ledger: Readable, after: int, limit: int) -> list[Dated]:
    """Return up to `limit` records that follow revision `after`. Raises LedgerError."""
    records: list[Dated] = []
    subscription: Subscription | None = None

    def take(record: Record) -> None:
        if len(records) == limit:
            raise _Enough
        records.append(Dated(record, subscription.stored_ns if subscription else 0))

    with contextlib.suppress(_Enough):
        async with following(ledger, take, start=after + 1) as subscription:
            await subscription.caught_up()
    found = records.copy()
    records.clear()  # the ledger keeps the follower, whose callback refers to this list
    return found


DAY: Final = timedelta(days=1)
STEPS_MAX: Final = 2_000
_LENGTH: Final = re.compile(r"(\d{1,9})([smhd])").fullmatch
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PeriodError(ValueError):
    """Error: the period is invalid. `field` names the wrong parameter; `fix` says what to write."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        self.field, self.rest, self.fix = field, f": {problem}", fix
        super().__init__(f"{field}{self.rest}")


async def period_of(wire: Wire, start: str, end: str, step: str, *, now: datetime) -> Period:
    """Parse a report's period, by default the last day. Raises PeriodError, LedgerUnavailable."""
    last = await _micros(wire, "to", end, now) if end else micros_since(now)
    first = (
        await _micros(wire, "from", start, now)
        if start
        else last - int(DAY.total_seconds()) * SECOND
    )
    if first >= last:
        raise PeriodError(
            "from", f"{start!r} is not before {end or 'now'!r}", "use a start before the end"
        )
    length = length_of("step", step)  # 0 for no steps
    if length and (last - first) // length >= STEPS_MAX:
        raise PeriodError(
            "step", f"{step!r} makes more than {STEPS_MAX:,} steps", "use longer steps"
        )
    return Period(first, last, length)


def length_of(field: str, text: str) -> int:
    """Convert a duration such as `15m` to microseconds; "" is 0. Raises PeriodError."""
    match = _LENGTH(text)
    if text and (match is None or not int(match[1])):
        fix = "write a number followed by s, m, h or d, such as 15m, 1h or 1d"
        raise PeriodError(
            field, f"{text[:40]!r} is not a valid {'step' if field == 'step' else 'length'}", fix
        )
    return int(match[1]) * _SECONDS[match[2]] * SECOND if match else 0


def micros_since(time: datetime) -> int:
    """Convert a timezone-aware time to microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)


async def _micros(wire: Wire, field: str, text: str, now: datetime) -> int:
    try:
        moment = parse_moment(text, now)
    except MomentError as error:
        raise PeriodError(field, str(error), error.fix) from None
    if moment.time is not None:
        return micros_since(moment.time)
    stored = await stream.read_stored(wire, {"seq": moment.revision or 0})
    if stored is None:
        raise PeriodError(
            field,
            f"the ledger has no event at revision {moment.revision}",
            "run `apportion ledger check` to list the stored revisions, or give a time",
        )
    return micros_since(stored.at)
