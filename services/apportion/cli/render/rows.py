"""Lay out rows in columns, faster than rich. Cells of very long tables do not wrap.

Invariants: cells are shown without markup or control characters. No cell is cut, however narrow the
terminal, and only the columns in `drops` are left out."""

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

LONG_ROWS: Final = 100  # from this many rows on, they are plain lines
GAP: Final = "  "
_JOINED: Final = re.compile(r"(?<=\+)")
# readable width of a column that wraps: two devices, `GPU-1a2b3c4d+GPU-…`
WRAPPED_CELLS: Final = 26
WRAPPED_CELLS_LEAST: Final = 12  # its smallest width, if no column is left to drop

Pieces = tuple[tuple[str, str], ...]  # pieces of text, each with the name of its style or empty
Cell = str | Text | Pieces
Row = tuple[list[Pieces], str]  # cells, and the style of pieces without one


def clean(value: object) -> str:
    """Replace unprintable characters, which could control the terminal."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


class Rows:
    """A table that adapts to the width of the terminal.

    Columns in `right` are right-aligned, and columns in `wraps` may wrap. If the table is too wide,
    columns in `drops` are left out, first to last, and then named by `left_out`. Columns in
    `optional` are left out if no row has more than `-`."""

    def __init__(
        self,
        *columns: str,
        right: Iterable[str] = (),
        wraps: Iterable[str] = (),
        drops: Iterable[str] = (),
        optional: Iterable[str] = (),
    ) -> None:
        self.header = True
        self.may_be_long = True
        self.left_out: tuple[str, ...] = ()
        self._drops = tuple(column for column in drops if column in columns)
        self._columns = columns
        self._right = frozenset(right)
        self._wraps = frozenset(wraps)
        self._optional = frozenset(optional)
        self._rows: list[tuple[tuple[Cell, ...], str]] = []

    def add_row(self, *cells: Cell, style: str = "") -> None:
        """Add a row; missing cells stay empty."""
        self._rows.append((cells, style))

    @property
    def row_count(self) -> int:
        """Return the number of rows added so far."""
        return len(self._rows)

    @property
    def long(self) -> bool:
        """Return True if the table has too many rows to wrap cells."""
        return self.may_be_long and len(self._rows) >= LONG_ROWS

    def crowded(self, width: int) -> bool:
        """Return True if `width` is too small for all columns, or would split a word."""
        rows = [[_pieces(cell) for cell in cells] for cells, _ in self._rows]
        widths = self._widths(rows)
        left = self._left(widths, width)
        self._narrow(widths, left, width)
        if len(left) < len(self._filled()) or _total(widths, left) > width:
            return True
        return any(
            cell_len(part) > widths[place]
            for row in rows
            for place, pieces in enumerate(row)
            if self._columns[place] in self._wraps
            for word in "".join(text for text, _ in pieces).split(" ")
            for part in _JOINED.split(word)
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows: list[Row] = [([_pieces(cell) for cell in row], style) for row, style in self._rows]
        widths = self._widths(cells for cells, _ in rows)
        left = self._left(widths, options.max_width)
        self.left_out = tuple(self._columns[place] for place in self._filled() if place not in left)
        if self.header:
            rows = [([((column, "bold"),) for column in self._columns], ""), *rows]
        if self.long:
            yield from self._lines(rows, widths, left)
            return
        self._narrow(widths, left, options.max_width)
        for cells, style in rows:  # a cell that wraps takes several lines
            lines = [
                _wrapped(console, pieces, widths[place])
                if place in left and self._columns[place] in self._wraps else [pieces]
                for place, pieces in enumerate(cells)
            ]  # fmt: skip
            folded = [(list(line), style) for line in itertools.zip_longest(*lines, fillvalue=())]
            yield from self._lines(folded, widths, left)

    def _filled(self) -> list[int]:
        return [
            place for place, column in enumerate(self._columns)
            if column not in self._optional
            or any(str(cells[place]) not in {"", "-"} for cells, _ in self._rows)
        ]  # fmt: skip

    def _left(self, widths: list[int], width: int) -> list[int]:
        """Return the indexes of the columns that fit, after columns in `wraps` are narrowed."""
        least = [
            min(widths[place], WRAPPED_CELLS) if column in self._wraps else widths[place]
            for place, column in enumerate(self._columns)
        ]
        filled = self._filled()
        left = [place for place in filled if self._columns[place] not in self._drops]
        for column in reversed(self._drops):
            more = sorted({*left, self._columns.index(column)} & {*filled})
            left = more if _total(least, more) <= width else left
        return left

    def _narrow(self, widths: list[int], left: list[int], width: int) -> None:
        wrapping = [place for place in left if self._columns[place] in self._wraps]
        least = list(widths)
        for place in wrapping:
            least[place] = min(widths[place], WRAPPED_CELLS_LEAST)
        narrow = WRAPPED_CELLS_LEAST if _total(least, left) <= width else WRAPPED_CELLS
        for _ in range(_total(widths, left) - width):
            widest = max(wrapping, key=widths.__getitem__, default=-1)
            if widest < 0 or widths[widest] <= narrow:
                return
            widths[widest] -= 1

    def _widths(self, rows: Iterable[list[Pieces]]) -> list[int]:
        widths = [len(column) for column in self._columns]
        for cells in rows:
            for place, pieces in enumerate(cells):
                widths[place] = max(widths[place], _width(pieces))
        return widths

    def _lines(self, rows: list[Row], widths: list[int], left: list[int]) -> Iterator[Segment]:
        parsed = lru_cache(None)(Style.parse)
        for row, style in rows:
            cells = [(place, row[place]) for place in left if place < len(row)]
            while cells and not _width(cells[-1][1]):
                cells.pop()  # it would only be trailing blanks
            held, last = "", len(cells) - 1  # unstyled text is joined into one segment
            for number, (place, pieces) in enumerate(cells):
                space = " " * (widths[place] - _width(pieces))
                right = self._columns[place] in self._right
                held += (GAP if number else "") + (space if right else "")
                for text, named in pieces:
                    name = named or style
                    if not name:
                        held += text
                        continue
                    if held:
                        yield Segment(held)
                        held = ""
                    yield Segment(text, parsed(name))
                if not right and number != last:
                    held += space
            yield Segment(held.rstrip(" ") + "\n")


def _total(widths: list[int], left: list[int]) -> int:
    return sum(widths[place] for place in left) + len(GAP) * max(len(left) - 1, 0)


def _wrapped(console: Console, pieces: Pieces, width: int) -> list[Pieces]:
    if _width(pieces) <= width and not any("\n" in text for text, _ in pieces):
        return [pieces]
    text = Text(*pieces[0]) if len(pieces) == 1 else Text.assemble(*pieces)
    if not text.spans and text.cell_len > width:
        # Break long words after `+`, which joins names of devices.
        words = []
        for word in text.plain.split(" "):
            parts = [""]
            for part in _JOINED.split(word) if cell_len(word) > width else [word]:
                if parts[-1] and cell_len(parts[-1] + part) > width:
                    parts.append("")
                parts[-1] += part
            words.append("\n".join(parts))
        text.plain = " ".join(words)
    lines = text.wrap(console, width, overflow="fold")
    for line in lines:
        line.rstrip()
    return [_pieces(line) for line in lines]


def _pieces(cell: Cell) -> Pieces:
    if isinstance(cell, str):
        return ((clean(cell), ""),)
    if isinstance(cell, tuple):
        return tuple((clean(text), style) for text, style in cell)
    if not cell.spans:
        return ((cell.plain, str(cell.style)),)
    # Cut where styles change; the last of overlapping spans wins.
    cuts = sorted({0, len(cell), *(at for span in cell.spans for at in (span.start, span.end))})
    found = []
    for start, end in itertools.pairwise(cuts):
        style = str(cell.style)
        for span in cell.spans:
            if span.start <= start and end <= span.end:
                style = str(span.style)
        found.append((cell.plain[start:end], style))
    return tuple(found)


def _width(pieces: Pieces) -> int:
    return sum(len(text) if text.isascii() else cell_len(text) for text, _ in pieces)
