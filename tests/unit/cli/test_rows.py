"""Rows as a table and as plain lines: the same columns, and nothing from outside is obeyed."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from apportion.cli.rows import LONG_ROWS, Rows


def printed(rows: Rows, *, colours: bool = False, width: int = 250) -> list[str]:
    """The lines that a terminal of that width gets."""
    out = Console(
        file=io.StringIO(),
        width=width,
        color_system="standard" if colours else None,
        force_terminal=colours,
    )
    out.print(rows, soft_wrap=rows.long)
    assert isinstance(out.file, io.StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def rows(count: int) -> Rows:
    """Rows of every kind of cell."""
    made = Rows("NAME", "SIZE", "STATE", right=("SIZE",), wraps=("STATE",))
    for number in range(count):
        state = Text.assemble(("failed: ", "red"), "fan")
        made.add_row(f"pod-{number:04}", (("1", "red"), ("0" * (number % 3), "")), state)
    return made


def test_many_rows_look_as_few() -> None:
    """Plain lines have the columns of the table."""
    few, many = printed(rows(LONG_ROWS - 1)), printed(rows(LONG_ROWS))
    assert many[: len(few)] == few
    assert len(many) == LONG_ROWS + 1


def test_lines_have_their_colours() -> None:
    """Each piece of a cell in its own, and a whole row in that of the row."""
    made = rows(LONG_ROWS)
    made.add_row("last", "5", "ok", style="green")
    lines = printed(made, colours=True)
    assert "\x1b[31mfailed: \x1b[0mfan" in lines[1]
    assert "\x1b[32mlast\x1b[0m" in lines[-1]


def test_long_lines_are_not_cut() -> None:
    """Whoever looks for a name with `grep` finds it, however narrow the terminal is."""
    made = rows(LONG_ROWS)
    made.add_row("x" * 300, "1", "at the end")
    assert printed(made, width=40)[-1].endswith("at the end")


@pytest.mark.parametrize("count", [1, LONG_ROWS])
def test_text_from_outside_is_shown_as_it_is(count: int) -> None:
    """Markup and control characters in a cell stay harmless, as a table and as lines."""
    made = Rows("NAME", "REASON")
    for _ in range(count):
        made.add_row("[red]a[/red]", "\x1b[2Jgone\n\u202e")
    lines = printed(made)
    assert len(lines) == count + 1
    assert all(line.isprintable() for line in lines)
    assert "[red]a[/red]" in lines[1]


def test_wide_characters_take_their_cells() -> None:
    """A name in Chinese takes two cells for each character, and columns stay under their heads."""
    made = Rows("NAME", "STATE")
    for _ in range(LONG_ROWS):
        made.add_row("训练", "ok")
    assert printed(made)[1] == "训练  ok"
