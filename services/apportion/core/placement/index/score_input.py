"""What a score is shown of nodes, what it answers, and the board on which points of nodes stand.

Rows of the board are kept in blocks with the best of each, so that who is best costs a look at the
blocks and not at every node.

Invariant: `best` and `fitting` say what a walk over all points would."""

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
    """A look of a class at rows of the columns: the first `count` of `rows`, of all at first.

    `given`, in the order of the rows, is what they come to: `REFUSED` where a filter refuses the
    node, else its points, which the score gives. `enough`, in the same order and by column, is
    noted for one ask, the one that the score chooses a device for (`NodeScore.ask_at`): whether a
    device has enough for a share of it."""

    def __init__(self, columns: Columns, given: Int32s) -> None:
        self.columns = columns
        self.rows: Int64s = columns.every_cells
        self.count: Int64 = len(columns.names)
        self.given: Int32s = given
        self.enough: UInt8s = columns.enough


class NodeScore(Protocol):
    """How one shape of pod prefers nodes, whatever their devices unless a subclass says more.

    `policy` is the name under which points are told; `ask_at` the position of the ask for which the
    score chooses a device, or `NO_ASK`."""

    policy: str
    ask_at: int = NO_ASK

    def rate(self, seen: ScoreInput) -> None:
        """Give points to each row that is not refused: 0 to `packed.POINTS`, more is better."""

    def device(self, row: int) -> int:
        """The device that gave the row its points, by position, or `NO_DEVICE`."""
        del row
        return NO_DEVICE

    def total(self, points: int) -> float:
        """The points as people are shown them, 0 to 100."""
        return points * 100 / POINTS


class Scoreboard:
    """Points by row, `REFUSED` where the pods may not go."""

    def __init__(self, rows: int) -> None:
        self.points: Points = np.full(rows, REFUSED, np.int32)
        # As loops take them: the points, the most of each block, how many fit, what rows are given.
        self.flat_points: Int32s = self.points.data
        self.most: Int32s = np.full(-(-rows // BLOCK), REFUSED, np.int32).data
        self.fits: Int64s = np.zeros(1, np.int64).data
        self._given = np.zeros(rows, np.int32)
        self.given: Int32s = self._given.data
        self._make_room(0)

    @property
    def fitting(self) -> int:
        """How many rows are not refused."""
        return self.fits[0]

    def write(self, rows: Rows, points: Points) -> None:
        """These rows have these points, or are `REFUSED`."""
        self._given[: len(rows)] = points
        self.take(rows.data, len(rows))

    def take(self, rows: Int64s, count: Int64) -> None:
        """The first `count` of these rows have the points that are in `given`."""
        points, most = self.flat_points, self.most
        board_loops.write(points, most, self.fits, rows, count, self.given)

    def refuse(self, row: int) -> None:
        """The pods may not go there."""
        self.write(np.array([row]), np.array([_REFUSED]))

    def replace(self, points: Points) -> None:
        """Every row has these points."""
        self.write(np.arange(len(points)), points)

    def best(self, count: int, first: NDArray[np.bool_] | None = None) -> list[tuple[int, int]]:
        """The best rows with their points, at most `count`; of equals the first.

        Of the rows that `first` marks, if any of them fits."""
        if first is not None:
            among = Scoreboard(len(self.points))
            among.replace(np.where(first, self.points, _REFUSED))
            if among.fitting:
                return among.best(count)
        if len(self._found) != count:
            self._make_room(count)
        rows: list[tuple[int, int]] = []
        at: Int64
        for at in range(board_loops.best(self.flat_points, self.most, self._found, self._top)):
            row: Int64 = self._found[at]
            rows.append((row, self.flat_points[row]))
        return rows

    def _make_room(self, count: int) -> None:
        self._found: Int64s = np.zeros(count, np.int64).data
        self._top: Int64s = np.zeros(count, np.int64).data
