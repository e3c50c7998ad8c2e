"""A class: all pods of one shape, and the score of every node for them, kept up to date.

The first question about a shape looks at every node, in a few array operations. After that a class
looks only at the rows that changed since it was last asked, so a decision costs what changed and
not what the cluster has.

Invariant: after `refresh`, `score[row]` is the node's points, or -1 where a filter refuses it; the
one thing it cannot see, two containers that want the same device, `choose` finds and notes.
"""

from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from apportion.core.devices.demand import Demand, demand
from apportion.core.ledger.state import NodeState
from apportion.core.placement import packed
from apportion.core.placement.columns import POINTS, Columns, Rows
from apportion.core.placement.filters import FITS, RANK, refused_kind, standing_refusal
from apportion.core.placement.filters import nodes as node_filters
from apportion.core.placement.scores import NODE_SCORES
from apportion_schemas import Ask, Device, DeviceConstraints, RefusalCode, Shape

REFUSED: Final = -1
SLICE_STATES: Final = 256  # every mask of a card's eight memory slices
EVERY_ROW: Final = slice(None)


class AskColumns:
    """One ask against every device: what must be free there, and where it can never be met.

    `demands`, `need_of_kind` and `instance_fits` have an entry for each kind of device; `need` is
    for each device what must be free, packed, or `NEVER`.
    """

    def __init__(self, ask: Ask, shape: Shape) -> None:
        self.ask = ask
        self.constraints = shape.devices
        self.demands: list[Demand | RefusalCode] = [RefusalCode.NO_SUCH_DEVICE]
        self.need_of_kind = np.array([packed.NEVER], np.int64)
        self.instance_fits = np.ones((1, SLICE_STATES), np.bool_)
        self.cuts_instances = False
        self.need = np.zeros((0, 0), np.int64)

    def rebuild(self, columns: Columns, rows: Rows | slice) -> None:
        """Work out the standing needs of these rows again."""
        for device in columns.kinds[len(self.demands) - 1 :]:
            self._learn(device)
        if self.need.shape != columns.kind.shape:
            self.need = np.empty(columns.kind.shape, np.int64)
        need = self.need_of_kind[columns.kind[rows]]
        indexes = self.constraints.indexes
        if indexes:
            need[~np.isin(columns.index[rows], indexes)] = packed.NEVER
        if self.constraints.use_ids or self.constraints.nouse_ids:
            self._exclude_ids(columns, rows, need)
        self.need[rows] = need

    def fits(
        self, columns: Columns, rows: Rows | slice, free: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which of these rows have enough devices; `free` is their free amounts with guards set."""
        enough = (free - self.need[rows]) & packed.GUARDS == packed.GUARDS
        if self.cuts_instances:
            enough &= self.instance_fits[columns.kind[rows], columns.slices[rows]]
        fit: NDArray[np.bool_]
        fit = enough.any(1) if self.ask.count == 1 else enough.sum(1) >= self.ask.count
        return fit

    def _learn(self, device: Device) -> None:
        anywhere = self.constraints
        code = refused_kind(self.ask, _without_places(anywhere), device)
        known = code or demand(self.ask, device)
        need, fits = packed.NEVER, np.ones((1, SLICE_STATES), np.bool_)
        if isinstance(known, Demand):
            need = packed.device_amounts(
                known.memory_mib,
                known.cores_needed,
                device.slots if known.alone else 1,
                known.template_cpu,
            )
            if known.profile is not None:
                self.cuts_instances = True
                states = np.arange(SLICE_STATES)
                fits[0] = np.logical_or.reduce([(states & mask) == 0 for _, mask in known.places])
        self.demands.append(known)
        self.need_of_kind = np.append(self.need_of_kind, np.int64(need))
        self.instance_fits = np.concatenate([self.instance_fits, fits])

    def _exclude_ids(self, columns: Columns, rows: Rows | slice, need: NDArray[np.int64]) -> None:
        constraints = self.constraints
        wanted, unwanted = set(constraints.use_ids), set(constraints.nouse_ids)
        chosen = np.arange(len(columns.nodes))[rows]
        for position, row in enumerate(chosen.tolist()):
            for column, state in enumerate(columns.nodes[row].devices):
                name = state.device.id
                if name in unwanted or (wanted and name not in wanted):
                    need[position, column] = packed.NEVER


class PlacementClass:
    """The pods of one shape, against every node."""

    def __init__(self, shape: Shape, node_policy: str) -> None:
        self.shape = shape
        self.node_policy = shape.node_policy or node_policy
        self.asks = [AskColumns(ask, shape) for ask in shape.asks]
        self.score: NDArray[np.int32] = np.zeros(0, np.int32)
        self.fitting = 0
        self.collided: set[int] = set()
        self.standing: NDArray[np.uint8] = np.zeros(0, np.uint8)
        needs = shape.node
        self._room_needed = packed.node_room(needs.cpu_milli, needs.memory_mib, 1)
        self._need_room = np.zeros(0, np.int64)
        self._preferred: NDArray[np.int32] | None = None
        self._generation = -1
        self._changed_seen = 0
        self._standing_seen = 0

    def refresh(self, columns: Columns) -> None:
        """Look again at what changed since the last time."""
        standing = columns.standing_changed.since(self._standing_seen)
        changed = columns.changed.since(self._changed_seen)
        self._standing_seen, self._changed_seen = columns.standing_changed.end, columns.changed.end
        if self._generation != columns.generation or standing is None or changed is None:
            self._generation = columns.generation
            self._resize(len(columns.names))
            self._rebuild(columns, EVERY_ROW)
            self._evaluate(columns, EVERY_ROW)
            return
        if standing:
            self._rebuild(columns, np.unique(np.array(standing)))
        if changed:
            rows = np.array(changed)
            self._evaluate(columns, np.unique(rows) if len(changed) > len(columns.names) else rows)

    def exclude(self, row: int) -> None:
        """Refuse a row on which the containers collide, until it changes."""
        if self.score[row] != REFUSED:
            self.score[row] = REFUSED
            self.fitting -= 1
        self.collided.add(row)

    def best(self, count: int) -> list[tuple[int, int]]:
        """The best rows with their points, at most `count`; equals in the order of names."""
        score = self.score
        found: list[tuple[int, int]] = []
        while len(found) < min(count, len(score)):
            row = int(score.argmax())
            points = int(score[row])
            if points == REFUSED:
                break
            found.append((row, points))
            score[row] = REFUSED
        for row, points in found:
            score[row] = points
        return found

    def _resize(self, rows: int) -> None:
        self.score = np.full(rows, REFUSED, np.int32)
        self.standing = np.full(rows, FITS, np.uint8)
        self._need_room = np.zeros(rows, np.int64)
        self._preferred = np.zeros(rows, np.int32) if self.shape.node.preferred else None
        self.fitting = 0
        self.collided.clear()

    def _rebuild(self, columns: Columns, rows: Rows | slice) -> None:
        """Standing answers: labels, taints, readiness, and what the devices are."""
        for ask in self.asks:
            ask.rebuild(columns, rows)
        self.standing[rows] = FITS
        needs = self.shape.node
        picky = bool(needs.selector or needs.required)
        every = np.arange(len(columns.names))[rows]
        for row in (every if picky else every[~columns.welcoming[rows]]).tolist():
            code = standing_refusal(self.shape, columns.nodes[row])
            if code is not None:
                self.standing[row] = RANK[code]
        refused = self.standing[rows] != FITS
        self._need_room[rows] = np.where(refused, packed.NO_ROOM, self._room_needed)
        if self._preferred is not None:
            for row in every.tolist():
                self._preferred[row] = _preference(self.shape, columns.nodes[row])

    def _evaluate(self, columns: Columns, rows: Rows | slice) -> None:
        room = columns.room[rows] | packed.ROOM_GUARDS
        fit = (room - self._need_room[rows]) & packed.ROOM_GUARDS == packed.ROOM_GUARDS
        if self.asks:
            free = columns.free[rows] | packed.GUARDS
            for ask in self.asks:
                fit &= ask.fits(columns, rows, free)
        if self.shape.node.extended:
            fit &= _extended_fits(self.shape, columns, rows)
        points = NODE_SCORES[self.node_policy](columns, rows, uses_devices=bool(self.asks))
        if self._preferred is not None:
            points = (points + self._preferred[rows]) // 2
        self.score[rows] = np.where(fit, points, REFUSED)
        self.fitting = int(np.count_nonzero(self.score != REFUSED))
        if self.collided:
            self.collided.difference_update(np.arange(len(columns.names))[rows].tolist())


def _without_places(constraints: DeviceConstraints) -> DeviceConstraints:
    """The constraints that a kind of device can answer: all but those on ids and indexes."""
    return structs.replace(constraints, use_ids=(), nouse_ids=(), indexes=())


def _preference(shape: Shape, node: NodeState) -> int:
    """Preferred node affinity: the part of the weights that the node gains, in points."""
    terms = shape.node.preferred
    gained = sum(term.weight for term in terms if node_filters.matches(term.term, node))
    return gained * POINTS // sum(term.weight for term in terms)


def _extended_fits(shape: Shape, columns: Columns, rows: Rows | slice) -> NDArray[np.bool_]:
    chosen = np.arange(len(columns.names))[rows].tolist()
    pairs = (node_filters.extended(shape, columns.nodes[row]) for row in chosen)
    return np.array([available >= needed for needed, available in pairs], np.bool_)
