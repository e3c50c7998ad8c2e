"""Rows in columns: a table for people, and plain lines where there are very many.

The table library takes a millisecond for a row, and eight seconds for the devices of a thousand
nodes. So what is long is laid out here, in the same columns and colours, but without wrapping.
Invariant: text of a cell is shown as it is: no markup in it is obeyed, and no control character
reaches the screen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

LONG_ROWS: Final = 100
"""From so many rows on they are plain lines."""
GAP: Final = "  "
WRAPPED_CELLS: Final = 24
"""With so many a column that wraps can still be read."""

Pieces = tuple[tuple[str, str], ...]
"""Text in pieces, each with the name of its style, empty for none."""
Cell = str | Text | Pieces


def clean(value: object) -> str:
    """Text from outside, without what a screen would obey."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


class Rows:
    """Columns with rows; `right` are set to the right, and only those in `wraps` may give way.

    `drops` are left out, one after the other, where a table is too wide for the terminal. Without
    `header` the names of the columns are not shown. Unless it `may_be_long` it is always a table.
    """

    def __init__(
        self,
        *columns: str,
        right: Iterable[str] = (),
        wraps: Iterable[str] = (),
        drops: Iterable[str] = (),
    ) -> None:
        self.header = True
        self.may_be_long = True
        self._drops = tuple(drops)
        self._columns = columns
        self._right = frozenset(right)
        self._wraps = frozenset(wraps)
        self._rows: list[tuple[tuple[Cell, ...], str]] = []

    def add_row(self, *cells: Cell, style: str = "") -> None:
        """One row; what is behind the last cell stays empty."""
        self._rows.append((cells, style))

    @property
    def row_count(self) -> int:
        """How many rows there are by now."""
        return len(self._rows)

    @property
    def long(self) -> bool:
        """Whether it is shown as plain lines."""
        return self.may_be_long and len(self._rows) >= LONG_ROWS

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.long:
            yield from self._lines()
        else:
            yield self._table(self._left(options.max_width))

    def _left(self, width: int) -> list[int]:
        """The places of the columns that there is room for; what wraps is content with less."""
        widths = self._widths([_pieces(cell) for cell in cells] for cells, _ in self._rows)
        for place, column in enumerate(self._columns):
            if column in self._wraps:
                widths[place] = min(widths[place], WRAPPED_CELLS)
        left = list(range(len(self._columns)))
        for column in self._drops:
            if sum(widths[place] for place in left) + len(GAP) * (len(left) - 1) <= width:
                break
            left.remove(self._columns.index(column))
        return left

    def _table(self, left: list[int]) -> Table:
        made = Table(box=None, pad_edge=False, header_style="bold", show_header=self.header)
        for column in (self._columns[place] for place in left):
            made.add_column(
                column,
                justify="right" if column in self._right else "left",
                no_wrap=column not in self._wraps,
            )
        for cells, style in self._rows:
            shown = (_text(cells[place]) for place in left if place < len(cells))
            made.add_row(*shown, style=style or None)
        return made

    def _widths(self, rows: Iterable[list[Pieces]]) -> list[int]:
        widths = [len(column) for column in self._columns]
        for cells in rows:
            for place, pieces in enumerate(cells):
                width = _width(pieces)
                widths[place] = max(widths[place], width)
        return widths

    def _lines(self) -> Iterator[Segment]:
        rows = [([_pieces(cell) for cell in cells], style) for cells, style in self._rows]
        widths = self._widths(cells for cells, _ in rows)
        styles: dict[str, Style | None] = {"": None, "bold": Style.parse("bold")}
        heads: list[Pieces] = [((column, "bold"),) for column in self._columns]
        for cells, style in ((heads, ""), *rows) if self.header else rows:
            yield from self._line(cells, widths, style, styles)

    def _line(
        self, cells: list[Pieces], widths: list[int], style: str, styles: dict[str, Style | None]
    ) -> Iterator[Segment]:
        """One row; text that has no style is one segment with what stands around it."""
        held, last = "", len(cells) - 1
        for place, pieces in enumerate(cells):
            space = " " * (widths[place] - _width(pieces))
            right = self._columns[place] in self._right
            held += (GAP if place else "") + (space if right else "")
            for text, named in pieces:
                name = named or style
                if not name:
                    held += text
                    continue
                if name not in styles:
                    styles[name] = Style.parse(name)
                if held:
                    yield Segment(held)
                    held = ""
                yield Segment(text, styles[name])
            if not right and place != last:
                held += space
        yield Segment(held.rstrip(" ") + "\n")


def _text(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text(clean(cell)) if isinstance(cell, str) else Text.assemble(*_pieces(cell))


def _pieces(cell: Cell) -> Pieces:
    if isinstance(cell, str):
        return ((clean(cell), ""),)
    if isinstance(cell, tuple):
        return tuple((clean(text), style) for text, style in cell)
    return _of_text(cell)


def _of_text(text: Text) -> Pieces:
    """The text cut where its styles change; of several at one place the last one counts."""
    if not text.spans:
        return ((text.plain, str(text.style)),)
    cuts = sorted({0, len(text), *(at for span in text.spans for at in (span.start, span.end))})
    found = []
    for start, end in itertools.pairwise(cuts):
        style = str(text.style)
        for span in text.spans:
            if span.start <= start and end <= span.end:
                style = str(span.style)
        found.append((text.plain[start:end], style))
    return tuple(found)


def _width(pieces: Pieces) -> int:
    return sum(len(text) if text.isascii() else cell_len(text) for text, _ in pieces)
