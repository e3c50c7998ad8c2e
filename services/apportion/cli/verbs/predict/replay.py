"""`apportion replay`: decide a time span of the ledger again, and compare the results."""

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
from apportion.cli.exits import EXCEEDED, NotFound
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
from apportion.core.answers.replays import Gate, ReplayAnswer, TeamFigures
from apportion.core.explain.health import moment
from apportion.core.explain.text.names import RULE
from apportion.core.explain.text.words import many
from apportion.core.ledger.state import DEFAULT_QUEUE
from apportion.lab.gates import EXAMPLE, MEASURES
from apportion_schemas import Policy

HEIGHT = 4
SCALE_CELLS = 9
PERCENT = "%"
DIGITS = 2  # decimals of seconds, hours and percentages; the rest is noise
EIGHTHS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#"
CHARTS = (".html", ".svg")
TEAMS_MAX = 20  # in a table
TEAM_FIGURES = ("PODS", "PENDING", "WAIT, MEAN", "WAIT, 95%", "GPU-H PENDING", "GPUS", "ENTITLED",
                "EVICTED", "GPU-H EVICTED")  # fmt: skip
VERDICTS = {"kept": "kept", "exceeded": "exceeded", "no-pods": "no pods"}
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
    """A row of the table of results. `field` names the field of `Measured` that the row shows."""

    title: str
    field: str
    means: str
    unit: str = ""


ROWS = (
    Row("pods", "arrived", "submitted in the period, or pending at its start"),
    Row("placed", "placed", "pods placed by the end of the replay"),
    Row("pending at the end", "unplaced", "pods not placed"),
    Row("evicted", "evicted", "pods evicted to make room for others"),
    Row("GPU-hours pending", "gpu_hours_waited", "GPUs requested by pending pods x time"),
    Row("wait, mean", "wait_mean_s", "from submission to placement, or to the pod's end", " s"),
    Row("wait, median", "wait_median_s", "half of the pods waited at most this long", " s"),
    Row("wait, 95th percentile", "wait_p95_s", "95% of the pods waited at most this long", " s"),
    Row("GPU-hours of capacity", "gpu_hours", "GPUs of the fleet x time"),
    Row(
        "GPU-hours allocated",
        "gpu_hours_used",
        "a share counts as its larger part: memory or cores",
    ),
    Row("allocated", "used_percent", "share of the capacity", PERCENT),
    Row("fragmented", "fragmented_percent", "unallocated parts of partly allocated GPUs", PERCENT),
    Row("GPUs at the end", "devices", "size of the fleet"),
    Row("GPUs in use, peak", "devices_peak", "wholly or partly allocated"),
)


OF_SHARES = (
    "A share counts as the larger of its memory and cores; `apportion report` counts memory only."
)
AT_ONCE = (
    "A replay decides instantly. It differs from the actual period by the time that decisions "
    "took, and by pods that were still undecided at the end."
)
OF_A_CHANGE = (
    "A replay decides instantly, unlike the actual period. To isolate this change, compare with a "
    "replay that changes nothing."
)
_WIDTH = max(len(row.title) for row in ROWS)
_MEANINGS = "\n".join(f"  {row.title:{_WIDTH}}  {row.means}" for row in ROWS)
_MEASURES = "\n".join(f"  {name:{_WIDTH}}  {each.means}" for name, each in MEASURES.items())
HELP = f"""Replay a past period with other queues, quotas, policy or fleet, and compare the outcome.

The same pods arrive at the same times, and run as long as they did. Nothing is written to the
ledger. Without any change, the replay shows what a scheduler without delays would have done. A TIME
is 14:20, -10m, 2026-11-20T03:00 or a revision.

The manifests of -f apply as if you had applied them at the start of the period. All other queues,
quotas and topologies stay as recorded.

\b
Rows of the table:
{_MEANINGS}

\b
Measures of a gate, as in --gate '{EXAMPLE}':
{_MEASURES}

A bound is a length of time such as 90s, 30m, 2h or 1d, or else a number. A gate names a queue or a
namespace. A queue includes the queues below it.

A GPU is a whole device of any family. {OF_SHARES}

Exit codes: 0 replayed, and all gates are kept; 1 invalid archive, manifest or configuration; 2
wrong usage, or a gate names an unknown queue or namespace; 3 ledger unreachable; 4 the ledger has
events of a newer build; 7 a gate is exceeded, or its queue or namespace has no pods."""


