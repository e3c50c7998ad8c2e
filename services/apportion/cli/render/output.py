"""Print tables and colours on a terminal, plain text in a pipe, or JSON.

Invariants: with `--json`, standard output is only JSON. Control characters in foreign text are
escaped. A terminal that shows only ASCII, as with LANG=C, gets ASCII instead of an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import click
import msgspec
from rich.console import Console
from rich.text import Text

from apportion.cli.render.rows import Rows, clean
from apportion.core.explain.health import moment
from apportion.core.explain.text.printable import escaped, escaped_json

PIPE_WIDTH = 220  # columns without a terminal or COLUMNS, so that rows are not cut for `grep`

# takes the progress: an increment if the total is known, else (done, total)
Tell = Callable[..., None]
PHASE_STYLES = {
    "pending": "yellow",
    "rejected": "red",
    "placed": "cyan",
    "bound": "blue",
    "allocated": "green",
}


def console(*, stderr: bool = False) -> Screen:
    """Return a screen that prints to standard output or standard error."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS", "").isdecimal() else PIPE_WIDTH
    file: Any = Ascii(stream) if ascii_only(stream, os.environ) else None
    return Screen(stderr=stderr, file=file, width=width, highlight=False, soft_wrap=False)


class Screen(Console):
    """A rich console that escapes control characters and does not crop rows."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print like rich, but continue rows wider than the terminal on the next line."""
        super().print(
            *objects, **{"crop": not any(isinstance(each, Rows) for each in objects), **how}
        )

    def render_str(self, text: str, **how: Any) -> Text:
        """Render like rich, but escape control characters."""
        return super().render_str(escaped(text, keep="\n\t"), **how)

    def say(self, text: object, style: str = "", *, folds: bool = False) -> None:
        """Print text unchanged; with `folds`, a terminal wraps it between words."""
        self.print(plain(text), style=style, soft_wrap=not (folds and self.is_terminal))


def say(text: object, style: str = "", *, err: bool = False) -> None:
    """Print text as `Screen.say` does, to standard output, or with `err` to standard error."""
    console(stderr=err).say(text, style)


def print_answer(body: object, said: str | Callable[[], object], *, as_json: bool) -> None:
    """Print `body` if `as_json`, else the text `said`. If `said` is a function, call it instead."""
    if as_json:
        print_json(body)
    elif isinstance(said, str):
        say(said)
    else:
        said()


def print_json(body: object, *, line: bool = False) -> None:
    """Print `body` as JSON: indented, or on one line."""
    data = msgspec.json.encode(body)
    data = data if line else msgspec.json.format(data, indent=2)
    click.echo(escaped_json(data), nl=True)  # bytes: JSON is UTF-8, whatever the terminal can show


def show(rows: Rows, out: Console | None = None) -> None:
    """Print the rows, and on standard error the names of columns that did not fit."""
    (out or console()).print(rows)
    if rows.left_out and rows.header:
        said = f"hidden columns: {', '.join(rows.left_out)} (widen the terminal, or use --json)"
        warn(said, style="dim")


def phase(name: str) -> Text:
    """Return the name of a phase in the phase's colour."""
    return Text(name, style=PHASE_STYLES.get(name, ""))


def plain(value: Any) -> Text:
    """Return foreign text with markup and control characters escaped."""
    return Text(clean(value))


def doubtful(remarks: Iterable[str]) -> None:
    """Print each remark as a warning on standard error."""
    for remark in remarks:
        say(f"warning: {remark}", "yellow", err=True)


def warn(text: str, *, style: str = "yellow") -> None:
    """Print the sentence `text` on standard error, as a warning."""
    say(text, style, err=True)


def progress(last: int, what: str = "revision") -> Callable[[int], None]:
    """Return a function that shows progress as `revision 5 of 9`; without `of 9` if `last` is 0."""
    out = console(stderr=True)

    def tell(number: int) -> None:
        if out.is_terminal:
            share = f" of {last:,}" if last else ""
            out.print(f"{what} {number:,}{share}", end="\r")

    return tell


@contextmanager
def bar(title: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Tell]:
    """Show a progress bar if standard error is a terminal; yields its update function.

    With `quiet`, no bar is shown."""
    from rich import progress as bars

    out = console(stderr=True)
    counted = bars.TaskProgressColumn() if total is None else bars.MofNCompleteColumn()
    columns = (bars.TextColumn(title), bars.BarColumn(), counted, bars.TimeElapsedColumn())
    hidden = quiet or not out.is_terminal
    with bars.Progress(*columns, console=out, disable=hidden, transient=True) as shown:
        task = shown.add_task(title, total=total)
        yield (
            lambda done, of=None: (
                shown.advance(task, done)
                if of is None
                else shown.update(task, completed=done, total=of)
            )
        )


_STEPS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def clock(time: str, now: datetime | None = None) -> str:
    """Format an event's time as `2026-05-01T12:00:00Z`, without the date if it is today (UTC)."""
    today = (now or datetime.now(UTC)).date().isoformat()
    return moment(time).removeprefix(f"{today}T") if time else ""


def between(seconds: float) -> str:
    """Format a time difference, as `+2h05m`, `+13s` or `+0.2s`."""
    if round(seconds, 1) == 0:
        return "+0.0s"
    if seconds < 0:
        return f"-{between(-seconds)[1:]}"
    if seconds < 10:  # noqa: PLR2004 - below, tenths are shown
        return f"+{seconds:.1f}s"
    whole = int(seconds)
    for place, (size, unit) in enumerate(_STEPS):
        if whole >= size:
            smaller, name = _STEPS[place + 1] if place + 1 < len(_STEPS) else (1, "s")
            return f"+{whole // size}{unit}{whole % size // smaller:02}{name}"
    return f"+{whole}s"


# one cell for one cell, so that columns stay aligned
SHOWN: Final = str.maketrans(
    {
        "█": "#", "░": ".", "…": "~", "�": "?", "·": "-", "→": ">", "▲": "^", "▼": "v",
        **dict.fromkeys("─━═╌", "-"),
        **dict.fromkeys("│┃║", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
        **{chr(dots): "*" for dots in range(0x2800, 0x2900)},
    }
)  # fmt: skip


def ascii_only(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return True if the stream or the locale is not UTF-8."""
    if (stream.encoding or "utf-8").lower().replace("-", "") != "utf8":
        return True
    names = (environment.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((name for name in names if name), "")
    if locale in {"C", "POSIX"}:
        return True
    return "." in locale and "utf" not in locale.lower()


class Ascii:
    """A text stream that writes only ASCII to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text with all other characters replaced by ASCII."""
        return self._stream.write(text.translate(SHOWN).encode("ascii", "replace").decode("ascii"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
