"""`apportion report`: what was granted, used and worth.

The gateway is asked where there is one. What it does not have (somebody's own prices or archives)
or does not print (CSV) is made here from the ledger itself; see `report_ledger`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from textwrap import indent
from typing import Any

import click

from apportion.cli.client.connection import Command, Where, asks_both
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.moments import MOMENT, clock
from apportion.cli.exits import Unreachable
from apportion.cli.render.output import console, plain, print_json, show, table
from apportion.cli.render.rows import Rows
from apportion.core.explain.health import moment
from apportion.core.reports.answers import IdleAnswer, ReportAnswer, ReportRow
from apportion.core.reports.prices import EXAMPLE, lacking_words
from apportion.core.reports.rows import NOBODY, WrongBy, by_of

FORMATS = ("table", "csv", "json", "focus")
ACCOUNT = "apportion"
IDLE_LISTED = 40
DIGITS = (2, 4, 6)
"""Behind the point, as many as are needed; answers have no more than the last."""
DROPS = ("GiB HOURS USED", "WORK", "BROKEN", "CORDONED", "GiB HOURS GRANTED", "GiB HOURS", "FREE")
"""What a narrow terminal does not show, the first one first: whose, GPU hours and money stay."""
TIMEOUT_S = 135.0  # longer than it may wait for its turn there, and be made
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTIONS = (
    click.option("--by", default="namespace", show_default=True,
                 metavar="namespace|queue|user|node|label:KEY", help="What a row is."),
    click.option("--from", "start", default="", type=MOMENT, metavar="MOMENT",
                 help="Where it begins: 14:20, -7d, 2026-11-01T00:00, a revision.  "
                 "[default: a day before the end]"),
    click.option("--to", "end", default="", type=MOMENT, metavar="MOMENT",
                 help="Where it ends.  [default: now]"),
    click.option("--step", default="", metavar="LENGTH",
                 help="Rows for each such time, too: 15m, 1h, 1d, any number of s, m, h or d."),
    click.option("--prices", type=_FILE, envvar="APPORTION_PRICES",
                 help="What an hour of a card costs, by model; `apportion report cost "
                 "--help` shows such a file.  [APPORTION_PRICES]"),
    click.option("--archive", "archives", type=_FILE, multiple=True,
                 help="What the ledger has dropped, as `apportion ledger archive` wrote it; of "
                 "several, the oldest first."),
    click.option("--account", default=ACCOUNT, show_default=True, metavar="NAME",
                 help="BillingAccountId of --format focus: the cluster's name; another than the "
                 "default needs --prices."),
    click.option("--format", "form", type=click.Choice(FORMATS), default="table",
                 show_default=True, help="focus is CSV in the columns of FOCUS 1.0."),
)  # fmt: skip


@click.group(epilog="Example:  apportion report usage --by queue --from -7d --step 1d")
def command() -> None:
    """What was granted, what was used of it, and what it costs.

    A share counts as the part of its card's memory that it holds. Granted, free, cordoned and
    broken hours add up to the capacity that there was. The gateway makes it, where there is one;
    with --prices, --archive, and as CSV without money it is made here, from the ledger itself.

    Exit codes: 0 done; 1 the period is not in the ledger, or prices or an archive cannot be used;
    2 wrong usage; 3 the ledger cannot be reached; 4 a newer build wrote in it.
    """


def _report(verb: Command) -> Command:
    for option in reversed(_OPTIONS):
        verb = option(verb)
    return verb


@command.command(epilog="Example:  apportion report usage --by namespace --from -24h")
@_report
@asks_both
def usage(**given: Any) -> None:
    """Hours of cards and memory: granted, and used where the nodes tell it."""
    _make("usage", **given)


@command.command(
    help="What the granted hours cost, by the gateway's prices or those of a file (TOML), such "
    "as:\n\n\b\n" + indent(EXAMPLE, "  "),
    short_help="What the granted hours cost, by prices of cards.",
    epilog="Example:  apportion report cost --by label:team --prices prices.toml",
)
@_report
@asks_both
def cost(**given: Any) -> None:
    """See `help`, which shows a price file."""
    _make("cost", **given)


@command.command(epilog="Example:  apportion report idle --by user --from -7d")
@_report
@asks_both
def idle(**given: Any) -> None:
    """Shares that did nothing for an hour or more."""
    _make("idle", **given)


def _make(report: str, *, where: Where, as_json: bool, form: str, **given: Any) -> None:
    if report == "idle" and (form == "focus" or given["step"]):
        raise click.UsageError("idle has no --step and no --format focus")
    try:
        given["by"] = by_of(given["by"])
    except WrongBy as error:
        raise click.UsageError(f"--{error}") from None
    answer = _answer(where, report, "json" if as_json else form, given)
    if isinstance(answer, str):
        sys.stdout.write(answer)
    elif as_json or form == "json":
        print_json(answer)
    elif isinstance(answer, IdleAnswer):
        _show_idle(answer)
    else:
        _show(answer)


def _answer(
    where: Where, report: str, form: str, given: Mapping[str, Any]
) -> ReportAnswer | IdleAnswer | str:
    """The gateway's answer, or one that is made here; text where the form is csv or focus."""
    url = "" if given["prices"] or given["archives"] else _gateway(where)
    if url and (form in {"table", "json"} or _of_its_prices(report, form, given)):
        return _asked(url, report, form, given)
    # The ledger's client alone is most of what it takes to ask a gateway.
    from apportion.cli.client.report_ledger import read_report

    return read_report(where, report, form, given)


