"""Resolve options that name a point in time, once per verb.

Invariant: all pages of one answer are of one revision, even if the ledger advances."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from apportion.cli.client.gateway_client import Gateway
from apportion.cli.render.output import clock, say
from apportion.cli.usage import FILE
from apportion.core.answers.past import MomentAnswer
from apportion.core.explain.health import moment
from apportion.runtime.ledger.moments import MomentError, parse_moment, shown_time

FORMS = "14:20 (today, else yesterday), -10m, 2026-11-20T03:00 (all UTC), now or a revision"
# a revision as tables, sentences and the console show it
_REVISION = re.compile(r"#\d+|#?\d{1,3}(,\d{3})+")


class _Moment(click.ParamType[str]):
    """The type of options with a point in time. Accepts revisions as printed, such as `#1,200`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        _ = param, ctx
        text = str(value)
        return text.removeprefix("#").replace(",", "") if _REVISION.fullmatch(text) else text


MOMENT = _Moment()
BEGIN = click.option(
    "--from",
    "begin",
    default="",
    type=MOMENT,
    metavar="TIME",
    help="Start time.  [default: the beginning]",
)
END = click.option("--to", "end", default="", type=MOMENT, metavar="TIME",
                   help="End time.  [default: now]")  # fmt: skip
ARCHIVES = click.option(
    "--archive", "archives", multiple=True, type=FILE, metavar="FILE",
    help="Read this archive instead of the ledger; repeat for more, oldest first. Times such as "
    "-7d or 14:20 are relative to its last event.",
)  # fmt: skip
AT_LEAST = click.option(
    "--at-least", type=click.IntRange(min=0), metavar="REVISION",
    help="Wait until the gateway has read this revision.",
)  # fmt: skip
AT = click.option("--at", type=MOMENT, metavar="TIME", help=f"Show the state at a time: {FORMS}.")


def pinned(gateway: Gateway, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the query with `at` replaced by its revision, which is printed. Raises as `dated`."""
    return dated(gateway, query)[0]


def dated(gateway: Gateway, query: Mapping[str, Any]) -> tuple[dict[str, Any], datetime]:
    """Replace the time `at` by its revision. Return the query, and the time at which ages end."""
    asked = {name: value for name, value in query.items() if value is not None}
    now = datetime.now(UTC)
    if "at" not in asked:
        return asked, now
    text = str(asked["at"])
    meant = gateway.ask("moment", answer=MomentAnswer, query={"at": text})
    asked["at"] = meant.revision
    time = time_of(text, now)
    say(head(meant, time, now), "dim", err=True)
    return asked, time or datetime.fromisoformat(meant.time)


def head(meant: MomentAnswer, asked: datetime | None, now: datetime) -> str:
    """Return a heading such as `as of 14:20:00Z: revision 117, written at 13:57:45Z`."""
    if asked is None:
        return f"as of revision {meant.revision}, {moment(meant.time)}"
    written = clock(meant.time, now)
    return f"as of {when(asked, now)}: revision {meant.revision}, written at {written}"


def both(text: str, meant: MomentAnswer, now: datetime) -> str:
    """Describe a point in time by its revision, and by the time that the user typed, if any.

    An empty `text` means now. A time before the first event is described as such."""
    asked = time_of(text, now)
    said = f"{when(asked, now)}: " if asked else ""
    if asked and meant.revision == 1 and meant.time and asked < datetime.fromisoformat(meant.time):
        said = f"{when(asked, now)}, before the first event: "
    return f"{said}revision {meant.revision} ({moment(meant.time)})"


def when(asked: datetime, now: datetime) -> str:
    """Return the requested time as text, with its date unless that is today."""
    day = now.date() - asked.astimezone(UTC).date()
    return ("yesterday, " if day.days == 1 else "") + clock(shown_time(asked), now)


def time_of(text: str, now: datetime) -> datetime | None:
    """Return the time in `text`, or None if `text` is a revision or no valid time."""
    try:
        return parse_moment(text, now).time
    except MomentError:
        return None
