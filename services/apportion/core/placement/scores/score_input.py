"""What a score is shown of the nodes that it is asked about, and what it has to answer."""

from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from apportion.core.placement.index.columns import Columns, Rows

Points = NDArray[np.int32]
NO_DEVICE: Final = -1


class ScoreInput(Struct, frozen=True, gc=False):
    """Rows of the columns. `fit`: the nodes that no filter refuses; `enough`: for each ask, by row
    and column, the devices that have enough for one share.
    """

    columns: Columns
    rows: Rows
    fit: NDArray[np.bool_]
    enough: list[NDArray[np.bool_]]

    def of(
        self, chosen: NDArray[np.intp]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        """The columns `free`, `kind` and `slices` of the chosen ones among the rows."""
        columns, rows = self.columns, self.rows.take(chosen)
        kind = columns.kind.take(rows, 0).astype(np.int64)
        return columns.free.take(rows, 0), kind, columns.slices.take(rows, 0)


class NodeScore(Protocol):
    """How one shape of pod prefers nodes. `policy` is the name under which points are told."""

    policy: str

    def points(self, given: ScoreInput) -> Points:
        """Points of each row, 0 to `packed.POINTS`, more is better; of unfit rows, anything."""

    def device(self, row: int) -> int:
        """The device that gave the row its points, by position, or `NO_DEVICE`."""

    def total(self, points: int) -> float:
        """The points as people are shown them, 0 to 100."""
