"""Log the rows that changed, so that each reader can catch up later.

Invariant: a reader gets all rows changed since its last read, or learns that some are lost."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index.packed import Int64, Int64s

LOG_ROWS_MAX: Final = 1 << 16
FORGOTTEN: Final[Int64] = -1
BEFORE_ALL: Final[Int64] = -(1 << 60)  # the position of a reader that has seen nothing

Rows = NDArray[np.int64]


class RowLog:
    """A log of the rows that changed, oldest first."""

    def __init__(self) -> None:
        self._rows = np.empty(LOG_ROWS_MAX, np.int64)
        self.cells: Int64s = self._rows.data
        self.count: Int64 = 0
        self.end: Int64 = 0  # the next position
        self._start: Int64 = 0

    def append(self, row: Int64) -> None:
        """Record that the row changed; a full log drops its older half."""
        if self.count == LOG_ROWS_MAX:
            kept = LOG_ROWS_MAX // 2
            self._rows[:kept] = self._rows[kept:]
            self._start += LOG_ROWS_MAX - kept
            self.count = kept
        self.cells[self.count] = row
        self.count += 1
        self.end += 1

    def place_of(self, position: Int64) -> Int64:
        """Return the index in `cells` of a log position, or `FORGOTTEN` if it was dropped."""
        return max(position - self._start, FORGOTTEN)

    def since(self, position: Int64) -> Rows | None:
        """Return the rows logged from `position` on; None if some of them were dropped.

        The array is valid until the next `append`."""
        if position < self._start:
            return None
        return self._rows[position - self._start : self.count]

    def distinct_since(self, position: Int64, every: Rows) -> Rows | None:
        """Return at least the rows logged from `position` on, each once; None if some were dropped.

        If most rows changed, return `every`."""
        rows: Rows | None = self.since(position)
        if rows is None:
            return None
        if 2 * len(rows) > len(every):
            return every
        changed = np.zeros(len(every), np.bool_)
        changed[rows] = True
        return np.flatnonzero(changed)
