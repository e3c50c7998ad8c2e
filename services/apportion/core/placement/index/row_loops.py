# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""The loops of a class over the rows that it looks at: which these are, and their points.

The rows are the first `count` of `rows`, and `given` has in the same order what each comes to: its
points, or `REFUSED`. Compiled, no loop here looks whether an index is within its array.

Invariant: a loop does whole numbers only and calls nothing but its like, so it answers the same on
every machine, compiled or not."""

from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.packed import Int32s, Int64, Int64s, UInt8s


def distinct(
    log: Int64s, begin: Int64, end: Int64, seen: Int64s, turn: Int64, rows: Int64s
) -> Int64:
    """Fill `rows` with those that stand in the log from `begin` to `end`, each once; how many.

    `seen` has a place for each row, and no `turn` in it yet."""
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
    """Refuse the rows that are not node_ok; the others have no points yet."""
    i: Int64
    for i in range(count):
        given[i] = 0 if node_ok[rows[i]] else REFUSED


def give(
    rows: Int64s, count: Int64, column: Int32s, base: Int64, step: Int64, given: Int32s
) -> None:
    """Points by what the column says of a row: `base`, and `step` for each of what is there."""
    i: Int64
    for i in range(count):
        if given[i] != REFUSED:
            given[i] = base + step * column[rows[i]]


def blend(rows: Int64s, count: Int64, others: Int32s, given: Int32s) -> None:
    """Of the points given and of those that others give, by row, the mean."""
    i: Int64
    for i in range(count):
        if given[i] != REFUSED:
            given[i] = (given[i] + others[rows[i]]) // 2


def keep(rows: Int64s, count: Int64, given: Int32s, points: Int32s) -> None:
    """Write what is given by row."""
    i: Int64
    for i in range(count):
        points[rows[i]] = given[i]
