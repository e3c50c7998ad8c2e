"""The input and the interface of node scores, and the scoreboard with the points of all nodes.

Invariant: `best` and `fitting` equal the result of a scan of all points."""

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index import board_loops
from apportion.core.placement.index.board_loops import BLOCK, REFUSED, Points, Rows
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import POINTS, Int32s, Int64, Int64s, UInt8s

NO_ASK: Final = -1
NO_DEVICE: Final = -1
_REFUSED: Final = np.int32(REFUSED)


class ScoreInput:
    """The rows (nodes) to score, and where a score writes their points."""

    def __init__(self, columns: Columns, given: Int32s) -> None:
        self.columns = columns
        self.rows: Int64s = columns.every_cells
        self.count: Int64 = len(columns.names)
        self.given: Int32s = given  # points of each row, or `REFUSED`
        self.enough: UInt8s = columns.enough  # devices with room for the ask at `NodeScore.ask_at`


class NodeScore(Protocol):
    """Interface of a score, which rates nodes for one shape and may choose a device."""

    __slots__ = ()

    policy: str
    ask_at: int = NO_ASK  # the ask for which it chooses a device

    def rate(self, seen: ScoreInput) -> None:
        """Score each row that is not refused: 0 to `packed.POINTS`, more is better."""

    def device(self, row: int) -> int:
        """Return the position of the device that the score chose in the row, or `NO_DEVICE`."""
        del row
        return NO_DEVICE

    def total(self, points: int) -> float:
        """Return the points on the scale that users see, from 0 to 100."""
        return points * 100 / POINTS


class Scoreboard:
    """The points of every node for one class of pods; `REFUSED` where a pod cannot be placed."""

    def __init__(self, rows: int) -> None:
        self.points: Points = np.full(rows, REFUSED, np.int32)
        # For the loops: points, the best of each block, the fitting count, and new points.
        self.flat_points: Int32s = self.points.data
        self.most: Int32s = np.full(-(-rows // BLOCK), REFUSED, np.int32).data
        self.fits: Int64s = np.zeros(1, np.int64).data
        self._given = np.zeros(rows, np.int32)
        self.given: Int32s = self._given.data
        self._make_room(0)

    @property
    def fitting(self) -> int:
        """Return the number of rows that are not refused."""
        return self.fits[0]

    def write(self, rows: Rows, points: Points) -> None:
        """Set the points of these rows."""
        self._given[: len(rows)] = points
        self.take(rows.data, len(rows))

    def take(self, rows: Int64s, count: Int64) -> None:
        """Copy the points of the first `count` rows from `given` to the scoreboard."""
        points, most = self.flat_points, self.most
        board_loops.write(points, most, self.fits, rows, count, self.given)

    def refuse(self, row: int) -> None:
        """Set the points of the row to `REFUSED`."""
        self.write(np.array([row]), np.array([_REFUSED]))

    def replace(self, points: Points) -> None:
        """Set the points of every row."""
        self.write(np.arange(len(points)), points)

    def best(self, count: int, first: NDArray[np.bool_] | None = None) -> list[tuple[int, int]]:
        """Return up to `count` best rows with their points; the first row wins a tie.

        If any row marked in `first` fits, consider only the marked rows."""
        if len(self._found) != count:
            self._make_room(count)
        many: Int64 = 0
        if first is not None:
            marked: Int64s = np.flatnonzero(first).data
            many = board_loops.best_among(self.flat_points, marked, self._found)
        if not many:
            many = board_loops.best(self.flat_points, self.most, self._found, self._top)
        rows: list[tuple[int, int]] = []
        at: Int64
        for at in range(many):
            row: Int64 = self._found[at]
            rows.append((row, self.flat_points[row]))
        return rows

    def _make_room(self, count: int) -> None:
        self._found: Int64s = np.zeros(count, np.int64).data
        self._top: Int64s = np.zeros(count, np.int64).data
