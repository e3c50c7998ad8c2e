"""Which rows of the index changed, in order, for readers that come at their own pace.

Invariant: a reader that remembers where it was is told every row that changed since, or that this
was too long ago and every row may have."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index.packed import Int64, Int64s

LOG_ROWS_MAX: Final = 1 << 16
FORGOTTEN: Final[Int64] = -1
BEFORE_ALL: Final[Int64] = -(1 << 60)
"""The position of a reader that has seen nothing."""

Rows = NDArray[np.int64]


class RowLog:
    """Rows in the order in which they changed, for readers that come at their own pace.

    The first `count` of `cells` are the rows that are remembered, and `end` is the position after
    the newest of them."""

    def __init__(self) -> None:
        self._rows = np.empty(LOG_ROWS_MAX, np.int64)
        self.cells: Int64s = self._rows.data
        self.count: Int64 = 0
        self.end: Int64 = 0
        self._start: Int64 = 0

    def append(self, row: Int64) -> None:
        """Note that the row changed; of a full log the older half is dropped."""
        if self.count == LOG_ROWS_MAX:
            kept = LOG_ROWS_MAX // 2
            self._rows[:kept] = self._rows[kept:]
            self._start += LOG_ROWS_MAX - kept
            self.count = kept
        self.cells[self.count] = row
        self.count += 1
        self.end += 1

    def place_of(self, position: Int64) -> Int64:
        """Where in `cells` the rows begin that changed since then; `FORGOTTEN` if it was too long
        ago. A row may come more than once."""
        return max(position - self._start, FORGOTTEN)

    def since(self, position: Int64) -> Rows | None:
        """Those rows, or None where they are forgotten: a view, good until the next `append`."""
        return None if position < self._start else self.rows_from(position - self._start)

    def distinct_since(self, position: Int64, every: Rows) -> Rows | None:
        """Those rows, each once, or `every` one where they are most; None if they are forgotten."""
        if position < self._start:
            return None
        rows = self.rows_from(position - self._start)
        if 2 * len(rows) > len(every):
            return every
        changed = np.zeros(len(every), np.bool_)
        changed[rows] = True
        return np.flatnonzero(changed)

    def rows_from(self, place: Int64) -> Rows:
        """The rows that stand in `cells` from there on, as `since` gives them."""
        return self._rows[place : self.count]