def _of_its_prices(report: str, form: str, given: Mapping[str, Any]) -> bool:
    """Whether only a gateway has the prices for it; whose account it bills, it cannot be told."""
    money = report == "cost" or form == "focus"
    return money and (form != "focus" or given["account"] == ACCOUNT)


def _gateway(where: Where) -> str:
    """Its URL, where there is one and the person did not tell of a ledger alone."""
    if where.nats and not where.gateway:
        return ""
    with contextlib.suppress(Unreachable):
        return where.gateway_url()
    return ""


def _asked(
    url: str, report: str, form: str, given: Mapping[str, Any]
) -> ReportAnswer | IdleAnswer | str:
    """What the gateway says of it."""
    query = {
        "by": str(given["by"]), "from": given["start"], "to": given["end"], "step": given["step"],
    }  # fmt: skip
    query = {name: value for name, value in query.items() if value}
    gateway = Gateway(url, timeout_s=TIMEOUT_S)
    if form in {"csv", "focus"}:
        return gateway.text("report", report, query=query | {"format": form})
    if report == "idle":
        return gateway.ask("report", report, answer=IdleAnswer, query=query)
    return gateway.ask("report", report, answer=ReportAnswer, query=query)


def _show(answer: ReportAnswer) -> None:
    out = console()
    out.print(f"{span_of(answer)}, by {answer.by}, as of revision {answer.revision}")
    money = bool(answer.currency)
    if answer.steps:
        show(rows_of(answer, answer.steps, money=money, steps=True))
        out.print()
    show(rows_of(answer, answer.rows, money=money))
    total = answer.total
    out.print(capacity_words(total))
    _say_unpriced(answer)
    if money:
        out.print(
            f"granted {_h(total.cost)} of {_h(total.capacity_cost)} {answer.currency} that the "
            "fleet costs"
        )


def capacity_words(total: ReportRow) -> str:
    """The fleet's hours and what they were, as a sum whose parts can be added up digit by digit."""
    parts = (total.granted_gpu_hours, total.free_gpu_hours, total.cordoned_gpu_hours,
             total.broken_gpu_hours)  # fmt: skip
    whole, granted, free, cordoned, broken = sum_figures(
        total.capacity_gpu_hours, [each or 0.0 for each in parts]
    )
    return (
        f"capacity {whole} GPU hours = {granted} granted + {free} free + {cordoned} cordoned + "
        f"{broken} broken; {_used(total)}"
    )


def sum_figures(whole: float, parts: Sequence[float]) -> list[str]:
    """A whole and its parts, rounded; the largest part takes what the others lost or won by it."""
    digits = digits_of((whole, *parts))
    whole, *rounded = (round(each, digits) for each in (whole, *parts))
    rounded[rounded.index(max(rounded))] += whole - sum(rounded)
    return figures((whole, *rounded), digits)


def span_of(answer: ReportAnswer | IdleAnswer) -> str:
    """The period; of a younger ledger from when it begins: before that there is nothing to tell."""
    begins = f"{moment(answer.begins)}, when the ledger begins," if answer.begins else ""
    return f"{begins or moment(answer.start)} to {moment(answer.end)}"


def _say_unpriced(answer: ReportAnswer | IdleAnswer) -> None:
    """Why a report for which there are prices has no money in it."""
    if answer.unpriced:
        console().print(plain(f"no money in it: {lacking_words(answer.unpriced)}"), style="dim")


