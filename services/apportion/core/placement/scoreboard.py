"""The points of every node for one class of pods, and who has most.

Rows are kept in blocks with the best of each, so that who is best costs a look at the blocks and
not at every node.

Invariant: `best` and `fitting` say what a walk over all points would.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement import board_loops
from apportion.core.placement.board_loops import BLOCK, REFUSED, Points, Rows
from apportion.core.placement.packed import Int32s, Int64, Int64s

_REFUSED: Final = np.int32(REFUSED)


class Scoreboard:
    """Points by row, `REFUSED` where the pods may not go."""

    def __init__(self, rows: int) -> None:
        self.points: Points = np.full(rows, REFUSED, np.int32)
        self._most: Points = np.full(-(-rows // BLOCK), REFUSED, np.int32)
        self._fitting = np.zeros(1, np.int64)
        self._found = np.zeros(0, np.int64)
        # A value at a time, as in `Columns`.
        self._point_cells: Int32s = self.points.data
        self._found_cells: Int64s = self._found.data
        self.arrays: Final = (self.points, self._most, self._fitting)

    @property
    def fitting(self) -> int:
        """How many rows are not refused."""
        return self._fitting.item(0)

    def write(self, rows: Rows, points: Points) -> None:
        """These rows have these points, or are `REFUSED`."""
        board_loops.write(*self.arrays, rows, points)

    def refuse(self, row: int) -> None:
        """The pods may not go there."""
        self.write(np.array([row]), np.array([_REFUSED]))

    def replace(self, points: Points) -> None:
        """Every row has these points."""
        self.write(np.arange(len(points)), points)

    def best(self, count: int, first: NDArray[np.bool_] | None = None) -> list[tuple[int, int]]:
        """The best rows with their points, at most `count`; of equals the first.

        Of the rows that `first` marks, if any of them fits.
        """
        points, most = self.points, self._most
        if first is not None:
            among = Scoreboard(len(points))
            among.replace(np.where(first, points, _REFUSED))
            if among.fitting:
                points, most = among.points, among._most
        if len(self._found) != count:
            self._found = np.empty(count, np.int64)
            self._found_cells = self._found.data
        rows: list[tuple[int, int]] = []
        at: Int64
        for at in range(board_loops.best(points, most, self._found)):
            row: Int64 = self._found_cells[at]
            rows.append((row, self._point_cells[row]))
        return rows
