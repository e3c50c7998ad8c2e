"""Find the best node and devices for one pod: filter, score, choose devices, check limits.

Invariant: the result depends only on the state and the reservations."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice, product
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from apportion.core.bounded import remember
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.affinity.neighbours import NO_CONCERN, Concern, Neighbours
from apportion.core.placement.affinity.relations import Relations
from apportion.core.placement.assign.devices import assign
from apportion.core.placement.classes import ClassCache, PlacementClass
from apportion.core.placement.gang_models import NO_KINDS, Choice, GangModels, Kin
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.device_kinds import FIRST_KIND
from apportion.core.placement.index.labels import (
    KEYS_MAX,
    NO_VALUE,
    Domains,
    LabelColumns,
    domain_of,
    numbered,
)
from apportion.core.placement.kept_nodes import KeptNodes
from apportion.core.placement.limits.limits import Kept, Limits
from apportion.core.placement.queueing.keys import limits_key, wants_key
from apportion.core.placement.queueing.sharding import WHOLE, Shard
from apportion.core.placement.reservations import Reservations
from apportion.core.placement.volumes import Volumes
from apportion_schemas import PodPlaced, Score, Share

RUNNERS_UP: Final = 2
MODEL_CHOICES_MAX: Final = 16  # that one decision tries for a gang
_encode = msgspec.json.Encoder(order="sorted").encode


class _OwnRows:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._rows = np.zeros(0, np.bool_)
        self._generation = -1
        self._seen = 0

    def of(self, columns: Columns) -> NDArray[np.bool_]:
        """Return for each row whether its node is in the shard; pass the same columns each time."""
        rows = columns.facts_changed.since(self._seen)
        if self._generation != columns.generation or rows is None:
            self._generation, rows = columns.generation, columns.every
            self._rows = np.zeros(len(columns.names), np.bool_)
        self._seen = columns.facts_changed.end
        for row in rows.tolist():
            self._rows[row] = self._shard.owns(columns.names[row])
        return self._rows


def placed_on(
    pod: PodState,
    class_: PlacementClass,
    columns: Columns,
    best: list[tuple[int, int]],
    shares: tuple[Share, ...],
    *,
    fitting: int,
) -> PodPlaced:
    """Return the event that places the pod on the first node of `best`.

    `fitting` is how many nodes pass every filter."""
    about, rule = pod.submitted, class_.node_score
    scores = []
    for row, points in best:
        total = rule.total(points)
        scores.append(Score(node=columns.names[row], total=total, parts={rule.policy: total}))
    return PodPlaced(
        pod=about.uid,
        namespace=about.namespace,
        name=about.name,
        attempt=pod.attempt,
        node=scores[0].node,
        shares=shares,
        score=scores[0],
        runners_up=tuple(scores[1:]),
        fitting=fitting,
        nodes=columns.count,
    )


class PlaceFinder:
    """Finds the best node for a pod, counting the placements reserved so far."""

    def __init__(
        self, state: State, limits: Limits, neighbours: Neighbours, reservations: Reservations
    ) -> None:
        self._state = state
        self._limits = limits
        self._neighbours = neighbours
        self._reservations = reservations
        self.columns: Columns = reservations.columns
        self._values = LabelColumns(domain_of)
        self._domains_of: dict[tuple[str, ...], Domains] = {}
        self._domains_as_of = (-1, -1)
        self._rows_without: dict[frozenset[int], NDArray[np.bool_] | None] = {}
        self._rows_as_of = (-1, -1)
        self.volumes = Volumes(state)
        self.models = GangModels(state, reservations, self.columns.kinds, FIRST_KIND)
        self.classes = ClassCache(state, self.columns)
        self._shard = WHOLE
        self.apart = False
        self._own_rows: _OwnRows | None = None
        self.kept = KeptNodes(state, limits)
        self.reserving = state.reserved is not None
        self.reserves = bool(self.kept.after)  # the configuration asks for reservations

    def follow_reservation(self) -> None:
        """Update after the reservation of nodes, or the configuration, may have changed."""
        self.kept.follow()
        self.reserving = self._state.reserved is not None
        self.reserves = bool(self.kept.after)

    @property
    def limited(self) -> bool:
        """Return True if any queue or namespace has a limit."""
        return self._limits.active

    def own(self, shard: Shard) -> None:
        """Set the shard whose nodes come first while `apart` is set."""
        self._shard = shard
        self._own_rows = None

    def find(self, pod: PodState, among: NDArray[np.bool_] | None = None) -> PodPlaced | None:
        """Return the best placement within limits, or None; `among` restricts the nodes."""
        if self._limits.active and self._limits.bounded:
            return self.look_within(pod, among)[0]
        return self._best(pod, NO_KINDS, among)

    def look_within(
        self, pod: PodState, among: NDArray[np.bool_] | None = None
    ) -> tuple[PodPlaced | None, Kept | None]:
        """Return the best placement within limits, or the limit that rules out fitting nodes."""
        self._reservations.charge()
        first = self._limits.exceeded(pod)
        if first is not None:
            return None, Kept(first, None, self._limits.seen(pod))
        without = beyond = NO_KINDS
        while True:
            found = self._best(pod, without, among)
            exceeded = (
                None if found is None else self._limits.exceeded(pod, found.node, found.shares)
            )
            if found is None or exceeded is None:
                break
            first = first or exceeded
            asks = self.class_of(pod, without=without).asks
            beyond |= self._limits.kinds_beyond(
                pod,
                [(each.demands, each.ask.count) for each in asks],
                list(enumerate(self.columns.kinds, FIRST_KIND)),
            )
            without |= beyond | self.columns.kinds_of(found.node, found.shares)
        if found is not None or first is None:
            return found, None
        return None, Kept(first, beyond, self._limits.seen(pod))

    def class_of(
        self, pod: PodState, *, alone: bool = False, without: frozenset[int] = NO_KINDS
    ) -> PlacementClass:
        """Return the pod's placement class; `alone` leaves out affinity and spread terms."""
        concern = NO_CONCERN if alone else self._neighbours.concern(pod.submitted)
        return self._class_of(pod, concern, without | self._other_models(pod))

    def _class_of(self, pod: PodState, concern: Concern, without: frozenset[int]) -> PlacementClass:
        key, shape = self._wanted_key(pod, concern), pod.submitted.shape
        volumes = self.volumes.needs(pod) if pod.submitted.volume_claims else None
        if without:
            key += b"without " + _encode(sorted(without))
        kept = self.kept.of(pod) if self._state.nominated or self.reserving else ()
        if kept:
            key += b"kept from " + _encode(kept)
        relate = None
        if concern is not NO_CONCERN:
            relate = partial(Relations, shape.pods, concern, self._neighbours, self._values)
        found: PlacementClass = self.classes.class_of(key, shape, relate, without, volumes)
        if kept:
            nominated = self._state.nominated.values()
            found.keep_out(
                [self.columns.row_of(name) for name in kept],
                [self.columns.row_of(name) for name in kept if name not in nominated],
            )
        return found

    def _other_models(self, pod: PodState) -> frozenset[int]:
        if not pod.submitted.group:
            return NO_KINDS
        self.columns.sync()  # a new node may have another model
        return self.models.excluded(pod)

    def _rows_left(self, without: frozenset[int]) -> NDArray[np.bool_] | None:
        # A flag per row: whether the node has no device of these kinds. None if a node has devices
        # of these kinds and of others: only then is a class needed that leaves out the kinds. It is
        # used so seldom that most of its rows have to be evaluated.
        columns = self.columns
        as_of = columns.generation, columns.facts_changed.end
        if self._rows_as_of != as_of:
            self._rows_as_of = as_of
            self._rows_without.clear()
        if without not in self._rows_without:
            left_out = np.zeros(FIRST_KIND + len(columns.kinds), np.bool_)
            left_out[list(without)] = True
            of_these = left_out[columns.kind]
            some: NDArray[np.bool_] = np.logical_or.reduce(of_these, axis=1)
            mixed = (some & ((columns.kind >= FIRST_KIND) & ~of_these).any(axis=1)).any()
            left: NDArray[np.bool_] | None = None if mixed else ~some
            remember(self._rows_without, without, left, most=KEYS_MAX)
        return self._rows_without[without]

    def capacity(self, pod: PodState) -> NDArray[np.int64]:
        """Return for each node an upper bound of how many pods like this fit there.

        The array is valid until the next call."""
        class_, rows = self._class_and_rows(pod)
        capacity: NDArray[np.int64] = class_.capacity(self.columns)
        return capacity if rows is None else np.where(rows, capacity, 0)

    def _class_and_rows(
        self, pod: PodState, without: frozenset[int] = NO_KINDS
    ) -> tuple[PlacementClass, NDArray[np.bool_] | None]:
        # The pod's class, and the rows whose nodes have no other model than the pod's gang; None if
        # it is the class that leaves out other models.
        concern, others = self._neighbours.concern(pod.submitted), self._other_models(pod)
        if not others:
            return self._class_of(pod, concern, without), None
        rows = self._rows_left(others)
        return self._class_of(pod, concern, without | others if rows is None else without), rows

    def model_choices(
        self,
        waiting: list[PodState],
        needed: int,
        *,
        by_room: bool = True,
        among: NDArray[np.bool_] | None = None,
    ) -> list[Choice]:
        """Return which device models the first pods of a gang may get, the best choice first.

        `among` restricts the nodes. At least `needed` of the `waiting` pods must fit. If `by_room`,
        leave out models without room for so many. If no model has enough room, keep only those with
        the most room. The list is empty if the cluster has only one model."""
        self.columns.sync()
        rows = self.columns.every if among is None else np.flatnonzero(among)
        ways: list[list[tuple[Kin, str]]] = []
        for kin, pods in self.models.open(waiting).items():
            least = max(needed - (len(waiting) - len(pods)), 1) if by_room else 0
            rooms: dict[str, int] = {}
            for model in self.models.of_family(kin[1]):
                self.models.begin = {kin: model}
                others = self._other_models(pods[0])
                asks = self._class_and_rows(pods[0])[0].asks
                if all(ask.possible(others) for ask in asks):
                    rooms[model] = min(self._room(pods, rows), least)
            most = max(rooms.values(), default=0)
            found: list[tuple[float, str]] = []
            for model in [each for each, room in rooms.items() if room == most]:
                self.models.begin = {kin: model}
                first = self.find(pods[0], among)
                found.append((-first.score.total if first is not None else 0.0, model))
            ways.append([(kin, model) for _, model in sorted(found)])
        self.models.begin = {}
        if not ways:
            return []
        return [dict(way) for way in islice(product(*ways), MODEL_CHOICES_MAX)]

    def _room(self, pods: list[PodState], rows: NDArray[np.int64]) -> int:
        # An upper bound of how many of these pods fit on these nodes at the same time.
        alike = Counter(wants_key(pod) for pod in pods)
        one_of = {wants_key(pod): pod for pod in pods}
        room = 0
        for key, count in alike.items():
            class_, left = self._class_and_rows(one_of[key])
            of_model = rows if left is None else rows[left[rows]]
            room += min(count, class_.capacity_of(self.columns, of_model))
        return room

    def key_of(self, pod: PodState) -> bytes:
        """Return a key that is equal for pods with the same limits and the same feasible nodes."""
        concern = self._neighbours.concern(pod.submitted)
        key = self._wanted_key(pod, concern)
        others = self._other_models(pod)
        if others:
            key += b"without " + _encode(sorted(others))
        kept = self.kept.of(pod) if self._state.nominated or self.reserving else ()
        if kept:
            key += b"kept from " + _encode(kept)
        return limits_key(self._state, pod) + key

    def _wanted_key(self, pod: PodState, concern: Concern) -> bytes:
        key = pod.shape_key
        volumes = self.volumes.needs(pod) if pod.submitted.volume_claims else None
        if volumes is not None:
            key += volumes.key
        return key if concern is NO_CONCERN else key + _encode(concern)

    def minds_others(self, pod: PodState) -> bool:
        """Return True if affinity or spread terms, of this pod or of others, restrict its nodes."""
        return self._neighbours.concern(pod.submitted) is not NO_CONCERN

    def domains(self, keys: Sequence[str], level: str, required: str) -> Domains:
        """Return the topology domains of a level, numbered like `domains_by`.

        Nodes that lack the label of the level, or a `required` one, are in no domain."""
        self.columns.sync()
        as_of = self.columns.generation, self.columns.facts_changed.end
        if self._domains_as_of != as_of:
            self._domains_as_of = as_of
            self._domains_of.clear()
        key = *keys, level, required
        found = self._domains_of.get(key)
        if found is None:
            ids = self.domains_by(keys)
            for each in filter(None, (level, required)):
                ids[self._values.ids(self.columns, each) == NO_VALUE] = NO_VALUE
            found = numbered(ids, self.columns.nodes, level)
            remember(self._domains_of, key, found, most=KEYS_MAX)
        return found

    def domains_by(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Number the topology domains: nodes with equal values of all label keys share a number."""
        self.columns.sync()
        ids = np.zeros(len(self.columns.names), np.int64)
        for key in keys:
            values = self._values.ids(self.columns, key) - NO_VALUE
            ids = np.unique(ids * (values.max(initial=0) + 1) + values, return_inverse=True)[1]
        return ids

    def _best(
        self, pod: PodState, without: frozenset[int], among: NDArray[np.bool_] | None
    ) -> PodPlaced | None:
        # The best placement regardless of limits, `without` devices of these kinds, or None.
        self._reservations.charge()
        class_: PlacementClass
        class_, rows = self._class_and_rows(pod, without)
        if rows is not None:
            among = rows if among is None else among & rows
        first = self._first_of(class_, pod)
        if among is not None:
            first = among if first is None else first & among
        while True:
            best = class_.board.best(1 + RUNNERS_UP, first)
            if among is not None and first is not None and not (best and first[best[0][0]]):
                if first is among:
                    return None
                first = among
                continue
            if not best:
                return None
            shares = assign(class_, self.columns, best[0][0])
            if shares is None:
                class_.exclude(best[0][0])
                continue
            if not class_.may_collide:
                break
            collided = [row for row, _ in best[1:] if assign(class_, self.columns, row) is None]
            if not collided:
                break
            for row in collided:
                class_.exclude(row)
        fitting = class_.fitting if rows is None else class_.fitting_among(rows)
        return placed_on(pod, class_, self.columns, best, shares, fitting=fitting)

    def _first_of(self, class_: PlacementClass, pod: PodState) -> NDArray[np.bool_] | None:
        # A class with preferences for nodes ignores the shard. A pod whose placement was refused by
        # an agent avoids that agent's node.
        if pod.backoff is not None and pod.backoff.node in self._state.nodes:
            others = np.ones(len(self.columns.names), np.bool_)
            others[self.columns.row_of(pod.backoff.node)] = False
            return others
        if not self.apart or class_.prefers or self._shard is WHOLE:
            return None
        if self._own_rows is None:
            self._own_rows = _OwnRows(self._shard)
        return self._own_rows.of(self.columns)