@click.command(
    cls=hinting(renamed={"--without": "--lose"}),
    help=HELP,
    epilog="Examples:  apportion replay --from -6h --policy spread\n\n"
    "  apportion replay --from 08:00 --to 18:00 --lose h100-2 --chart day.html\n\n"
    "  apportion replay --archive 2026-11.jsonl --fleet smaller.csv --json\n\n"
    f"  apportion replay --from -7d -f queues.yaml --gate '{EXAMPLE}'",
)
@BEGIN
@END
@click.option("--policy", type=click.Choice(get_args(Policy)),
              help="Use this placement policy.")  # fmt: skip
@click.option("-f", "--file", "files", multiple=True, metavar="FILE|DIR|-",
              help="Use the queues, ResourceQuotas, HyperNodes and Topologies of these "
              "manifests.")  # fmt: skip
@click.option("--config", default="", metavar="FILE",
              help="Use this configuration, as for `apportion config apply`.")  # fmt: skip
@click.option("--gate", "gates", multiple=True, metavar="TEAM:MEASURE<=BOUND",
              help="Fail if a queue or namespace exceeds this bound; repeat for more "
              "gates.")  # fmt: skip
@click.option("--fleet", type=FILE, metavar="FILE",
              help="Replace the fleet, with a file as for `apportion up --fleet`.")  # fmt: skip
@click.option("--lose", multiple=True, metavar="NODE|DEVICE", shell_complete=TARGETS,
              help=f"Remove this node or device from the fleet. {RULE}")  # fmt: skip
@click.option("--add", multiple=True, metavar="4x8xH100-80GB",
              help="Add nodes: 4 nodes with 8 devices each.")  # fmt: skip
@click.option("--prices", type=FILE, metavar="FILE",
              help="Show the cost of each queue and namespace, with a price file as for "
              "`report cost`.")  # fmt: skip
@ARCHIVES
@click.option("--chart", type=click.Path(dir_okay=False, writable=True, path_type=Path),
              metavar="FILE",
              help="Write the table and chart to an .html or .svg file.")  # fmt: skip
@asks_ledger
def command(
    *, where: Where, as_json: bool, begin: str, end: str, policy: str | None,
    files: tuple[str, ...], config: str, gates: tuple[str, ...], fleet: Path | None,
    lose: tuple[str, ...], add: tuple[str, ...], archives: tuple[Path, ...], chart: Path | None,
    prices: Path | None,
) -> None:  # fmt: skip
    """Replay a past period. The help text is `HELP`, which lists the rows of the table."""
    if chart is not None and chart.suffix.lower() not in CHARTS:
        raise click.UsageError(f"--chart: {chart.name!r} must end with {' or '.join(CHARTS)}")
    # slow: needs numpy and the solver
    from apportion.cli.client.replaying import Asked, replayed

    asked = Asked(
        begin=begin, end=end, policy=policy or "", fleet=fleet, lose=lose, add=add,
        archives=archives, files=files, config=config, gates=gates,
        prices=prices,
    )  # fmt: skip
    answer = replayed(where, asked)
    in_ascii = ascii_only(sys.stdout, os.environ)
    print_answer(
        answer, lambda: _show(console(), answer, begin, in_ascii=in_ascii), as_json=as_json
    )
    if chart is not None:
        _write_chart(chart, answer, begin)
    for gate in answer.gates:
        if gate.verdict != "kept":
            warn(gate_words(gate), style="red")
    if any(gate.verdict != "kept" for gate in answer.gates):
        sys.exit(EXCEEDED)


def _write_chart(chart: Path, answer: ReplayAnswer, begin: str) -> None:
    paper = Screen(record=True, file=io.StringIO(), width=100, force_terminal=True)
    _show(paper, answer, begin)
    if chart.suffix.lower() == ".svg":
        text = paper.export_svg(title="apportion replay", theme=PAPER, code_format=SVG)
    else:
        text = paper.export_html(theme=PAPER, inline_styles=True)
    try:
        chart.write_text(text, "utf-8")
    except OSError as error:
        raise NotFound(f"--chart: cannot write {chart}: {error.strerror}") from None
    warn(f"chart written to {chart}", style="")


