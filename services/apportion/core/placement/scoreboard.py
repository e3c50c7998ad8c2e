"""The points of every node for one class of pods, and who has most.

Rows are kept in blocks with the best of each, so that who is best costs a look at the blocks and
not at every node.

Invariant: `best` and `fitting` say what a walk over all points would.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.compiled import compiled

REFUSED: Final = -1
_REFUSED: Final = np.int32(REFUSED)
_BLOCK: Final = 128

Points = NDArray[np.int32]
Rows = NDArray[np.int64]


class Scoreboard:
    """Points by row, `REFUSED` where the pods may not go."""

    def __init__(self, rows: int) -> None:
        self.points: Points = np.full(rows, REFUSED, np.int32)
        self._most: Points = np.full(-(-rows // _BLOCK), REFUSED, np.int32)
        self._fitting = np.zeros(1, np.int64)

    @property
    def fitting(self) -> int:
        """How many rows are not refused."""
        return self._fitting.item(0)

    def write(self, rows: Rows, fit: NDArray[np.bool_], points: Points) -> None:
        """These rows have these points, or are refused where they do not fit."""
        _write(self.points, self._most, self._fitting, rows, (fit, points))

    def refuse(self, row: int) -> None:
        """The pods may not go there."""
        self.write(np.array([row]), np.zeros(1, np.bool_), np.zeros(1, np.int32))

    def replace(self, points: Points) -> None:
        """Every row has these points."""
        self.write(np.arange(len(points)), points != REFUSED, points)

    def best(self, count: int, *, first: NDArray[np.bool_] | None = None) -> list[tuple[int, int]]:
        """The best rows with their points, at most `count`; of equals the first.

        Of the rows that `first` marks, if any of them fits.
        """
        points, most = self.points, self._most
        if first is not None:
            among = Scoreboard(len(points))
            among.replace(np.where(first, points, _REFUSED))
            if among.fitting:
                points, most = among.points, among._most
        found = np.empty(count, np.int64)
        rows = found[: _best(points, most, found)].tolist()
        return [(row, points.item(row)) for row in rows]


@compiled
def _write(
    points: Points, most: Points, fitting: Rows, rows: Rows, now: tuple[NDArray[np.bool_], Points]
) -> None:
    fit, given = now
    for i in range(len(rows)):
        row, after = rows[i], given[i] if fit[i] else _REFUSED
        before, block = points[row], row // _BLOCK
        points[row] = after
        fitting[0] += (after != REFUSED) - (before != REFUSED)
        if after >= most[block]:
            most[block] = after
        elif before == most[block]:
            most[block] = points[block * _BLOCK : (block + 1) * _BLOCK].max()


@compiled
def _best(points: Points, most: Points, found: Rows) -> int:
    """Fill `found` with the best rows in order; how many there are."""
    wanted, count, least = len(found), 0, REFUSED
    for block in range(len(most)):
        if most[block] <= least:
            continue
        for row in range(block * _BLOCK, min((block + 1) * _BLOCK, len(points))):
            if points[row] <= least:
                continue
            place = min(count, wanted - 1)
            while place > 0 and points[found[place - 1]] < points[row]:
                found[place] = found[place - 1]
                place -= 1
            found[place] = row
            count = min(count + 1, wanted)
            if count == wanted:
                least = points[found[wanted - 1]]
    return count
