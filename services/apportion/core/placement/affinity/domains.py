"""Topology domains: which nodes have the same value of a label.

Invariant: after `ids`, row i has a number that it shares with exactly the rows of the same value,
or `NOWHERE` where the node lacks the label. A node without the label `kubernetes.io/hostname` is
its own host all the same: where there is no Kubernetes nobody sets it.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.ledger.state import NodeState
from apportion.core.placement.index.columns import Columns

NOWHERE: Final = -1
HOSTNAME: Final = "kubernetes.io/hostname"
KEYS_MAX: Final = 64  # label keys kept; the one not asked for longest is dropped

Ids = NDArray[np.int64]


class Domains:
    """The domains of every label key that somebody asked for."""

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}

    def ids(self, columns: Columns, key: str) -> Ids:
        """The domain of each row; nodes told of anew since the last time are looked at."""
        found = self._keys.pop(key, None) or _Key(key)
        if len(self._keys) >= KEYS_MAX:
            del self._keys[next(iter(self._keys))]
        self._keys[key] = found
        found.refresh(columns)
        return found.ids


class _Key:
    """One label key."""

    def __init__(self, key: str) -> None:
        self.ids: Ids = np.zeros(0, np.int64)
        self._key = key
        self._numbers: dict[str, int] = {}
        self._generation = -1
        self._seen = 0

    def refresh(self, columns: Columns) -> None:
        """Look again at the rows whose node was told of anew."""
        rows = columns.facts_changed.since(self._seen)
        if self._generation != columns.generation or rows is None:
            self.ids = np.full(len(columns.names), NOWHERE, np.int64)
            self._numbers = {}
            self._generation, rows = columns.generation, columns.every
        for row in np.unique(rows).tolist():
            value = self._value(columns.nodes[row])
            number = NOWHERE
            if value is not None:
                number = self._numbers.setdefault(value, len(self._numbers))
            self.ids[row] = number
        self._seen = columns.facts_changed.end

    def _value(self, node: NodeState) -> str | None:
        value = node.host.labels.get(self._key)
        return node.name or None if value is None and self._key == HOSTNAME else value