def span_of(answer: ReplayAnswer, begin: str) -> str:
    """Return the replayed span as text, with a note if it begins before the first event."""
    span = answer.span
    early = not span.from_revision and time_of(begin, datetime.now(UTC)) is not None
    note = " (before the first event)" if early else ""
    return f"{moment(span.from_time)}{note} to {moment(span.to_time)}"


def _show(out: Screen, answer: ReplayAnswer, begin: str, *, in_ascii: bool = False) -> None:
    said = ", ".join(answer.changes) or "no changes, instant decisions"
    out.print(plain(f"{span_of(answer, begin)}: {said}"), style="bold")
    made = Rows("", "ACTUAL", "REPLAY", "DIFFERENCE",
                right=("ACTUAL", "REPLAY", "DIFFERENCE"))  # fmt: skip
    for row in ROWS:
        before, after = (getattr(each, row.field) for each in (answer.happened, answer.replayed))
        shown = [
            f"{amount(value)}{row.unit if isinstance(value, float) else ''}"
            for value in (before, after)
        ]
        made.add_row(row.title, *shown, difference(before, after, row.unit))
    out.print(made)
    out.say(OF_SHARES, "dim", folds=True)
    _show_teams(out, answer)
    courses = {"actual": answer.happened, "replay": answer.replayed}
    for title, field in (("GPUs in use", "used"), ("GPUs requested by pending pods", "waiting")):
        levels = {
            name: [getattr(each, field) for each in course.slices]
            for name, course in courses.items()
        }
        most: float = max((*levels["actual"], *levels["replay"], 0.0))
        for name, values in levels.items():
            said = f"{title}, {name}{means(answer.span.seconds, len(values))}"
            out.print(plain(said), style=COLOURS[name])
            lines = bars(fitted(values, out.width - SCALE_CELLS), most, in_ascii=in_ascii)
            for number, line in enumerate(lines):
                scale = f"{most:,.4g}" if number == 0 else ("0" if number == HEIGHT - 1 else "")
                out.print(plain(f"{scale:>{SCALE_CELLS - 1}} {line}"), style=COLOURS[name])
    out.say(saved(answer))
    out.say(OF_A_CHANGE if answer.changes else AT_ONCE, "dim", folds=True)


def _show_teams(out: Screen, answer: ReplayAnswer) -> None:
    for kind in ("queue", "namespace"):
        teams = [
            team for team in answer.teams
            if team.kind == kind
            and any(each.arrived or each.gpus or each.evicted
                    for each in (team.happened, team.replayed))
        ]  # fmt: skip
        alone = len(teams) <= 1 and all(team.name == DEFAULT_QUEUE for team in teams)
        if not teams or (alone and not answer.currency):  # the main table has no costs
            continue
        longest = sorted(
            teams, key=lambda team: -max(team.happened.gpu_hours_waited,
                                         team.replayed.gpu_hours_waited)
        )[:TEAMS_MAX]  # fmt: skip
        cost = (f"COST, {answer.currency}",) if answer.currency else ()
        columns = (*TEAM_FIGURES, *cost)
        made = Rows(kind.upper(), "", *columns, right=columns, drops=TEAM_FIGURES[-1:],
                    optional=TEAM_FIGURES[-3:])  # fmt: skip
        for team in teams:
            if team in longest:
                for name, course, each in (
                    (team.name, "actual", team.happened), ("", "replay", team.replayed),
                ):  # fmt: skip
                    money = (amount(each.cost or 0.0),) if cost else ()
                    made.add_row(name, course, *_team_cells(each), *money)
        out.print(made)
        if len(teams) > TEAMS_MAX:
            rest = many(len(teams) - TEAMS_MAX, kind)
            out.say(f"{rest} with shorter waits: see --json", "dim")
    if answer.gates:
        made = Rows("GATE", "VERDICT", "ACTUAL", "REPLAY", right=("ACTUAL", "REPLAY"))
        for gate in answer.gates:
            values = (in_unit(gate.measure, each) for each in (gate.happened, gate.measured))
            made.add_row(gate.text, VERDICTS[gate.verdict], *values)
        out.print(made)


