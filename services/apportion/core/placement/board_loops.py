"""The loops of the `Scoreboard`: points of some rows written, the best rows found.

Invariant: each block of rows has beside it the most points that any of its rows has.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.compiled import compiled

REFUSED: Final = -1
_REFUSED: Final = np.int32(REFUSED)
BLOCK: Final = 128

Points = NDArray[np.int32]
Rows = NDArray[np.int64]


@compiled
def write(points: Points, most: Points, fitting: Rows, rows: Rows, given: Points) -> None:
    """`Scoreboard.write`."""
    for i in range(len(rows)):
        row, after = rows[i], given[i]
        before, block = points[row], row // BLOCK
        points[row] = after
        fitting[0] += (after != _REFUSED) - (before != _REFUSED)
        if after >= most[block]:
            most[block] = after
        elif before == most[block]:
            most[block] = points[block * BLOCK : (block + 1) * BLOCK].max()


@compiled
def _least(most: Points, wanted: int) -> int:
    """Points that no row among the best has: as many as are wanted have more, one of each block."""
    top = np.full(wanted, _REFUSED)
    for block in range(len(most)):
        place = wanted - 1
        if most[block] > top[place]:
            while place > 0 and top[place - 1] < most[block]:
                top[place] = top[place - 1]
                place -= 1
            top[place] = most[block]
    least: int = max(top[wanted - 1] - 1, REFUSED)
    return least


@compiled
def best(points: Points, most: Points, found: Rows) -> int:
    """Fill `found` with the best rows in order; how many there are."""
    wanted, count, least = len(found), 0, _least(most, len(found))
    for block in range(len(most)):
        if most[block] <= least:
            continue
        for row in range(block * BLOCK, min((block + 1) * BLOCK, len(points))):
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
