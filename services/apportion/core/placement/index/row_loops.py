# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""Compiled loops of a `PlacementClass`: find the rows to evaluate, and compute their points.

`given` has the points of each row, or `REFUSED`. Compiled loops do not check array bounds.
Invariant: loops use only whole numbers, so the result is the same compiled or not."""

from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.packed import Int32s, Int64, Int64s, UInt8s


def distinct(
    log: Int64s, begin: Int64, end: Int64, seen: Int64s, turn: Int64, rows: Int64s
) -> Int64:
    """Copy rows from the log to `rows`, each once, and return how many.

    `turn` must be a number that is not in `seen` yet."""
    count: Int64 = 0
    at: Int64
    for at in range(begin, end):
        row: Int64 = log[at]
        if seen[row] != turn:
            seen[row] = turn
            rows[count] = row
            count += 1
    return count


def admit(rows: Int64s, count: Int64, node_ok: UInt8s, given: Int32s) -> None:
    """Refuse the rows that are not `node_ok`; set the points of the others to 0."""
    i: Int64
    for i in range(count):
        given[i] = 0 if node_ok[rows[i]] else REFUSED


def give(
    rows: Int64s, count: Int64, column: Int32s, base: Int64, step: Int64, given: Int32s
) -> None:
    """Set the points of each row to `base` plus `step` times its value in `column`."""
    i: Int64
    for i in range(count):
        if given[i] != REFUSED:
            given[i] = base + step * column[rows[i]]


def blend(rows: Int64s, count: Int64, others: Int32s, given: Int32s) -> None:
    """Set the points of each row to the mean of its entries in `given` and in `others`."""
    i: Int64
    for i in range(count):
        if given[i] != REFUSED:
            given[i] = (given[i] + others[rows[i]]) // 2


def keep(rows: Int64s, count: Int64, given: Int32s, points: Int32s) -> None:
    """Copy the points in `given` to the scoreboard's `points`."""
    i: Int64
    for i in range(count):
        points[rows[i]] = given[i]
