"""Index the labels of nodes as columns: for each label key in use, the value by row.

Most keys have few distinct values, so a test of ten thousand nodes runs once per value."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import eq
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from apportion.core.ledger.state import NodeState
from apportion.core.placement.index.row_log import RowLog, Rows
from apportion.core.workloads.pods.affinity import holds
from apportion_schemas import HOSTNAME, NodeConstraints, NodeExpression

NO_VALUE: Final = -1
OWN_NAME: Final = "\0metadata.name"  # no label has such a key
KEYS_MAX: Final = 256  # label keys kept; the least recently used one is dropped
SLACK: Final = 64  # values of a key, beyond twice as many as nodes, before old ones are dropped
FEW: Final = 64  # nodes to test directly for a key that is not cached

Flags = NDArray[np.bool_]
Ids = NDArray[np.int64]
ValueOf = Callable[[NodeState, str], str | None]


class Domains(NamedTuple):
    """The topology domains of one level, as numbers."""

    ids: Ids  # of each row; `NO_VALUE` outside of all domains
    first: Ids  # the first row of each domain; `NO_VALUE` if it has none
    names: list[str]
    by_name: Ids  # the position of each domain among all, by name and then by number

    def within(self, rows: Flags) -> "Domains":
        """Return the parts of these domains in the given rows, with the same numbers."""
        ids = np.where(rows, self.ids, NO_VALUE)
        return self._replace(ids=ids, first=_first_rows(ids, len(self.names)))


def numbered(ids: Ids, nodes: Sequence[NodeState], level: str) -> Domains:
    """Return the domains with these numbers, named by a label; `nodes` has the node of each row."""
    first = _first_rows(ids, int(ids.max(initial=NO_VALUE)) + 1)
    names = [
        "" if row == NO_VALUE else domain_of(nodes[row], level) or "" for row in first.tolist()
    ]
    by_name = np.empty(len(names), np.int64)
    by_name[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return Domains(ids, first, names, by_name)


def _first_rows(ids: Ids, count: int) -> Ids:
    first: Ids = np.full(count, NO_VALUE, np.int64)
    rows = np.flatnonzero(ids != NO_VALUE)[::-1]  # of a repeated index, the last value stays
    first[ids[rows]] = rows
    return first


class Nodes(Protocol):
    """The part of `Columns` that this index reads."""

    generation: int
    nodes: list[NodeState]
    every: Rows
    facts_changed: RowLog


def label(node: NodeState, key: str) -> str | None:
    """Return the node's label, or None without it; for the key `OWN_NAME`, the node's name."""
    return node.name if key == OWN_NAME else node.host.labels.get(key)


def domain_of(node: NodeState, key: str) -> str | None:
    """Return the node's topology domain: its value of the label, or None without it.

    A node without the label `kubernetes.io/hostname` is its own host, because not every ledger has
    that label for every node."""
    value = label(node, key)
    return node.name or None if value is None and key == HOSTNAME else value


class LabelColumns:
    """Caches the values of each label key in use, as a column with a row per node.

    Use one instance with one `Nodes` object only."""

    def __init__(self, value_of: ValueOf = label) -> None:
        self._value_of = value_of
        self._keys: dict[str, _Key] = {}

    def ids(self, nodes: Nodes, key: str) -> Ids:
        """Return the label's value in each row, as a number; `NO_VALUE` without the label."""
        return self._column(nodes, key).ids

    def allowed(self, nodes: Nodes, needs: NodeConstraints, rows: Rows) -> Flags:
        """Return for each of these rows whether its labels meet the pod's node requirements."""
        found: Flags = np.ones(len(rows), np.bool_)
        for key, value in needs.selector.items():
            found &= self._where(nodes, key, rows, partial(eq, value))
        if needs.required:
            found &= np.logical_or.reduce(
                [self.match(nodes, term, rows) for term in needs.required]
            )
        return found

    def match(self, nodes: Nodes, term: Sequence[NodeExpression], rows: Rows) -> Flags:
        """Return for each row whether all expressions match; an empty term matches nothing."""
        found: Flags = np.full(len(rows), bool(term))
        for each in term:
            key = OWN_NAME if each.of_field else each.key
            found &= self._where(nodes, key, rows, partial(holds, each))
        return found

    def _where(
        self, nodes: Nodes, key: str, rows: Rows, test: Callable[[str | None], bool]
    ) -> Flags:
        # Whether the value of each row, or None, passes the test.
        if key not in self._keys and len(rows) <= FEW:
            values = [self._value_of(nodes.nodes[row], key) for row in rows.tolist()]
            return np.array([test(value) for value in values], np.bool_)
        column = self._column(nodes, key)
        if len(rows) < len(column.values):
            return np.array([test(column.values[at]) for at in column.ids[rows]], np.bool_)
        return np.array([test(value) for value in column.values], np.bool_)[column.ids[rows]]

    def _column(self, nodes: Nodes, key: str) -> "_Key":
        found = self._keys.pop(key, None) or _Key(key, self._value_of)
        if len(self._keys) >= KEYS_MAX:
            del self._keys[next(iter(self._keys))]
        self._keys[key] = found
        found.refresh(nodes)
        return found


class _Key:
    """The values of one label, as numbers by row."""

    def __init__(self, key: str, value_of: ValueOf) -> None:
        self.ids: Ids = np.zeros(0, np.int64)  # a number per row
        self.values: list[str | None] = [None]
        self._key, self._value_of = key, value_of
        self._numbers: dict[str | None, int] = {None: NO_VALUE}
        self._generation = -1
        self._seen = 0

    def refresh(self, columns: Nodes) -> None:
        """Update the rows whose node changed."""
        if self._seen == columns.facts_changed.end and self._generation == columns.generation:
            return
        rows = None
        if self._generation == columns.generation and len(self.values) <= SLACK + 2 * len(self.ids):
            rows = columns.facts_changed.distinct_since(self._seen, columns.every)
        if rows is None:
            self.ids = np.full(len(columns.nodes), NO_VALUE, np.int64)
            self.values, self._numbers = [None], {None: NO_VALUE}
            self._generation, rows = columns.generation, columns.every
        numbers = []
        for row in rows.tolist():
            value = self._value_of(columns.nodes[row], self._key)
            number = self._numbers.get(value)
            if number is None:
                number = self._numbers[value] = len(self.values) - 1
                self.values.insert(number, value)
            numbers.append(number)
        self.ids[rows] = numbers
        self._seen = columns.facts_changed.end
