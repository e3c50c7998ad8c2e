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

from apportion.core.devices.demand import Demand, Known, demand
from apportion.core.devices.geometries import SLICE_STATES
from apportion.core.ledger.state import NodeState
from apportion.core.placement import packed
from apportion.core.placement.chains import Chain, chain
from apportion.core.placement.columns import FIRST_KIND, HOST, POINTS, Columns, Rows, rows_of
from apportion.core.placement.filters import FITS, RANK, refused_kind, standing_refusal
from apportion.core.placement.filters import devices as device_rules
from apportion.core.placement.filters import nodes as node_filters
from apportion.core.placement.pricing.market import Market
from apportion.core.placement.relations import Relations
from apportion.core.placement.scores import WEIGH_SHAPES, node_score
from apportion.core.placement.scores.devices import Order, first
from apportion.core.placement.scores.look import NO_DEVICE, Look, NodeScore
from apportion.core.placement.scores.orders import order_of
from apportion.core.placement.scores.weighed import WEIGHABLE, Weighed
from apportion_schemas import (
    Ask,
    Device,
    DeviceConstraints,
    PolicyChanged,
    RefusalCode,
    Shape,
)
from apportion_schemas.configuration import GROUPS_MAX

REFUSED: Final = -1
_GUARDS: Final = np.array(packed.GUARDS)  # numpy takes an array of no dimensions faster than an int
_REFUSED: Final = np.int32(REFUSED)


