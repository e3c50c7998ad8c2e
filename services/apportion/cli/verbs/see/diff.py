"""`apportion diff`: show what changed between two revisions, by which event and user."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from apportion.cli.client.connection import Where, asks_gateway
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.moments import FORMS, MOMENT, both
from apportion.cli.render.output import clock, console, print_json, show
from apportion.cli.render.rows import Rows
from apportion.cli.usage import Verb
from apportion.core.answers.past import DiffAnswer, DiffRow, Side
from apportion.core.explain.text.event_text import shares_words
from apportion.core.explain.text.vocabulary import PENDING
from apportion.core.explain.text.words import device_words

# short lists first: a busy span has hundreds of placements
LISTS = ("nodes", "devices", "configuration", "policy", "limits", "waiting", "placements")
TITLES = {"waiting": PENDING}
SIDED = ("nodes", "devices", "limits")  # lists whose items can differ in several fields


# why a node that joined first is missing in a difference from the beginning
FROM_THE_FIRST = (
    "Revision 1 is the first event of the ledger; what it added counts as already present."
)


@click.command(cls=Verb, epilog="Example:  apportion diff --from -2h --to -1h")
@click.option("--from", "begin", required=True, type=MOMENT, metavar="TIME",
              help=f"Start time: {FORMS}.")  # fmt: skip
@click.option("--to", "end", type=MOMENT, metavar="TIME", help="End time.  [default: now]")
@click.option("--limit", type=click.IntRange(1, 1_000), default=200, show_default=True,
              metavar="N", help="Maximum number of rows per table.")  # fmt: skip
@asks_gateway
def command(*, where: Where, as_json: bool, begin: str, end: str | None, limit: int) -> None:
    """Show what changed between two times.

    Compares placements, pending pods, nodes, devices, limits, configuration and policy. Each row is
    one changed object, with the latest event that changed it. BY is the user who made the change,
    or the reason for an eviction. A pod that was resubmitted under its name, for example by
    `drain`, is one row.

    Exit codes: 0 shown, even if nothing changed; 1 no data for that time; 2 invalid time; 3 gateway
    unreachable."""
    query = {"from": begin, "limit": limit, **({"to": end} if end else {})}
    diff = Gateway(where.gateway_url()).ask("diff", answer=DiffAnswer, query=query)
    if as_json:
        print_json(diff)
        return
    out = console()
    span = " to ".join(
        both(text, meant, datetime.now(UTC))
        for text, meant in ((begin, diff.begin), (end or "", diff.end))
    )
    out.say(span, "dim")
    if diff.begin.revision == 1:
        out.say(FROM_THE_FIRST, "dim")
    for name in LISTS:
        rows: Sequence[DiffRow] = getattr(diff, name)
        if rows:
            show(rows_of(name, rows), out)
            if more := diff.more.get(name, 0):
                out.print(f"and {more:,} more; raise --limit to see them", style="dim")
    if not any(getattr(diff, name) for name in LISTS):
        out.print("no changes")


def rows_of(name: str, rows: Sequence[DiffRow]) -> Rows:
    """Return the table of one list of differences."""
    if name == "placements":
        made = Rows("PLACEMENTS", "BEFORE", "AFTER", "SHARES BEFORE", "SHARES AFTER", "REVISION",
                    "TIME", "BY", right=("REVISION",),
                    wraps=("BEFORE", "AFTER", "SHARES BEFORE", "SHARES AFTER"),
                    drops=("BY", "TIME", "SHARES BEFORE", "SHARES AFTER"),
                    optional=("SHARES BEFORE", "SHARES AFTER"))  # fmt: skip
        for row in rows:
            if row.was.node == row.now.node:  # it stays; show its shares
                sides = [row.before or "-", row.after or "-", "", ""]
            else:
                sides = [row.was.node or "-", row.now.node or "-", _held(row.was), _held(row.now)]
            made.add_row(row.name, *sides, *_event(row))
        return made
    made = Rows(TITLES.get(name, name).upper(), "FIELD", "BEFORE", "AFTER", "REVISION", "TIME",
                "BY", right=("REVISION",), wraps=("BEFORE", "AFTER"), drops=("TIME", "BY"),
                optional=("FIELD",))  # fmt: skip
    named = device_words if name == "devices" else str
    for row in rows:
        what = row.what if name in SIDED else ""
        made.add_row(named(row.name), what, row.before or "-", row.after or "-", *_event(row))
    return made


def _held(side: Side) -> str:
    return shares_words(side.shares, side.families) if side.node else "-"


def _event(row: DiffRow) -> tuple[str, str, str]:
    return str(row.revision or ""), clock(row.time), row.cause or row.by
