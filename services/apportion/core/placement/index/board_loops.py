# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""Compiled loops of the `Scoreboard`, which set the points of rows and find the best rows.

The loops do not check array bounds."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index.packed import Int32s, Int64, Int64s

REFUSED: Final[Int64] = -1
BLOCK: Final[Int64] = 128

Points = NDArray[np.int32]
Rows = NDArray[np.int64]


def write(
    points: Int32s, most: Int32s, fitting: Int64s, rows: Int64s, count: Int64, given: Int32s
) -> None:
    """Swap the points of these rows with those in `given`."""
    i: Int64
    # A separate loop lets the memory reads overlap; the loop below would wait for each row.
    for i in range(count):
        was: Int64 = points[rows[i]]
        points[rows[i]] = given[i]
        given[i] = was
    for i in range(count):
        before: Int64 = given[i]
        after: Int64 = points[rows[i]]
        block: Int64 = rows[i] // BLOCK
        if before == REFUSED:
            fitting[0] += 1
        if after == REFUSED:
            fitting[0] -= 1
        if after >= most[block]:
            most[block] = after
        elif before == most[block]:
            most[block] = _most_of(points, block * BLOCK)


def _most_of(points: Int32s, begin: Int64) -> Int64:
    most: Int64 = REFUSED
    row: Int64
    for row in range(begin, min(begin + BLOCK, len(points))):
        if points[row] > most:  # noqa: PLR1730 - interpreted, `max` takes three times as long
            most = points[row]
    return most


def _least(most: Int32s, top: Int64s) -> Int64:
    # A bound below the points of all best rows: that many blocks have a row above it.
    wanted: Int64 = len(top)
    block: Int64
    place: Int64
    for place in range(wanted):
        top[place] = REFUSED
    for block in range(len(most)):
        place = wanted - 1
        if most[block] > top[place]:
            while place > 0 and top[place - 1] < most[block]:
                top[place] = top[place - 1]
                place -= 1
            top[place] = most[block]
    place = top[wanted - 1] - 1
    return max(place, REFUSED)


def best_among(points: Int32s, rows: Int64s, found: Int64s) -> Int64:
    """Put the best of these rows into `found`, as `best` does, and return how many."""
    wanted: Int64 = len(found)
    count: Int64 = 0
    least: Int64 = REFUSED
    at: Int64
    for at in range(len(rows)):
        row: Int64 = rows[at]
        if points[row] <= least:
            continue
        place: Int64 = min(count, wanted - 1)
        while place > 0 and points[found[place - 1]] < points[row]:
            found[place] = found[place - 1]
            place -= 1
        found[place] = row
        count = min(count + 1, wanted)
        if count == wanted:
            least = points[found[wanted - 1]]
    return count


def best(points: Int32s, most: Int32s, found: Int64s, top: Int64s) -> Int64:
    """Put the best rows into `found`, best first, and return how many. `top` is a work buffer."""
    wanted: Int64 = len(found)
    count: Int64 = 0
    least: Int64 = _least(most, top)
    block: Int64
    row: Int64
    for block in range(len(most)):
        if most[block] <= least:
            continue
        for row in range(block * BLOCK, min((block + 1) * BLOCK, len(points))):
            if points[row] <= least:
                continue
            place: Int64 = min(count, wanted - 1)
            while place > 0 and points[found[place - 1]] < points[row]:
                found[place] = found[place - 1]
                place -= 1
            found[place] = row
            count = min(count + 1, wanted)
            if count == wanted:
                least = points[found[wanted - 1]]
    return count
