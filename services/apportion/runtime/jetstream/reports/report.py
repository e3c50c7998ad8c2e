"""One report, from what somebody asks to the answer: shared by gateway and command line.

Invariant: what is asked is checked before the ledger is read.
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from apportion.core.reports.answers import IdleAnswer, IdleShare, ReportAnswer, ReportRow
from apportion.core.reports.focus import COLUMNS, focus_rows
from apportion.core.reports.prices import PRICES_BYTES_MAX, PriceError, Prices, prices_of
from apportion.core.reports.report import DIGITS, Reading, idle_answer, report_answer
from apportion.core.reports.rows import By
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.reports.accounting import Progress, period_of, read_account

REPORTS: Final = ("usage", "cost", "idle")


class Asked(Struct, frozen=True, kw_only=True):
    """What somebody asks: moments and step as they were written."""

    report: str
    by: By
    start: str = ""
    end: str = ""
    step: str = ""
    prices: Prices | None = None
    archives: tuple[Path, ...] = ()
    account: str = "apportion"


def read_prices(path: Path) -> Prices:
    """The prices in a file. Raises PriceError."""
    try:
        with path.open("rb") as file:
            return prices_of(file.read(PRICES_BYTES_MAX + 1))
    except OSError as error:
        raise PriceError(f"cannot read {path}: {error.strerror or error}") from None


async def read(
    ledger: JetStreamLedger, asked: Asked, now: datetime, progress: Progress = lambda *_: None
) -> Reading:
    """What the ledger says of the period. Raises PeriodError, and as `read_account`."""
    period = await period_of(ledger.wire, asked.start, asked.end, asked.step, now=now)
    return await read_account(ledger, asked.by, period, archives=asked.archives, progress=progress)


async def answered(asked: Asked, reading: Reading) -> ReportAnswer | IdleAnswer:
    """The answer, made off the loop: it may have thousands of rows. Raises PriceError."""
    if asked.report == "idle":
        return await asyncio.to_thread(idle_answer, reading, asked.prices)
    return await asyncio.to_thread(report_answer, asked.report, reading, asked.prices)


def as_csv(answer: ReportAnswer | IdleAnswer) -> str:
    """The rows, or the steps where there are any, or the shares that did nothing.

    The sum of a column is that of the whole: there is no row of totals, but one without a key of
    what nobody held, whose capacity that is, unless nodes tell it themselves.
    """
    if isinstance(answer, IdleAnswer):
        return _csv(IdleShare, answer.shares)
    nobody = () if answer.by == "node" else (_of_nobody(answer.total),)
    return _csv(ReportRow, answer.steps or (*answer.rows, *nobody))


def _of_nobody(total: ReportRow) -> ReportRow:
    """Of the whole, what nobody held."""
    return msgspec.structs.replace(
        total,
        granted_gpu_hours=0.0,
        granted_gib_hours=0.0,
        reported_gpu_hours=0.0,
        used_gpu_hours=0.0,
        used_gib_hours=0.0,
        cost=None if total.cost is None else 0.0,
        capacity_gpu_hours=_less(total.capacity_gpu_hours, total.granted_gpu_hours),
        capacity_gib_hours=_less(total.capacity_gib_hours, total.granted_gib_hours),
        capacity_cost=_less(total.capacity_cost, total.cost),
    )


def _less(whole: float | None, part: float | None) -> float | None:
    return None if whole is None else round(whole - (part or 0.0), DIGITS)


def as_focus(asked: Asked, reading: Reading) -> str:
    """The records of FOCUS 1.0 as CSV. Raises PriceError."""
    if asked.prices is None:
        raise PriceError("FOCUS records are of money: give prices")
    return csv_of(COLUMNS, focus_rows(reading, asked.prices, asked.account))


def _csv(kind: type[Struct], rows: Sequence[Struct]) -> str:
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    return csv_of(names, map(msgspec.to_builtins, rows))


def csv_of(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """The rows under their columns as CSV (RFC 4180, UTF-8); None is an empty cell."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, lineterminator="\r\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(row.get(name)) for name in columns})
    return out.getvalue()


def _cell(value: object) -> object:
    """A float without an exponent: spreadsheets read 1e-06 as they like."""
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else value
