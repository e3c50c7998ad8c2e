"""Place pods whose node kube-scheduler chooses, and report which nodes have the devices.

kube-scheduler asks our extender about devices only. Its choice of a node is kept here until the
result is in the ledger. Invariant: a query changes neither the state nor a later answer."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.assign.devices import assign
from apportion.core.placement.classes import ClassCache, PlacementClass
from apportion.core.placement.feasibility.evaluator import ORDER
from apportion.core.placement.finder import placed_on
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.limits.holdings import NEVER_SEEN
from apportion.core.placement.limits.limits import Kept, Limits
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
    Shape,
    Toleration,
)

_ANY_TAINT: Final = (Toleration(operator="Exists"),)
_encode = msgspec.json.Encoder(order="sorted").encode
# pending choices; beyond, the oldest is dropped, and its chooser retries
CHOICES_MAX: Final = 10_000


def devices_shape(shape: Shape) -> Shape:
    """Return the shape with its device requests only."""
    node = NodeConstraints(tolerations=_ANY_TAINT)
    return structs.replace(shape, node=node, pods=PodConstraints())


class FilterResult(NamedTuple):
    """The nodes that fit, with their points, and the refused ones, with their codes."""

    fits: dict[str, int]
    refused: dict[str, RefusalCode | None]


class FitQuery:
    """Finds the nodes that have the devices for a pod."""

    def __init__(self, state: State, columns: Columns | None = None) -> None:
        self._state = state
        self._columns = columns
        self._follows = columns is None
        self._classes: ClassCache | None = None

    def observe(self, change: Change) -> None:
        """Apply the fold's change to the indexes."""
        if self._follows and self._columns is not None and change.node is not None:
            self._columns.touch(change.node, change.shares)

    @property
    def columns(self) -> Columns:
        """Return the index of nodes; it may lag behind the state until the next query."""
        if self._columns is None:
            self._columns = Columns(self._state)
        return self._columns

    def prepare(self) -> bool:
        """Compute the values of more nodes at new prices. Return True if none is left."""
        return self._classes is None or self._classes.prepare()

    def filter(self, shape: Shape, names: Iterable[str]) -> FilterResult:
        """Return which of these nodes fit a pod of this shape, and why the others do not."""
        class_, columns = self._class_of(shape), self.columns
        rows = {name: self._row(columns, name) for name in names}
        fits: dict[str, int] = {}
        for name, row in rows.items():
            if row is None or int(class_.board.points[row]) == REFUSED:
                continue
            if class_.may_collide and assign(class_, columns, row) is None:
                class_.exclude(row)  # its containers need the same devices
            else:
                fits[name] = int(class_.board.points[row])
        others = {name: row for name, row in rows.items() if name not in fits}
        ranks = node_ranks(class_, columns).tolist() if others else []
        refused = {name: None if row is None else ORDER[ranks[row]] for name, row in others.items()}
        return FilterResult(fits, refused)

    def place_on(self, pod: PodState, name: str) -> PodPlaced | None:
        """Return the placement of the pod on this node, or None if the pod does not fit."""
        class_, columns = self._class_of(pod.submitted.shape), self.columns
        row = self._row(columns, name)
        if row is None or int(class_.board.points[row]) == REFUSED:
            return None
        shares = assign(class_, columns, row)
        if shares is None:
            class_.exclude(row)
            return None
        return placed_on(
            pod,
            class_,
            columns,
            [(row, int(class_.board.points[row]))],
            shares,
            fitting=class_.fitting,
        )

    def shortage(self, shape: Shape, name: str) -> tuple[RefusalCode, NearMiss | None]:
        """Return why the pod does not fit on this node; call it only in that case."""
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
    """Pods for which kube-scheduler chose a node, until the ledger has the result."""

    def __init__(self, state: State, columns: Columns | None = None) -> None:
        self._state = state
        self._fit_query = FitQuery(state, columns)
        self._limits: Limits | None = None  # until there is a choice
        self._nodes: dict[str, str] = {}

    def choose(self, uid: str, node: str) -> None:
        """Request a placement of the pod on this node; a later request replaces an earlier one."""
        self._nodes.pop(uid, None)
        self._nodes[uid] = node
        if len(self._nodes) > CHOICES_MAX:
            del self._nodes[next(iter(self._nodes))]

    def observe(self, change: Change) -> None:
        """Apply the fold's change, and drop choices whose result is in the ledger."""
        self._fit_query.observe(change)
        if self._limits is not None:
            self._limits.observe(change)
        data = change.data
        if isinstance(data, PodPlaced | PodRefused):
            self._nodes.pop(data.pod, None)
        elif isinstance(data, PodGone):
            self._nodes.pop(data.uid, None)

    def prepare(self) -> bool:
        """Do one step of the slow preparation for `decide`. Return True if none is left."""
        return not self._nodes or self._fit_query.prepare()

    def decide(
        self, owns: Callable[[PodState], bool], *, events_max: int
    ) -> list[tuple[PodState, PodPlaced | PodRefused]]:
        """Place or refuse our pods on the nodes that kube-scheduler chose for them."""
        decided: list[tuple[PodState, PodPlaced | PodRefused]] = []
        reservations: Reservations | None = None
        for uid, name in self._nodes.items():
            pod = self._state.pods.get(uid)
            if pod is None or not is_pending(self._state, pod) or not owns(pod):
                continue
            if self._limits is None:
                self._limits = Limits(self._state)
            if reservations is None:  # without neighbours, because no affinity is checked here
                columns = self._fit_query.columns
                reservations = Reservations(self._state, columns, self._limits, None)
            reservations.charge()
            found = self._place(pod, name, self._limits)
            decided.append((pod, found))
            if isinstance(found, PodPlaced):
                reservations.reserve(pod, found)
            if len(decided) >= events_max:
                break
        if reservations is not None:
            reservations.roll_back()
        return decided

    def _place(self, pod: PodState, name: str, limits: Limits) -> PodPlaced | PodRefused:
        found = self._fit_query.place_on(pod, name)
        if found is None:
            code, nearest = self._fit_query.shortage(pod.submitted.shape, name)
            return refusal_of(pod, Reasons({code: 1}, (nearest,) if nearest else (), 1))
        exceeded = limits.exceeded(pod, name, found.shares)
        if exceeded is None:
            return found
        kept = Kept(exceeded, None, NEVER_SEEN)
        return refusal_of(pod, Reasons({exceeded.code: 1}, (), 1, limit=kept))
