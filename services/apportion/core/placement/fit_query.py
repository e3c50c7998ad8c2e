"""Which nodes have the devices for a pod, and how good each is: questions, without a decision.

For who chooses the node of a pod itself and only asks about its devices, as kube-scheduler does
through our extender. Labels, taints, CPU and the like are its business, so the shape is asked
without them. It asks the same columns and classes as the engine. Invariant: asking changes nothing,
neither the state nor an answer that comes later.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.placement.assign.devices import assign
from apportion.core.placement.class_cache import ClassCache
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.feasibility import ORDER
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.refusals import miss, node_ranks
from apportion_schemas import (
    NearMiss,
    NodeConstraints,
    PodConstraints,
    RefusalCode,
    Shape,
    Share,
    Toleration,
)

_ANY_TAINT: Final = (Toleration(operator="Exists"),)

_encode = msgspec.json.Encoder(order="sorted").encode


def devices_shape(shape: Shape) -> Shape:
    """The shape without anything that a node must have beside devices."""
    node = NodeConstraints(tolerations=_ANY_TAINT)
    return structs.replace(shape, node=node, pods=PodConstraints())


class FilterResult(NamedTuple):
    """Of the nodes that were asked about: those that fit, with their points, and why others do not.

    Of a node under None nobody has told us anything.
    """

    fits: dict[str, int]
    refused: dict[str, RefusalCode | None]


class NodeFit(NamedTuple):
    """A node that fits: the shares there, the points as people see them, and how many fit."""

    shares: tuple[Share, ...]
    policy: str
    total: float
    fitting: int


class FitQuery:
    """Answers over one state; what it derives is kept up by `observe`, and made at first use.

    `columns` are those of an engine over the same state, which keeps them up to date itself.
    """

    def __init__(self, state: State, columns: Columns | None = None) -> None:
        self._state = state
        self._columns = columns
        self._follows = columns is None
        self._classes: ClassCache | None = None

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed."""
        if self._follows and self._columns is not None and change.node is not None:
            self._columns.touch(change.node, change.shares)

    @property
    def columns(self) -> Columns:
        """The nodes, up to date but for those that are touched since the last question."""
        if self._columns is None:
            self._columns = Columns(self._state)
        return self._columns

    def prepare(self) -> bool:
        """Get new prices ready, a part at a time; whether they are. See `ClassCache.prepare`."""
        return self._classes is None or self._classes.prepare()

    def filter(self, shape: Shape, names: Iterable[str]) -> FilterResult:
        """What each of these nodes is to a pod of this shape."""
        class_, columns = self._class_of(shape), self.columns
        rows = {name: self._row(columns, name) for name in names}
        fits: dict[str, int] = {}
        refused: dict[str, RefusalCode | None] = {}
        for name, row in rows.items():
            points = REFUSED if row is None else int(class_.board.points[row])
            may_collide = row is not None and points != REFUSED and class_.may_collide
            if row is not None and may_collide and assign(class_, columns, row) is None:
                class_.exclude(row)  # its containers want the same devices
                points = REFUSED
            if points == REFUSED:
                refused[name] = None
            else:
                fits[name] = points
        if refused:
            ranks = node_ranks(class_, columns).tolist()
            for name in refused:
                at = rows[name]
                refused[name] = None if at is None else ORDER[ranks[at]]
        return FilterResult(fits, refused)

    def fit_on(self, shape: Shape, name: str) -> NodeFit | None:
        """A pod of this shape on this node, or None where it does not fit."""
        class_, columns = self._class_of(shape), self.columns
        row = self._row(columns, name)
        if row is None or int(class_.board.points[row]) == REFUSED:
            return None
        shares = assign(class_, columns, row)
        if shares is None:
            class_.exclude(row)
            return None
        rule = class_.node_score
        total = rule.total(int(class_.board.points[row]))
        return NodeFit(shares, rule.policy, total, class_.fitting)

    def shortage(self, shape: Shape, name: str) -> tuple[RefusalCode, NearMiss | None]:
        """Why a pod of this shape does not fit on this node, which it does not."""
        class_, columns = self._class_of(shape), self.columns
        row = self._row(columns, name)
        if row is None:
            return RefusalCode.NODE_GONE, None
        code = ORDER[int(node_ranks(class_, columns)[row])]
        return code, miss(class_, columns, row, code)[1]

    def _row(self, columns: Columns, name: str) -> int | None:
        return columns.row_of(name) if name in self._state.nodes else None

    def _class_of(self, shape: Shape) -> PlacementClass:
        if self._classes is None:
            self._classes = ClassCache(self._state, self.columns)
        shape = devices_shape(shape)
        return self._classes.class_of(_encode(shape), shape)
