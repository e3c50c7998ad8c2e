"""`apportion report`: show allocated, used and lost GPU-hours, and their cost.

The gateway computes most reports. This verb computes CSV, and reports with prices or archives."""

import contextlib
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import click

from apportion.cli.client.connection import Where, asks_both, asks_ledger
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.moments import ARCHIVES, END, MOMENT
from apportion.cli.exits import NotFound, Unreachable, Wrong
from apportion.cli.render.output import console, print_answer, print_json
from apportion.cli.render.reports import (
    idle_words,
    show_capacity,
    show_idle,
    show_lost,
    show_report,
)
from apportion.cli.usage import FILE, VerbGroup
from apportion.core.reports.answers import LOST_CAUSES, IdleAnswer, LostAnswer, ReportAnswer
from apportion.core.reports.meters import TooMuch
from apportion.core.reports.prices import EXAMPLE, PriceError
from apportion.core.reports.rows import WrongBy, by_of
from apportion.runtime.service.options import with_options

FORMATS = ("table", "csv", "json", "focus")
ACCOUNT = "apportion"
Answer = ReportAnswer | IdleAnswer | LostAnswer
_ANSWERS: dict[str, type[Answer]] = {"idle": IdleAnswer, "lost": LostAnswer}
_CAUSES = "\n".join(f"  {each.name:<16} {each.meaning}" for each in LOST_CAUSES.values())
TIMEOUT_S = 135.0  # longer than a report may queue and compute there
_OPTIONS = (
    click.option("--by", default="namespace", show_default=True,
                 metavar="namespace|queue|user|node|model|label:KEY", help="Group rows by this."),
    click.option("--from", "start", default="", type=MOMENT, metavar="TIME",
                 help="Start time: 14:20, -7d, 2026-11-01T00:00 or a revision.  "
                 "[default: a day before the end]"),
    click.option("--to", "end", default="", type=MOMENT, metavar="TIME",
                 help="End time.  [default: now]"),
    click.option("--step", default="", metavar="LENGTH",
                 help="Also print rows for each step, such as 15m, 1h or 1d (units: s, m, h, d)."),
    click.option("--prices", type=FILE, envvar="APPORTION_PRICES",
                 help="File with the price of a GPU-hour by model; for an example, see "
                 "`apportion report cost --help`.  [APPORTION_PRICES]"),
    click.option("--archive", "archives", type=FILE, multiple=True,
                 help="Archive of events that were trimmed from the ledger; repeat for more, "
                 "oldest first."),
    click.option("--account", default=ACCOUNT, show_default=True, metavar="NAME",
                 help="BillingAccountId for --format focus. Any value but the default requires "
                 "--prices."),
    click.option("--format", "form", type=click.Choice(FORMATS), default="table",
                 show_default=True,
                 help="Output format; focus is CSV with the columns of FOCUS 1.0."),
)  # fmt: skip
_AT_LEAST = click.option(
    "--at-least", default="", metavar="LENGTH",
    help="Shortest idle period to report, such as 1m, 15m or 1d; if given, this verb computes the "
    "report from the ledger.  [default: 1h]",
)  # fmt: skip


@click.group(
    cls=VerbGroup, epilog="Example:  apportion report usage --by queue --from -7d --step 1d"
)
def command() -> None:
    """Report allocated, used, idle and lost GPU-hours, and their cost.

    A share counts as a fraction of a GPU, by its memory. Allocated, free, cordoned and unhealthy
    hours add up to the capacity. The gateway computes the report. With --prices or --archive, and
    for CSV without costs, this verb reads the ledger itself. `report capacity` always does.

    Exit codes: 0 done; 1 the period is not in the ledger, or prices or an archive are invalid; 2
    wrong usage; 3 ledger unreachable; 4 a newer build wrote to the ledger."""


def _make(report: str, *, where: Where, as_json: bool, form: str, **given: Any) -> None:
    if report in _ANSWERS and form == "focus":
        raise click.UsageError(f"`report {report}` does not support --format focus")
    if report == "idle" and given["step"]:
        raise click.UsageError("`report idle` does not support --step")
    try:
        given["by"] = by_of(given["by"])
    except WrongBy as error:
        raise click.UsageError(f"--{error}") from None
    form = "json" if as_json else form
    # The gateway has its own prices, but takes no account to bill.
    billed = form == "focus" and given["account"] == ACCOUNT
    of_gateway = form in {"table", "json"} or billed or (report == "cost" and form != "focus")
    at_least = given.setdefault("at_least", "")
    own = given["prices"] or given["archives"] or at_least or (where.nats and not where.gateway)
    gateway: Gateway | None = None
    if of_gateway and not own:
        with contextlib.suppress(Unreachable):
            if url := where.gateway_url():
                gateway = Gateway(url, timeout_s=TIMEOUT_S)
    options = {"by": str(given["by"]), "from": given["start"], "to": given["end"],
               "step": given["step"]}  # fmt: skip
    query = {name: value for name, value in options.items() if value}
    answer: Answer | str
    if gateway is None:
        answer = read_report(where, report, form, given)
    elif form in {"csv", "focus"}:
        answer = gateway.text("report", report, query=query | {"format": form})
    else:
        kind = _ANSWERS.get(report, ReportAnswer)
        answer = gateway.ask("report", report, answer=kind, query=query)
    if isinstance(answer, str):
        sys.stdout.write(answer)
    elif form == "json":
        print_json(answer)
    else:
        _show(answer, at_least)


