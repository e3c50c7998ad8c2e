"""Pods whose node somebody else chooses: which nodes have the devices, and the place there.

kube-scheduler asks about devices alone, through our extender. Labels, taints, CPU and the like are
its business, so the shape is asked without them, of the same columns and classes as the engine.

A choice is a wish, not a fact: it waits here until the ledger says what came of it, and whoever
made it asks again where that never happens. Invariants: asking changes nothing, neither the state
nor an answer that comes later; a pod with a chooser is placed on the node that was chosen last, by
a question about that node alone, and never by the queue."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.assign.devices import assign
from apportion.core.placement.classes import ClassCache, PlacementClass
from apportion.core.placement.feasibility import ORDER
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.limits.limits import NEVER_SEEN, Kept, Limits
from apportion.core.placement.queueing.shape_queue import Reasons, is_pending, refusal_of
from apportion.core.placement.refusals import miss, node_ranks
from apportion.core.placement.reservations import Reservations
from apportion_schemas import (
    NearMiss,
    NodeConstraints,
    PodConstraints,
    PodGone,
    PodPlaced,
    PodRefused,
    RefusalCode,
    Score,
    Shape,
    Share,
    Toleration,
)

_ANY_TAINT: Final = (Toleration(operator="Exists"),)
_encode = msgspec.json.Encoder(order="sorted").encode
CHOICES_MAX: Final = 10_000
"""Choices that wait; beyond, the oldest is forgotten, and whoever made it asks again."""


def devices_shape(shape: Shape) -> Shape:
    """The shape without anything that a node must have beside devices."""
    node = NodeConstraints(tolerations=_ANY_TAINT)
    return structs.replace(shape, node=node, pods=PodConstraints())


class FilterResult(NamedTuple):
    """Of the nodes that were asked about: those that fit, with their points, and why others do not.

    Of a node under None nobody has told us anything."""

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

    `columns` are those of an engine over the same state, which keeps them up to date itself."""

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


class ExternalChoices:
    """The choices that wait over one state; `columns` are those of its engine, if it has one."""

    def __init__(self, state: State, columns: Columns | None = None) -> None:
        self._state = state
        self._fit_query = FitQuery(state, columns)
        self._limits: Limits | None = None  # until there is a choice
        self._nodes: dict[str, str] = {}

    def choose(self, uid: str, node: str) -> None:
        """The pod is to be placed on this node; a choice before this one is void."""
        self._nodes.pop(uid, None)
        self._nodes[uid] = node
        if len(self._nodes) > CHOICES_MAX:
            del self._nodes[next(iter(self._nodes))]

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed."""
        self._fit_query.observe(change)
        if self._limits is not None:
            self._limits.observe(change)
        data = change.data
        if isinstance(data, PodPlaced | PodRefused):
            self._nodes.pop(data.pod, None)
        elif isinstance(data, PodGone):
            self._nodes.pop(data.uid, None)

    def prepare(self) -> bool:
        """Do a part of what `decide` needs that takes long; whether all of it is there."""
        return not self._nodes or self._fit_query.prepare()

    def decide(
        self, owns: Callable[[PodState], bool], *, events_max: int
    ) -> list[tuple[PodState, PodPlaced | PodRefused]]:
        """What becomes of the choices for pods that are ours, each beside those before it.

        A choice for a pod that is not in the ledger yet waits for it."""
        decided: list[tuple[PodState, PodPlaced | PodRefused]] = []
        reservations: Reservations | None = None
        for uid, name in self._nodes.items():
            pod = self._state.pods.get(uid)
            if pod is None or not is_pending(self._state, pod) or not owns(pod):
                continue
            if reservations is None:
                # Nobody asks which pods stand beside each other.
                limits, columns = self._known_limits(), self._fit_query.columns
                reservations = Reservations(self._state, columns, limits, None)
            reservations.charge()
            found = self._place(pod, name)
            decided.append((pod, found))
            if isinstance(found, PodPlaced):
                reservations.reserve(pod, found)
            if len(decided) >= events_max:
                break
        if reservations is not None:
            reservations.roll_back()
        return decided

    def _known_limits(self) -> Limits:
        if self._limits is None:
            self._limits = Limits(self._state)
        return self._limits

    def _place(self, pod: PodState, name: str) -> PodPlaced | PodRefused:
        about, shape = pod.submitted, pod.submitted.shape
        fit = self._fit_query.fit_on(shape, name)
        exceeded = self._known_limits().exceeded(pod, name, fit.shares) if fit is not None else None
        if exceeded is not None:
            kept = Kept(exceeded, None, NEVER_SEEN)
            return refusal_of(pod, Reasons({exceeded.code: 1}, (), 1, limit=kept))
        if fit is not None:
            return PodPlaced(
                pod=pod.uid,
                namespace=about.namespace,
                name=about.name,
                attempt=pod.attempt,
                node=name,
                shares=fit.shares,
                score=Score(node=name, total=fit.total, parts={fit.policy: fit.total}),
                fitting=fit.fitting,
                nodes=self._fit_query.columns.count,
            )
        code, nearest = self._fit_query.shortage(shape, name)
        return refusal_of(pod, Reasons({code: 1}, (nearest,) if nearest else (), 1))
