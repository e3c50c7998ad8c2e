"""`apportion replay`: decide a span of the ledger again, and compare."""

import io
import math
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, get_args

import click
from rich.terminal_theme import TerminalTheme

from apportion.cli.client.completion import TARGETS
from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.moments import ARCHIVES, BEGIN, END, time_of
from apportion.cli.exits import NotFound
from apportion.cli.render.output import (
    Screen,
    ascii_only,
    between,
    console,
    plain,
    print_answer,
    warn,
)
from apportion.cli.render.rows import Rows
from apportion.cli.usage import FILE, hinting
from apportion.core.answers.replays import ReplayAnswer
from apportion.core.explain.health import moment
from apportion.core.explain.text.device_names import RULE
from apportion.core.explain.text.words import many
from apportion_schemas import Policy

HEIGHT = 4
SCALE_CELLS = 9
PERCENT = " %"
DIGITS = 2  # decimals of seconds, hours and percentages; the rest is noise
EIGHTHS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#"
CHARTS = (".html", ".svg")
# colours of a chart in a file: dark on white
PAPER = TerminalTheme(
    (255, 255, 255), (30, 30, 30),
    [(30, 30, 30), (176, 0, 32), (0, 110, 50), (140, 90, 0), (0, 60, 150), (110, 0, 110),
     (0, 100, 110), (90, 90, 90)],
)  # fmt: skip
# rich's own template would load a font from another host
SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px;
line-height: {line_height}px; white-space: pre }} {styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}"
height="{terminal_height}"/></clipPath>{lines}</defs><rect width="100%" height="100%" fill="#fff"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>"""


class Row(NamedTuple):
    """A row of the table: a field of `Measured`, and its meaning."""

    title: str
    field: str
    means: str
    unit: str = ""


ROWS = (
    Row("pods that came", "arrived", "wanted a place, or waited at the beginning"),
    Row("had a place", "placed", "of these, before the end"),
    Row("still wait at the end", "unplaced", "of these"),
    Row("were evicted", "evicted", "lost their places to make room for others"),
    Row("GPU hours waited", "gpu_hours_waited", "GPUs that pods waited for, times how long"),
    Row("wait, mean", "wait_mean_s", "from submission to a place, or to its end", " s"),
    Row("wait, median", "wait_median_s", "half of the pods waited no longer", " s"),
    Row("wait, of the slowest twentieth", "wait_p95_s", "they waited at least so long", " s"),
    Row("GPU hours there were", "gpu_hours", "GPUs of the fleet, times how long"),
    Row("GPU hours held", "gpu_hours_used", "of these; a share counts as its larger part"),
    Row("held", "used_percent", "GPU hours held, of those there were", PERCENT),
    Row("idle on GPUs held in part", "fragmented_percent", "of the fleet, as a mean", PERCENT),
    Row("GPUs at the end", "devices", "in the fleet"),
    Row("GPUs held at the peak", "devices_peak", "wholly or in part, at one time"),
)


OF_SHARES = (
    "A share counts as its larger part, of memory or of cores; `apportion report` counts memory."
)
AT_ONCE = (
    "Decisions take no time here: what differs is what they took, and pods that came so shortly "
    "before the end that nobody had decided on them."
)
OF_A_CHANGE = (
    "It is compared with what happened, where decisions took their time: the same command without "
    "the change replays as it was, and what differs from that is the change's doing."
)
_WIDTH = max(len(row.title) for row in ROWS)
_MEANINGS = "\n".join(f"  {row.title:{_WIDTH}}  {row.means}" for row in ROWS)
HELP = f"""Decide a time of the past anew: the same arrivals, another policy or another fleet.

A pod runs as long as it ran, from whenever it has a place. Nothing is written to the ledger.
Without changes it shows how the engine alone would have decided, at once. A MOMENT is 14:20,
-10m, 2026-11-20T03:00 or a revision.

\b
A row of the table says, of what happened and of what would have
{_MEANINGS}

A GPU is a whole device of any family. {OF_SHARES} Percentages differ by points.

