"""What a score is shown of the nodes that it is asked about, and what it has to answer."""

from typing import Final, Protocol

from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import POINTS, Int32s, Int64, Int64s, UInt8s

NO_ASK: Final = -1
NO_DEVICE: Final = -1


class ScoreInput:
    """A look of a class at rows of the columns: the first `count` of `rows`, of all at first.

    `given`, in the order of the rows, is what they come to: `REFUSED` where a filter refuses the
    node, else its points, which the score gives. `enough`, in the same order and by column, is
    noted for one ask, the one that the score chooses a device for (`NodeScore.ask_at`): whether a
    device has enough for a share of it.
    """

    def __init__(self, columns: Columns, given: Int32s) -> None:
        self.columns = columns
        self.rows: Int64s = columns.every_cells
        self.count: Int64 = len(columns.names)
        self.given: Int32s = given
        self.enough: UInt8s = columns.enough


class NodeScore(Protocol):
    """How one shape of pod prefers nodes, whatever their devices unless a subclass says more.

    `policy` is the name under which points are told; `ask_at` the position of the ask for which
    the score chooses a device, or `NO_ASK`.
    """

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