def _show(answer: Answer, at_least: str) -> None:
    if isinstance(answer, IdleAnswer):
        show_idle(answer, at_least)
    elif isinstance(answer, LostAnswer):
        show_lost(answer)
    else:
        show_report(answer)


def read_report(where: Where, report: str, form: str, given: Mapping[str, Any]) -> Answer | str:
    """Compute the report in this process, from the ledger. Return text if `form` is csv or focus.

    Raises the errors of `exits`."""
    # Importing these takes a tenth of a second, which a report of the gateway's does not need.
    from apportion.cli.client.ledger import open_ledger, run
    from apportion.runtime.jetstream import reports
    from apportion.runtime.ledger.archive import ArchiveError
    from apportion.runtime.process.clock import SystemClock

    prices: Path | None = given["prices"]
    if prices is None and (report == "cost" or form == "focus"):
        raise click.UsageError(
            "--prices is missing; give a file with the price of a GPU-hour by model"
        )

    async def made(asked: reports.Asked) -> Answer | str:
        async with open_ledger(where.reach()) as ledger:
            reading = await reports.read(ledger, asked, SystemClock().now(), _tell)
        if form == "focus":
            return reports.as_focus(asked, reading)
        answer = await reports.answered(asked, reading)
        if form == "csv" and isinstance(answer, IdleAnswer) and not answer.found:
            click.echo(
                idle_words(answer, given["at_least"]), err=True
            )  # an empty table does not say why
        return reports.as_csv(answer) if form == "csv" else answer

    try:
        asked = reports.Asked(
            report=report, by=given["by"], start=given["start"], end=given["end"],
            step=given["step"], prices=reports.read_prices(prices) if prices else None,
            archives=given["archives"], account=given["account"], at_least=given["at_least"],
        )  # fmt: skip
        return run(made(asked))
    except reports.PeriodError as error:
        raise Wrong(f"--{error}; {error.fix}") from None
    except (reports.TooEarly, TooMuch, ArchiveError, OSError) as error:
        raise NotFound(str(error)) from None
    except PriceError as error:
        raise NotFound(f"--prices {prices}: {error}") from None


def _tell(revision: int, last: int) -> None:
    out = console(stderr=True)
    if out.is_terminal:
        end = "\n" if revision >= last else "\r"
        out.print(f"read {revision:,} of {last:,} events", end=end)


for _what, _example, _help, _short in (
    ("usage", "--by namespace --from -24h",
     "Report allocated GPU-hours and GiB-hours, and utilization.", None),
    ("cost", "--by label:team --prices prices.toml",
     "Report the cost of allocated hours, by the prices of the gateway or of a TOML file such as:"
     "\n\n\b\n" + indent(EXAMPLE, "  "), "Report the cost of allocated hours."),
    ("idle", "--by user --from -7d", "Report shares that were idle for an hour or more.", None),
    ("lost", "--by queue --from -7d",
     "Report why GPUs did no work. Each lost GPU-hour has exactly one cause, and the worked hours "
     "and the hours of all causes add up to the capacity.\n\n\b\n" + _CAUSES,
     "Report why GPUs did no work."),
):  # fmt: skip
    _least = (_AT_LEAST,) if _what == "idle" else ()
    _verb = with_options(partial(_make, _what), *_OPTIONS, *_least, asks_both)
    command.command(
        _what, help=_help, short_help=_short,
        epilog=f"Example:  apportion report {_what} {_example}",
    )(_verb)  # fmt: skip


@command.command(
    epilog="Example:  apportion report capacity --from -7d --prices prices.toml\n\n"
    "  apportion report capacity --node 8xH200-141GB --node 8xL40S-48GB --count 2"
)
@click.option("--from", "begin", default="-7d", type=MOMENT, metavar="TIME", show_default=True,
              help="Start time: 14:20, -7d, 2026-11-01T00:00 or a revision.")  # fmt: skip
@END
@click.option("--prices", type=FILE, envvar="APPORTION_PRICES",
              help="File with the price of a GPU-hour by model, as for `report cost`.  "
              "[APPORTION_PRICES]")  # fmt: skip
@click.option("--node", "nodes", multiple=True, metavar="8xH100-80GB",
              help="Try a node with these devices; repeat for more types.")  # fmt: skip
@click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="Number of additional nodes.")  # fmt: skip
@ARCHIVES
@asks_ledger
def capacity(
    *, where: Where, as_json: bool, begin: str, end: str, prices: Path | None,
    nodes: tuple[str, ...], count: int, archives: tuple[Path, ...],
) -> None:  # fmt: skip
    """Report which additional nodes would have saved waiting.

    Replays the period once without and once with additional nodes of each type, and prints how many
    GPU-hours pods would have waited less. With prices, the type that saves most per unit of money
    is first. Without --node, the types are those of the fleet, and a node of each other model that
    the price file names.

    Exit codes: 0 done; 1 the period is not in the ledger, or prices or an archive are invalid; 2
    wrong usage; 3 ledger unreachable; 4 a newer build wrote to the ledger."""
    # slow: needs numpy and the solver
    from apportion.cli.client.replaying import Asked, node_types_tried

    asked = Asked(begin=begin, end=end, archives=archives, prices=prices)
    answer = node_types_tried(where, asked, nodes, count)
    print_answer(answer, lambda: show_capacity(answer), as_json=as_json)