Exit codes: 0 replayed; 1 an archive cannot be read; 2 wrong usage; 3 the ledger cannot be
reached; 4 it holds events of a newer build."""


@click.command(
    cls=hinting(options={"--without": "--lose"}),
    help=HELP,
    epilog="Examples:  apportion replay --from -6h --policy spread\n\n"
    "  apportion replay --from 08:00 --to 18:00 --lose h100-2 --chart day.html\n\n"
    "  apportion replay --archive 2026-11.jsonl --fleet smaller.csv --json",
)
@BEGIN
@END
@click.option("--policy", type=click.Choice(get_args(Policy)),
              help="How nodes and devices would have been preferred.")  # fmt: skip
@click.option("--fleet", type=FILE, metavar="FILE",
              help="Nodes in place of all there were, as for `up --fleet`.")  # fmt: skip
@click.option("--lose", multiple=True, metavar="NODE|DEVICE", shell_complete=TARGETS,
              help=f"As if it had not been there. {RULE}")  # fmt: skip
@click.option("--add", multiple=True, metavar="4x8xH100-80GB",
              help="As if there had been so many nodes more of so many devices.")  # fmt: skip
@ARCHIVES
@click.option("--chart", type=click.Path(dir_okay=False, writable=True, path_type=Path),
              metavar="FILE", help="Write table and chart as .html or .svg.")  # fmt: skip
@asks_ledger
def command(
    *, where: Where, as_json: bool, begin: str, end: str, policy: str | None,
    fleet: Path | None, lose: tuple[str, ...], add: tuple[str, ...], archives: tuple[Path, ...],
    chart: Path | None,
) -> None:  # fmt: skip
    """See `HELP`, which names the rows."""
    if chart is not None and chart.suffix.lower() not in CHARTS:
        raise click.UsageError(f"--chart is {chart.name!r}; name it {' or '.join(CHARTS)}")
    # slow: needs numpy and the solver
    from apportion.cli.client.replaying import Asked, replayed

    asked = Asked(
        begin=begin, end=end, policy=policy or "", fleet=fleet, lose=lose, add=add,
        archives=archives,
    )  # fmt: skip
    answer = replayed(where, asked)
    in_ascii = ascii_only(sys.stdout, os.environ)
    print_answer(
        answer, lambda: _show(console(), answer, begin, in_ascii=in_ascii), as_json=as_json
    )
    if chart is None:
        return
    paper = Screen(record=True, file=io.StringIO(), width=100, force_terminal=True)
    _show(paper, answer, begin)
    if chart.suffix.lower() == ".svg":
        text = paper.export_svg(title="apportion replay", theme=PAPER, code_format=SVG)
    else:
        text = paper.export_html(theme=PAPER, inline_styles=True)
    try:
        chart.write_text(text, "utf-8")
    except OSError as error:
        raise NotFound(f"--chart {chart}: cannot be written ({error.strerror})") from None
    warn(f"chart written to {chart}", style="")


def span_of(answer: ReplayAnswer, begin: str) -> str:
    """Return the span; `begin`, as asked, may be before the ledger's beginning."""
    span = answer.span
    early = not span.from_revision and time_of(begin, datetime.now(UTC)) is not None
    note = ", before the ledger began," if early else ""
    return f"{moment(span.from_time)}{note} to {moment(span.to_time)}"


