"""Which node stands in which row of the index: in the order of names, with spare rows between.

A node that joins takes a spare row near its place, so that few others move, and whoever keeps
something by row looks again at those alone. As in a shelf, room is left everywhere for what comes.

Invariant: the names of the rows that are not vacant are in order, whatever happened in which order.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SPARE_EVERY: Final = 16  # rows to one that is spare, and as many spare ones behind the last
MOVED_MAX: Final = 1024  # rows that may move for a node that joins; beyond, all are laid out anew


class Moved(NamedTuple):
    """The rows from `begin` to `end` moved by `by`, which leaves `row` free."""

    row: int
    begin: int
    end: int
    by: int


class RowOrder:
    """The rows by name; those that are `vacant` have an empty one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.vacant: NDArray[np.bool_] = np.ones(0, np.bool_)
        self._order: list[str] = []  # the names without the vacant rows

    def may_insert(self, count: int) -> bool:
        """Whether so many new names are few enough to be inserted one by one."""
        return count * SPARE_EVERY <= len(self.row_of)

    def insert(self, name: str) -> Moved | None:
        """Give a new name a row, and say which rows moved for it; None if none is spare nearby."""
        rank = self._rank(name)
        behind = self.row_of[self._order[rank - 1]] + 1 if rank else 0
        moved = self._vacated(behind)
        if moved is None:
            return None
        row, begin, end, by = moved
        self.names[begin + by : end + by] = self.names[begin:end]
        self.vacant[begin + by : end + by] = False
        for at in range(begin + by, end + by):
            self.row_of[self.names[at]] = at
        self._order.insert(rank, name)
        self.names[row], self.row_of[name] = name, row
        self.vacant[row] = False
        return moved

    def remove(self, name: str) -> int:
        """Leave the row of a name vacant, and say which one it was."""
        row = self.row_of.pop(name)
        del self._order[self._rank(name)]
        self.names[row], self.vacant[row] = "", True
        return row

    def lay_out(self, joined: Iterable[str]) -> None:
        """Give these a row as well, and every name another one, with spare rows between."""
        for name in joined:
            if name not in self.row_of:
                self._order.insert(self._rank(name), name)
        count = len(self._order)
        rows = np.arange(count) + np.arange(count) // SPARE_EVERY
        total = count + 2 * (count // SPARE_EVERY)
        self.row_of = dict(zip(self._order, rows.tolist(), strict=True))
        self.vacant = np.ones(total, np.bool_)
        self.vacant[rows] = False
        self.names = [""] * total
        for name, row in self.row_of.items():
            self.names[row] = name

    def _rank(self, name: str) -> int:
        """How many names come before this one."""
        return bisect_left(self._order, name)

    def _vacated(self, row: int) -> Moved | None:
        """What makes a row free behind all before `row` and before all others, at least cost."""
        first = max(row - MOVED_MAX, 0)
        spare = np.flatnonzero(self.vacant[first : row + MOVED_MAX]) + first
        if not len(spare):
            return None
        nearest = int(spare[np.abs(spare - row).argmin()])
        if nearest < row:
            return Moved(row - 1, nearest + 1, row, -1)
        return Moved(row, row, nearest, 1)
