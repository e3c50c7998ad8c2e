"""Tests of printing rows, either as a table or, if there are many, as plain lines with the same
columns."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from apportion.cli.render.output import console
from apportion.cli.render.rows import LONG_ROWS, Rows

Captured = pytest.CaptureFixture[str]


def printed(rows: Rows, *, colours: bool = False, width: int = 250) -> list[str]:
    """Return the lines that are printed on a terminal of this width."""
    out = Console(
        file=io.StringIO(),
        width=width,
        color_system="standard" if colours else None,
        force_terminal=colours,
    )
    out.print(rows, crop=False)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def rows(count: int) -> Rows:
    """Return a table of `count` rows with every kind of cell."""
    made = Rows("NAME", "SIZE", "STATE", right=("SIZE",), wraps=("STATE",))
    for number in range(count):
        state = Text.assemble(("failed: ", "red"), "fan")
        made.add_row(f"pod-{number:04}", (("1", "red"), ("0" * (number % 3), "")), state)
    return made


def test_many_rows_look_as_few() -> None:
    """A large number of rows is printed as plain lines, which look the same as a table."""
    few, many = printed(rows(LONG_ROWS - 1)), printed(rows(LONG_ROWS))
    assert many[: len(few)] == few
    assert len(many) == LONG_ROWS + 1


@pytest.mark.parametrize("count", [1, LONG_ROWS])
@pytest.mark.parametrize("colours", [False, True])
def test_no_line_ends_in_blanks(count: int, *, colours: bool) -> None:
    """No line of a table ends in spaces."""
    made = rows(count)
    made.add_row("last", "5", "", style="green")
    assert [
        line for line in printed(made, colours=colours) if line.endswith((" ", " \x1b[0m"))
    ] == []


def test_lines_have_their_colours() -> None:
    """In plain lines, coloured parts of cells and coloured rows keep their colours."""
    made = rows(LONG_ROWS)
    made.add_row("last", "5", "ok", style="green")
    lines = printed(made, colours=True)
    assert "\x1b[31mfailed: \x1b[0mfan" in lines[1]
    assert "\x1b[32mlast\x1b[0m" in lines[-1]


def test_long_lines_are_not_cut() -> None:
    """Plain lines are never cut at the terminal's width, so that `grep` finds every name."""
    made = rows(LONG_ROWS)
    made.add_row("x" * 300, "1", "at the end")
    assert printed(made, width=40)[-1].endswith("at the end")


@pytest.mark.parametrize("count", [1, LONG_ROWS])
def test_text_from_outside_is_shown_as_it_is(count: int) -> None:
    """Markup and control characters in a cell have no effect, neither in tables nor in plain
    lines."""
    made = Rows("NAME", "REASON")
    for _ in range(count):
        made.add_row("[red]a[/red]", "\x1b[2Jgone\n\u202e")
    lines = printed(made)
    assert len(lines) == count + 1
    assert all(line.isprintable() for line in lines)
    assert "[red]a[/red]" in lines[1]


def test_wide_characters_take_their_cells() -> None:
    """A wide character, such as a Chinese one, counts as two columns."""
    made = Rows("NAME", "STATE")
    for _ in range(LONG_ROWS):
        made.add_row("训练", "ok")
    assert printed(made)[1] == "训练  ok"


def wide() -> Rows:
    """Return a table that is wider than 80 columns and has each kind of column."""
    made = Rows("NAME", "SIZE", "WHY", "NOTE", "NODE", right=("SIZE",), wraps=("WHY",),
                drops=("NOTE", "SIZE"))  # fmt: skip
    why = "not enough free memory on the device (5 nodes)"
    made.add_row("default/distributed-training-worker-0", "4,096 MiB", why, "a note", "a100-mig-1")
    return made


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (130, "NAME SIZE WHY NOTE NODE"),
        (95, "NAME SIZE WHY NODE"),
        (85, "NAME WHY NOTE NODE"),
        (84, "NAME WHY NODE"),
        (80, "NAME WHY NODE"),
        (50, "NAME WHY NODE"),
        (10, "NAME WHY NODE"),
    ],
)
def test_keys_stay_whole_and_the_rest_goes_in_its_order(width: int, head: str) -> None:
    """On a narrow terminal, columns are dropped in a fixed order. The columns that identify a row
    are never dropped or cut."""
    lines = printed(wide(), width=width)
    assert lines[0].split() == head.split()
    shown = " ".join(" ".join(lines).split())
    assert "default/distributed-training-worker-0" in shown
    assert "a100-mig-1" in lines[1]
    assert "…" not in shown
    if width > 80:
        assert max(map(len, lines)) <= width


def test_what_has_room_comes_back() -> None:
    """A narrow column may be dropped before a wide one. If dropping the wide column leaves enough
    room, the narrow column is shown again."""
    made = Rows("NAME", "AGE", "HOLDS", drops=("AGE", "HOLDS"))
    made.add_row("a" * 20, "5m", "x" * 30)
    assert printed(made, width=30)[0].split() == ["NAME", "AGE"]
    assert printed(made, width=52)[0].split() == ["NAME", "HOLDS"]
    assert printed(made, width=57)[0].split() == ["NAME", "AGE", "HOLDS"]


@pytest.mark.parametrize("width", [60, 20])
def test_what_wraps_loses_nothing(width: int) -> None:
    """A column that wraps shows all its text. Words that are too long are broken."""
    made = Rows("NAME", "HOLDS", wraps=("HOLDS",))
    made.add_row("a", "GPU-3a12e60a+GPU-495f962d+GPU-d4210c1f+GPU-a61fd618 46,068 MiB 100 %")
    lines = printed(made, width=width)
    held = "".join("".join(line[len("NAME  ") :].split()) for line in lines[1:])
    assert held == "GPU-3a12e60a+GPU-495f962d+GPU-d4210c1f+GPU-a61fd61846,068MiB100%"
    assert max(map(len, lines)) <= width


def test_names_that_are_joined_are_not_cut_in_two() -> None:
    """A cell with several device names wraps between the names."""
    made = Rows("HOLDS", wraps=("HOLDS",))
    made.add_row("GPU-3a12e60a+GPU-495f962d+GPU-d4210c1f+GPU-a61fd618 46,068 MiB 100 %")
    assert printed(made, width=33) == [
        "HOLDS",
        "GPU-3a12e60a+GPU-495f962d+",
        "GPU-d4210c1f+GPU-a61fd618 46,068",
        "MiB 100 %",
    ]


def test_many_rows_leave_out_the_same_columns() -> None:
    """At the same width, plain lines drop the same columns as a table."""
    few, many = (wide() for _ in range(2))
    for _ in range(LONG_ROWS):
        many.add_row("b", "1", "c", "d", "e")
    assert printed(many, width=85)[0].split() == printed(few, width=85)[0].split()


def test_our_console_cuts_no_rows(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """The CLI's console wraps lines that are longer than the terminal, and does not cut them."""
    monkeypatch.setenv("COLUMNS", "30")
    console().print(wide())
    assert "a100-mig-1" in capsys.readouterr().out