def _show(out: Screen, answer: ReplayAnswer, begin: str, *, in_ascii: bool = False) -> None:
    said = ", ".join(answer.changes) or "as it was, every decision at once"
    out.print(plain(f"{span_of(answer, begin)}: {said}"), style="bold")
    made = Rows("", "HAPPENED", "REPLAYED", "DIFFERENCE",
                right=("HAPPENED", "REPLAYED", "DIFFERENCE"))  # fmt: skip
    for row in ROWS:
        before, after = (getattr(each, row.field) for each in (answer.happened, answer.replayed))
        shown = [
            f"{amount(value)}{row.unit if isinstance(value, float) else ''}"
            for value in (before, after)
        ]
        made.add_row(row.title, *shown, difference(before, after, row.unit))
    out.print(made)
    out.say(OF_SHARES, "dim", folds=True)
    courses = {"happened": answer.happened, "replayed": answer.replayed}
    for title, field in (("GPUs held", "used"), ("GPUs waited for", "waiting")):
        levels = {
            name: [getattr(each, field) for each in course.slices]
            for name, course in courses.items()
        }
        most: float = max((*levels["happened"], *levels["replayed"], 0.0))
        for name, values in levels.items():
            said = f"{title}, {name}{means(answer.span.seconds, len(values))}"
            out.print(plain(said), style=COLOURS[name])
            lines = bars(fitted(values, out.width - SCALE_CELLS), most, in_ascii=in_ascii)
            for number, line in enumerate(lines):
                scale = f"{most:,.4g}" if number == 0 else ("0" if number == HEIGHT - 1 else "")
                out.print(plain(f"{scale:>{SCALE_CELLS - 1}} {line}"), style=COLOURS[name])
    out.say(saved(answer))
    out.say(OF_A_CHANGE if answer.changes else AT_ONCE, "dim", folds=True)


def difference(before: float, after: float, unit: str) -> str:
    """Return the difference as shown; of percentages in points."""
    value = round(after, DIGITS) - round(before, DIGITS)
    if not round(value, DIGITS):
        return ""
    said = f"{'+' if value > 0 else ''}{amount(value)}"
    return said if isinstance(value, int) else f"{said}{' points' if unit == PERCENT else unit}"


def amount(value: float) -> str:
    """As in `1,234.5`, without needless digits."""
    return f"{round(value, DIGITS):,}".removesuffix(".0")


def saved(answer: ReplayAnswer) -> str:
    """Return what the replay would have saved or cost, in one sentence."""
    gpus = answer.gpus_saved
    before, after = (each.gpu_hours_waited for each in (answer.happened, answer.replayed))
    hours = round(before, DIGITS) - round(after, DIGITS)
    said = f"{many(abs(gpus), 'GPU')} {'fewer' if gpus > 0 else 'more'}" if gpus else "as many GPUs"
    said += " held at the peak, "
    less = f"{amount(abs(hours))} GPU hours {'less' if hours > 0 else 'more'}"
    said += f"{less if hours else 'as many GPU hours'} waited"
    evicted = answer.replayed.evicted - answer.happened.evicted
    if evicted:
        said += f", {many(abs(evicted), 'pod')} {'more' if evicted > 0 else 'fewer'} evicted"
    if answer.passed_over:
        said += f"; {left_out(answer)}"
    return said


def left_out(answer: ReplayAnswer) -> str:
    """Name the facts that did not apply in the replay, and that its figures lack."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in answer.passed_over_types.items())
    them = "it" if answer.passed_over == 1 else "them"
    return (
        f"{many(answer.passed_over, 'fact')} ({kinds}) found nothing to change in the other "
        f"course, whose figures are without {them}"
    )


def means(seconds: float, slices: int) -> str:
    """Return the length of a bar, whose height is a mean, by the parts in use."""
    return f", by parts, as means of {between(seconds / slices).lstrip('+')}" if slices else ""


COLOURS = {"happened": "cyan", "replayed": "magenta"}


def fitted(values: list[float], width: int) -> list[float]:
    """Reduce the values to `width`; of merged neighbours, keep the highest."""
    each = math.ceil(len(values) / max(width, 1)) or 1
    return [max(values[at : at + each]) for at in range(0, len(values), each)]


def bars(values: list[float], most: float, *, in_ascii: bool = False) -> list[str]:
    """Return the lines of a bar chart, `HEIGHT` high for `most`."""
    steps = ASCII if in_ascii else EIGHTHS
    parts = len(steps) - 1
    heights = [round(value / most * HEIGHT * parts) if most else 0 for value in values]
    return [
        "".join(steps[min(max(height - line * parts, 0), parts)] for height in heights)
        for line in reversed(range(HEIGHT))
    ]
