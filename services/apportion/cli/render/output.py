"""What a person sees: tables and colours on a terminal, plain text in a pipe, JSON on request.

Invariants: with `--json` standard output holds one JSON document (or one a line, where a verb says
so) and nothing else; everything said beside it goes to standard error. In neither is a character
that a terminal would obey and that we did not mean. Nothing that a verb prints ends it because the
terminal cannot show it: on one that shows ASCII alone, as with LANG=C, ASCII is drawn."""

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

PIPE_WIDTH = 220
"""Columns where there is no terminal and COLUMNS does not tell: rows are not cut for `grep`."""

Tell = Callable[..., None]
"""Takes how much more is done where the total is known, else how much is, and of how much."""
PHASE_STYLES = {
    "waiting": "yellow",
    "rejected": "red",
    "placed": "cyan",
    "bound": "blue",
    "allocated": "green",
}


def console(*, stderr: bool = False) -> Screen:
    """The person's terminal, or the pipe that stands in its place."""
    stream = sys.stderr if stderr else sys.stdout
    given = os.environ.get("COLUMNS", "")
    width = None if stream.isatty() or given.isdecimal() else PIPE_WIDTH
    file: Any = Ascii(stream) if ascii_only(stream, os.environ) else None
    return Screen(stderr=stderr, file=file, width=width, highlight=False, soft_wrap=False)


class Screen(Console):
    """One on which text of ours may have text from outside in it, and that cuts no rows."""

    def print(self, *objects: Any, **how: Any) -> None:
        """See rich; lines of rows that are wider than the terminal go on in its next line."""
        crop = not any(isinstance(each, Rows) for each in objects)
        super().print(*objects, **{"crop": crop, **how})

    def render_str(self, text: str, **how: Any) -> Text:
        """See rich."""
        return super().render_str(escaped(text, keep="\n\t"), **how)

    def say(self, text: object, style: str = "", *, folds: bool = False) -> None:
        """Text as it is, in a line of its own; one that `folds` ends lines of a terminal between
        words, and stays whole in a pipe, for `grep`."""
        self.print(plain(text), style=style, soft_wrap=not (folds and self.is_terminal))


def say(text: object, style: str = "", *, err: bool = False) -> None:
    """See Screen."""
    console(stderr=err).say(text, style)


def print_answer(body: object, said: str | Callable[[], object], *, as_json: bool) -> None:
    """`body` as JSON, or what is said of it to people."""
    if as_json:
        print_json(body)
    elif isinstance(said, str):
        say(said)
    else:
        said()


def print_json(body: object, *, line: bool = False) -> None:
    """`body` as JSON: indented, or on one line."""
    data = msgspec.json.encode(body)
    data = data if line else msgspec.json.format(data, indent=2)
    click.echo(escaped_json(data), nl=True)  # bytes: JSON is UTF-8, whatever the terminal can show


def table(
    *columns: str,
    right: Iterable[str] = (),
    wraps: Iterable[str] = (),
    drops: Iterable[str] = (),
    optional: Iterable[str] = (),
) -> Rows:
    """An empty table in the one style of all verbs; see Rows."""
    return Rows(*columns, right=right, wraps=wraps, drops=drops, optional=optional)


def show(rows: Rows, out: Console | None = None) -> None:
    """The rows on standard output, and on standard error which columns had no room."""
    (out or console()).print(rows)
    if rows.left_out and rows.header:
        said = f"no room for {', '.join(rows.left_out)}: a wider terminal shows more, --json all"
        warn(said, style="dim")


def phase(name: str) -> Text:
    """A phase in its colour."""
    return Text(name, style=PHASE_STYLES.get(name, ""))


def plain(value: Any) -> Text:
    """Text from outside: no markup in it is obeyed, and no control character reaches the screen."""
    return Text(clean(value))


def doubtful(remarks: Iterable[str]) -> None:
    """Say on standard error what is probably not meant so."""
    for remark in remarks:
        say(f"doubtful {remark}", "yellow", err=True)


def warn(text: str, *, style: str = "yellow") -> None:
    """Say a sentence on standard error, beside what was asked for."""
    say(text, style, err=True)


def progress(last: int, what: str = "revision") -> Callable[[int], None]:
    """Tell a number, of `last` where that is known (not 0), on one line of standard error."""
    out = console(stderr=True)

    def tell(number: int) -> None:
        if out.is_terminal:
            share = f" of {last:,}" if last else ""
            out.print(f"{what} {number:,}{share}", end="\r")

    return tell


@contextmanager
def bar(title: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Tell]:
    """A progress bar on standard error, which no pipe sees; yields what moves it on."""
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
    """The time of an event, as in `2026-05-01T12:00:00Z`; without the date where that is today's.

    Today is that of UTC, as all times are. Empty without a time."""
    today = (now or datetime.now(UTC)).date().isoformat()
    return moment(time).removeprefix(f"{today}T") if time else ""


def between(seconds: float) -> str:
    """The time between two facts, as in `+2h05m`, `+13s` or `+0.2s`."""
    if round(seconds, 1) == 0:
        return "+0.0s"
    if seconds < 0:
        return f"-{between(-seconds)[1:]}"
    if seconds < 10:  # noqa: PLR2004 - seconds that are told apart by a tenth
        return f"+{seconds:.1f}s"
    whole = int(seconds)
    for place, (size, unit) in enumerate(_STEPS):
        if whole >= size:
            smaller, name = _STEPS[place + 1] if place + 1 < len(_STEPS) else (1, "s")
            return f"+{whole // size}{unit}{whole % size // smaller:02}{name}"
    return f"+{whole}s"


SHOWN: Final = str.maketrans(
    {
        "█": "#", "░": ".", "…": "~", "�": "?", "·": "-", "→": ">", "▲": "^", "▼": "v",
        **dict.fromkeys("─━═╌", "-"),
        **dict.fromkeys("│┃║", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
        **{chr(dots): "*" for dots in range(0x2800, 0x2900)},
    }
)  # fmt: skip
"""One cell for one cell, so that columns stay where they are."""


def ascii_only(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether to draw in ASCII: the stream takes no UTF-8, or the locale names another encoding."""
    if (stream.encoding or "utf-8").lower().replace("-", "") != "utf8":
        return True
    names = (environment.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((name for name in names if name), "")
    if locale in {"C", "POSIX"}:
        return True
    return "." in locale and "utf" not in locale.lower()


class Ascii:
    """A stream in front of another one, to which only ASCII goes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what stands for the text."""
        shown = text.translate(SHOWN).encode("ascii", "replace").decode("ascii")
        return self._stream.write(shown)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