def _team_cells(figures: TeamFigures) -> tuple[str, ...]:
    entitled = figures.gpus_entitled
    return (
        f"{figures.arrived:,}",
        f"{figures.unplaced:,}",
        between(figures.wait_mean_s).lstrip("+"),
        between(figures.wait_p95_s).lstrip("+"),
        amount(figures.gpu_hours_waited),
        amount(figures.gpus),
        "-" if entitled is None else amount(entitled),
        f"{figures.evicted:,}" if figures.evicted else "-",
        amount(figures.gpu_hours_evicted) if figures.evicted else "-",
    )


def in_unit(measure: str, value: float) -> str:
    """Format a figure of a gate with its unit, as in `45m00s` or `3 pods`."""
    unit = MEASURES[measure].unit
    if unit == "s":
        return between(value).lstrip("+")
    return f"{amount(value)} {unit}{'' if value == 1 else 's'}"


def gate_words(gate: Gate) -> str:
    """Return a sentence about a gate that the replay exceeds, or that has no pods to measure."""
    if gate.verdict == "no-pods":
        said = f"{gate.kind} {gate.name} has no pods in this period"
        return f"gate {gate.text} measures nothing: {said}; choose another period or team"
    means = MEASURES[gate.measure].means
    measured, bound = (in_unit(gate.measure, each) for each in (gate.measured, gate.bound))
    said = f"{gate.kind} {gate.name} has {measured} instead of at most {bound} ({means})"
    return f"gate {gate.text} is exceeded: {said}"


def difference(before: float, after: float, unit: str) -> str:
    """Format the difference with its unit. Differences of percentages are in percentage points."""
    value = round(after, DIGITS) - round(before, DIGITS)
    if not round(value, DIGITS):
        return ""
    said = f"{'+' if value > 0 else ''}{amount(value)}"
    return said if isinstance(value, int) else f"{said}{' points' if unit == PERCENT else unit}"


def amount(value: float) -> str:
    """Format a number as in `1,234.5`, without needless digits."""
    return f"{round(value, DIGITS):,}".removesuffix(".0")


def saved(answer: ReplayAnswer) -> str:
    """Return in one sentence how GPUs, waiting and evictions differ in the replay."""
    gpus = answer.gpus_saved
    before, after = (each.gpu_hours_waited for each in (answer.happened, answer.replayed))
    hours = round(before, DIGITS) - round(after, DIGITS)
    said = f"{many(abs(gpus), 'GPU')} {'fewer' if gpus > 0 else 'more'}" if gpus else "same number"
    said = f"peak GPUs in use: {said}; GPU-hours pending: "
    said += f"{amount(abs(hours))} {'fewer' if hours > 0 else 'more'}" if hours else "same"
    evicted = answer.replayed.evicted - answer.happened.evicted
    if evicted:
        said += f"; evicted pods: {abs(evicted):,} {'more' if evicted > 0 else 'fewer'}"
    if answer.passed_over:
        said += f"; {left_out(answer)}"
    return said


def left_out(answer: ReplayAnswer) -> str:
    """Return a sentence that counts, by type, the events that the replay could not apply."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in answer.passed_over_types.items())
    return f"{many(answer.passed_over, 'event')} ({kinds}) did not apply to the replay"


def means(seconds: float, slices: int) -> str:
    """Return a note that each bar is an average, and over how much time; "" without slices."""
    return f" ({between(seconds / slices).lstrip('+')} averages)" if slices else ""


COLOURS = {"actual": "cyan", "replay": "magenta"}


def fitted(values: list[float], width: int) -> list[float]:
    """Reduce the values to `width` columns. A column has the highest of its values."""
    each = math.ceil(len(values) / max(width, 1)) or 1
    return [max(values[at : at + each]) for at in range(0, len(values), each)]


def bars(values: list[float], most: float, *, in_ascii: bool = False) -> list[str]:
    """Return the lines of a bar chart; a bar of the value `most` is `HEIGHT` lines high."""
    steps = ASCII if in_ascii else EIGHTHS
    parts = len(steps) - 1
    heights = [round(value / most * HEIGHT * parts) if most else 0 for value in values]
    return [
        "".join(steps[min(max(height - line * parts, 0), parts)] for height in heights)
        for line in reversed(range(HEIGHT))
    ]