class AskColumns:
    """One ask against every kind of device: what must be free there, and where it never fits.

    `host_need` is what the pod needs of the host, packed, which stands among the devices.
    `demands`, `needs` and `instance_fits` have an entry for each kind; a need is packed, `NEVER`
    where a device rule refuses the kind, and whether an instance fits depends on how the card is
    cut. `elsewhere` marks the devices that the pod's uuids and
    indexes leave out, None where it names none.
    """

    def __init__(
        self,
        ask: Ask,
        constraints: DeviceConstraints,
        chain: Chain,
        geometries: Known,
        *,
        host_need: int,
    ) -> None:
        self.ask = ask
        self.geometries = geometries
        self.constraints = constraints
        self.chain = chain
        self.demands: list[Demand | RefusalCode] = [RefusalCode.NO_SUCH_DEVICE] * FIRST_KIND
        self.needs: list[int] = [packed.NEVER, host_need]
        self._need = np.array(self.needs, np.int64)
        self._cuts = SLICE_STATES * (1 + GROUPS_MAX if geometries else 1)
        self.instance_fits = np.ones((FIRST_KIND, self._cuts), np.bool_)
        self.cuts_instances = False
        self.elsewhere: NDArray[np.bool_] | None = None

    def rebuild(self, columns: Columns, rows: Rows | None) -> None:
        """Work out again what stands for these rows until their nodes are reported anew."""
        for device in columns.kinds[len(self.demands) - FIRST_KIND :]:
            self._learn(device)
        wants = self.constraints
        if wants.indexes or wants.use_ids or wants.nouse_ids:
            if self.elsewhere is None or self.elsewhere.shape != columns.kind.shape:
                self.elsewhere = np.zeros(columns.kind.shape, np.bool_)
            for row in columns.positions(rows).tolist():
                self.elsewhere[row, 1:] = True
                for at, state in enumerate(columns.nodes[row].devices, 1):
                    device = state.device
                    there = device_rules.uuid(self.ask, wants, device)
                    there = there and device_rules.index(self.ask, wants, device)
                    self.elsewhere[row, at] = not there

    def demand_of(self, kind: int) -> Demand:
        """What the ask comes to on a device of a kind that does not refuse it."""
        found = self.demands[kind]
        if not isinstance(found, Demand):
            raise TypeError(f"kind {kind} refuses the ask: {found}")
        return found

    def look(
        self,
        columns: Columns,
        rows: Rows | None,
        free: NDArray[np.int64],
        kind: NDArray[np.intp],
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of these rows have enough, host and devices, and which of their devices do.

        `free` and `kind` are the rows' own.
        """
        left = free - self._need.take(kind)
        left &= _GUARDS
        enough: NDArray[np.bool_] = left == _GUARDS
        if self.cuts_instances:
            enough &= self.instance_fits[kind, rows_of(columns.cut, rows)]
        if self.elsewhere is not None:
            enough[:, HOST + 1 :] &= ~rows_of(self.elsewhere, rows)[:, HOST + 1 :]
        host = enough[:, HOST].copy()
        enough[:, HOST] = False
        if self.ask.count == 1:
            host &= np.bitwise_or.reduce(enough, 1)
        else:
            host &= enough.sum(1) >= self.ask.count
        return host, enough

    def _learn(self, device: Device) -> None:
        anywhere = structs.replace(self.constraints, use_ids=(), nouse_ids=(), indexes=())
        known: Demand | RefusalCode | None = refused_kind(self.ask, anywhere, device)
        known = known or demand(self.ask, device, self.geometries)
        if self.chain.idle_only and isinstance(known, Demand):
            known = known._replace(alone=True)
        need, fits = packed.NEVER, np.ones((1, self._cuts), np.bool_)
        if isinstance(known, Demand):
            need = packed.amounts(
                known.memory_mib,
                known.cores_needed,
                device.slots if known.alone else 1,
                known.template_cpu,
            )
            if known.profile is not None:
                self.cuts_instances = True
                fits[0] = _instance_fits(known, self._cuts)
        self.demands.append(known)
        self.needs.append(need)
        self._need = np.array(self.needs, np.int64)
        self.instance_fits = np.concatenate([self.instance_fits, fits])


def _instance_fits(wanted: Demand, cuts: int) -> NDArray[np.bool_]:
    """For each way in which a card may be cut (`cut_state`): whether it has room for the ask."""
    fits = np.zeros(cuts, np.bool_)
    slices = np.arange(SLICE_STATES)
    for place in wanted.options:
        first = place.number * SLICE_STATES
        fits[first : first + SLICE_STATES] |= (slices & place.mask) == 0
    fits[0] = bool(wanted.options)
    return fits


class PlacementClass:
    """The pods of one shape, against every node.

    `standing` is for each row the rank of the standing filter that refuses it, or `FITS`.
    `may_collide`: a node that no filter refuses may still not take the pod. `relations` are those
    to other pods, None where neither side minds.
    """

    def __init__(
        self,
        shape: Shape,
        policy: PolicyChanged,
        market: Market | None,
        geometries: Known = (),
        *,
        relations: Relations | None = None,
    ) -> None:
        self.shape = shape
        self.geometries = geometries
        self.market = market
        self.relations = relations
        device_policy = shape.device_policy or policy.device_policy
        self.chain = chain(device_policy)
        self._order = order_of(self.chain, shape.device_weights)
        self._follows_score = device_policy in WEIGH_SHAPES and shape.device_weights is None
        self.node_score = _node_score(shape, policy, market)
        needs = shape.node
        host_need = packed.amounts(needs.memory_mib, needs.cpu_milli, 1)
        self.asks = [
            AskColumns(ask, shape.devices, self.chain, geometries, host_need=host_need)
            for ask in shape.asks
        ]
        self.score: NDArray[np.int32] = np.zeros(0, np.int32)
        self._unrelated = self.score
        self._eligible: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.standing: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.may_collide = len(shape.asks) > 1 or shape.devices.numa_bind or self.chain.best_linked
        self.collided: set[int] = set()
        self._host_need = np.array(host_need)
        self._preferred: NDArray[np.int32] | None = None
        self._some_refused = False
        self._generation = -1
        self._changed_seen = 0
        self._standing_seen = 0

    @property
    def fitting(self) -> int:
        """How many nodes no filter refuses; where the containers collide is found by trying."""
        return int(np.count_nonzero(self.score != REFUSED)) + len(self.collided)

    @property
    def fits_somewhere(self) -> bool:
        """Whether any node could."""
        return bool(len(self.score)) and int(self.score.max()) != REFUSED

    def refresh(self, columns: Columns) -> None:
        """Look again at what changed since the last time."""
        standing = columns.standing_changed.since(self._standing_seen)
        changed = columns.changed.since(self._changed_seen)
        self._standing_seen, self._changed_seen = columns.standing_changed.end, columns.changed.end
        if self._generation != columns.generation or standing is None or changed is None:
            self._generation = columns.generation
            self._resize(len(columns.names))
            standing = changed = None
        elif len(changed) > len(columns.names):
            changed = None  # every row is fewer
        if standing is None or len(standing):
            self._rebuild(columns, None if standing is None else np.unique(standing))
        if changed is None or len(changed):
            self._evaluate(columns, changed)
        if self.relations is not None:
            self._relate(columns, self.relations, evaluated=changed is None or bool(len(changed)))

    def exclude(self, row: int) -> None:
        """Refuse a row on which the containers collide, until it changes."""
        self.score[row] = REFUSED
        self.collided.add(row)

    @property
    def prefers(self) -> bool:
        """Whether it prefers some nodes for their labels or for the pods there."""
        near = self.relations is not None and self.relations.points is not None
        return near or self._preferred is not None

    def best(self, count: int, *, first: NDArray[np.bool_] | None = None) -> list[tuple[int, int]]:
        """The best rows with their points, at most `count`; equals in the order of names.

        Of the rows that `first` marks, if any of them fits.
        """
        score = self.score
        if first is not None:
            among = np.where(first, score, _REFUSED)
            if len(among) and int(among.max()) != REFUSED:
                score = among
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

    def device_order(self, columns: Columns, row: int) -> Order:
        """In which order the devices of the node are tried: by policy, after the score's choice."""
        device = self.scored_device(row)
        if device == NO_DEVICE:
            return self._order
        return first(columns.nodes[row].devices[device], self._order)

    def scored_device(self, row: int) -> int:
        """The device that the score chose there, by position; `NO_DEVICE` if the policy does not
        follow it.
        """
        return self.node_score.device(row) if self._follows_score else NO_DEVICE

    def _resize(self, rows: int) -> None:
        self.score = np.full(rows, REFUSED, np.int32)
        self._unrelated = self.score if self.relations is None else self.score.copy()
        self._eligible = np.ones(rows, np.bool_)
        self.standing = np.full(rows, FITS, np.uint8)
        self._preferred = np.zeros(rows, np.int32) if self.shape.node.preferred else None
        self.collided.clear()

    def _rebuild(self, columns: Columns, rows: Rows | None) -> None:
        """Standing answers: labels, taints, readiness, and what the devices are."""
        for ask in self.asks:
            ask.rebuild(columns, rows)
        every = columns.positions(rows)
        self.standing[every] = FITS
        needs = self.shape.node
        picky = bool(needs.selector or needs.required)
        for row in (every if picky else every[~columns.welcoming[every]]).tolist():
            code = standing_refusal(self.shape, columns.nodes[row])
            if code is not None:
                self.standing[row] = RANK[code]
        self._some_refused = bool((self.standing != FITS).any())
        if self.relations is not None and self.relations.spreads:
            for row in every.tolist():
                self._eligible[row] = _counts_for_spread(self.shape, columns.nodes[row])
        if self._preferred is not None:
            for row in every.tolist():
                self._preferred[row] = _preference(self.shape, columns.nodes[row])

    def _evaluate(self, columns: Columns, rows: Rows | None) -> None:
        free, kind = rows_of(columns.free, rows), rows_of(columns.kind, rows)
        fit, enough = self._look(columns, rows, free, kind)
        if self._some_refused:
            fit &= rows_of(self.standing, rows) == FITS
        if self.shape.node.extended:
            fit &= _extended_fits(self.shape, columns, rows)
        points = self.node_score.points(Look(columns, rows, free, kind, fit, enough))
        if self._preferred is not None:
            points = (points + rows_of(self._preferred, rows)) // 2
        self._unrelated[... if rows is None else rows] = np.where(fit, points, _REFUSED)
        if self.collided:
            self.collided.difference_update(columns.positions(rows).tolist())

    def _look(
        self,
        columns: Columns,
        rows: Rows | None,
        free: NDArray[np.int64],
        kind: NDArray[np.intp],
    ) -> tuple[NDArray[np.bool_], list[NDArray[np.bool_]]]:
        """Which rows have enough for each of the asks, and for each ask which devices have."""
        if not self.asks:
            return ((free[:, HOST] - self._host_need) & _GUARDS) == _GUARDS, []
        fits, enough = zip(*[ask.look(columns, rows, free, kind) for ask in self.asks], strict=True)
        fit = fits[0]
        for other in fits[1:]:
            fit &= other
        return fit, list(enough)

    def _relate(self, columns: Columns, relations: Relations, *, evaluated: bool) -> None:
        """Refuse and prefer nodes for the pods that are there already."""
        if not relations.refresh(columns, self._eligible) and not evaluated:
            return
        points, fit = self._unrelated, self._unrelated != REFUSED
        if relations.points is not None:
            points = (points + relations.points) // 2
        self.score[:] = np.where(fit & (relations.ranks == FITS), points, _REFUSED)
        self.score[list(self.collided)] = REFUSED


def _counts_for_spread(shape: Shape, node: NodeState) -> bool:
    """Whether a node's pods count: Kubernetes honours the pod's own selector and affinity."""
    needed, available = node_filters.labels(shape, node)
    return node.present and available >= needed


def _node_score(shape: Shape, policy: PolicyChanged, market: Market | None) -> NodeScore:
    """The score by which the pods of a shape prefer nodes."""
    name = shape.node_policy or policy.node_policy
    if policy.node_weights is not None and name in WEIGHABLE:
        return Weighed(name, shape, policy.node_weights)
    return node_score(name, shape, market)


def _preference(shape: Shape, node: NodeState) -> int:
    """Preferred node affinity: the part of the weights that the node gains, in points."""
    terms = shape.node.preferred
    gained = sum(term.weight for term in terms if node_filters.matches(term.term, node))
    return gained * POINTS // sum(term.weight for term in terms)


def _extended_fits(shape: Shape, columns: Columns, rows: Rows | None) -> NDArray[np.bool_]:
    chosen = columns.positions(rows).tolist()
    pairs = (node_filters.extended(shape, columns.nodes[row]) for row in chosen)
    return np.array([available >= needed for needed, available in pairs], np.bool_)
