"""Which rows of the index are of nodes that fall into one scheduler's shard.

Invariant: `of` answers as if every name were asked about anew; only those of rows that changed are.
"""

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index.columns import Columns
from apportion.core.placement.queueing.sharding import Shard


class OwnRows:
    """The rows of one shard, always asked with the same columns."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._rows = np.zeros(0, np.bool_)
        self._generation = -1
        self._seen = 0

    def of(self, columns: Columns) -> NDArray[np.bool_]:
        """For each row whether its node is of the shard."""
        rows = columns.facts_changed.since(self._seen)
        if self._generation != columns.generation or rows is None:
            self._generation, rows = columns.generation, columns.every
            self._rows = np.zeros(len(columns.names), np.bool_)
        self._seen = columns.facts_changed.end
        for row in rows.tolist():
            self._rows[row] = self._shard.owns(columns.names[row])
        return self._rows