def rows_of(
    answer: ReportAnswer, rows: tuple[ReportRow, ...], *, money: bool, steps: bool = False
) -> Rows:
    """Granted, used, and what else there is to say of a row; the parts of a card, which are added
    up, with as many digits. Of what was used there is no column where nobody has told it.
    """
    held = [row if row.key != NOBODY else None for row in rows]
    granted = [row.granted_gpu_hours if row else None for row in held]
    parts = {
        "FREE": [row.free_gpu_hours for row in rows],
        "CORDONED": [row.cordoned_gpu_hours for row in rows],
        "BROKEN": [row.broken_gpu_hours for row in rows],
    }
    parts = parts if steps or answer.by == "node" else {}
    digits = digits_of(chain(granted, *parts.values()))
    used = {
        "WORK": [_percent(row) if row else "" for row in held],
        "GiB HOURS USED": figures(_gib_used(row) if row else None for row in held),
    }
    columns = {"FROM": [clock(row.start) for row in rows]} if steps else {}
    columns[answer.by.upper()] = [row.key if row else "(nobody)" for row in held]
    columns["GPU HOURS GRANTED"] = figures(granted, digits)
    gib = figures(row.granted_gib_hours if row else None for row in held)
    columns["GiB HOURS GRANTED"] = gib
    columns |= {name: cells for name, cells in used.items() if any(cells)}
    if money:
        columns[answer.currency] = figures(row.cost if row else None for row in held)
    columns |= {name: figures(amounts, digits) for name, amounts in parts.items()}
    made = table(*columns, right=list(columns)[1 + steps :], drops=DROPS)
    for line in zip(*columns.values(), strict=True):
        made.add_row(*map(plain, line))
    return made


def idle_words(answer: IdleAnswer) -> str:
    """How often shares did nothing, or that nobody has told of any."""
    period = span_of(answer)
    if not answer.reported:
        return f"{period}: Nodes tell once an hour what was used; none has yet"
    return (
        f"{period}: {answer.found:,} times a share did nothing for an hour or more; "
        f"{_h(answer.total.gpu_hours)} GPU hours"
    )


def _show_idle(answer: IdleAnswer) -> None:
    out = console()
    money = bool(answer.currency)
    by = answer.by.upper()
    out.print(idle_words(answer))
    if not answer.found:
        return
    cost = [answer.currency] if money else []
    rows = table(by, "TIMES", "GPU HOURS", "GiB HOURS", *cost,
                 right=("TIMES", "GPU HOURS", "GiB HOURS", *cost), drops=DROPS)  # fmt: skip
    amounts = [
        figures(row.gpu_hours for row in answer.rows),
        figures(row.gib_hours for row in answer.rows),
        *([figures(row.cost for row in answer.rows)] if money else []),
    ]
    for row, *cells in zip(answer.rows, *amounts, strict=True):
        rows.add_row(plain(row.key), f"{row.shares:,}", *cells)
    show(rows)
    out.print()
    shares = table("POD", "CONTAINER", "DEVICE", "FROM", "HOURS", "GPU HOURS", "NOW",
                   right=("HOURS", "GPU HOURS"), drops=("CONTAINER", "HOURS"))  # fmt: skip
    listed = answer.shares[:IDLE_LISTED]
    hours = figures(each.hours for each in listed), figures(each.gpu_hours for each in listed)
    for each, long, cards in zip(listed, *hours, strict=True):
        shares.add_row(
            plain(f"{each.namespace}/{each.pod}"), plain(each.container), plain(each.device[:12]),
            clock(each.start), long, cards, "idle" if each.idle_now else "over",
        )  # fmt: skip
    show(shares)
    _say_unpriced(answer)
    if answer.found > IDLE_LISTED:
        out.print(f"and {answer.found - IDLE_LISTED:,} more; --format csv has them")


def _percent(row: ReportRow) -> str:
    """How much of the granted hours of which work is told was work; nothing where none is told."""
    return (
        f"{100 * row.used_gpu_hours / row.reported_gpu_hours:.0f} %"
        if row.reported_gpu_hours
        else ""
    )


def _gib_used(row: ReportRow) -> float | None:
    """None where nobody has measured what was used; who measures work measures memory too."""
    return row.used_gib_hours if row.used_gib_hours or row.reported_gpu_hours else None


def _used(row: ReportRow) -> str:
    if not row.reported_gpu_hours:
        return "no node tells of work"
    share = 100 * row.reported_gpu_hours / row.granted_gpu_hours if row.granted_gpu_hours else 0
    return f"{_percent(row)} of it was work, where nodes tell it ({share:.0f} % of the granted)"


def figures(amounts: Iterable[float | None], digits: int | None = None) -> list[str]:
    """A column: all with so many digits, else as many as the least of them needs."""
    column = list(amounts)
    digits = digits_of(column) if digits is None else digits
    return ["" if each is None else f"{each:,.{digits}f}" for each in column]


def digits_of(amounts: Iterable[float | None]) -> int:
    """As many as the least of them needs to be told from nothing."""
    least = min((each for each in amounts if each), default=1.0)
    return next((each for each in DIGITS if least >= 10.0**-each), DIGITS[-1])


def _h(amount: float | None) -> str:
    """A figure in a sentence."""
    [said] = figures((amount,))
    return said
