"""A report that this process makes itself, from the ledger and its archives.

Invariant: what is asked is checked before the ledger is read; long reading shows how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from apportion.cli.client.connection import Where
from apportion.cli.client.ledger import open_ledger, run
from apportion.cli.exits import NotFound, Wrong
from apportion.cli.render.output import console
from apportion.cli.render.reports import idle_words
from apportion.core.reports.answers import IdleAnswer, ReportAnswer
from apportion.core.reports.meters import TooMuch
from apportion.core.reports.prices import PriceError
from apportion.runtime.jetstream.reports.accounting import TooEarly
from apportion.runtime.jetstream.reports.periods import PeriodError
from apportion.runtime.jetstream.reports.report import (
    Asked,
    answered,
    as_csv,
    as_focus,
    read,
    read_prices,
)
from apportion.runtime.ledger.archive import ArchiveError
from apportion.runtime.process.clock import SystemClock


def read_report(
    where: Where, report: str, form: str, given: Mapping[str, Any]
) -> ReportAnswer | IdleAnswer | str:
    """The answer, or the text of it where the form is csv or focus; `given` are the options.

    Raises:
        NotFound, Wrong, Unreachable, Outdated: as the verb ends.
    """
    prices: Path | None = given["prices"]
    if prices is None and (report == "cost" or form == "focus"):
        raise click.UsageError("give --prices FILE: what an hour of a card costs, by model")
    try:
        asked = Asked(
            report=report,
            by=given["by"],
            start=given["start"],
            end=given["end"],
            step=given["step"],
            prices=read_prices(prices) if prices else None,
            archives=given["archives"],
            account=given["account"],
        )
        return run(_made(where, asked, form))
    except PeriodError as error:
        raise Wrong(f"--{error}; {error.fix}") from None
    except (TooEarly, TooMuch, ArchiveError, OSError) as error:
        raise NotFound(str(error)) from None
    except PriceError as error:
        raise NotFound(f"--prices {prices}: {error}") from None


async def _made(where: Where, asked: Asked, form: str) -> ReportAnswer | IdleAnswer | str:
    async with open_ledger(where.reach()) as ledger:
        reading = await read(ledger, asked, SystemClock().now(), _progress())
    if form == "focus":
        return as_focus(asked, reading)
    answer = await answered(asked, reading)
    if form == "csv" and isinstance(answer, IdleAnswer) and not answer.found:
        click.echo(idle_words(answer), err=True)  # a table of no rows does not say why
    return as_csv(answer) if form == "csv" else answer


def _progress() -> Callable[[int, int], None]:
    """How far the ledger has been read, on a terminal."""
    out = console(stderr=True)

    def tell(revision: int, last: int) -> None:
        if out.is_terminal:
            end = "\n" if revision >= last else "\r"
            out.print(f"read {revision:,} of {last:,} events", end=end)

    return tell
