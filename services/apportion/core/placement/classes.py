"""Keep an up-to-date score of every node for all pods of one shape, which form a class.

A query evaluates only the nodes that changed since the last one. Invariant: after `refresh`, the
class has each node's points, or marks the node as refused by a filter."""

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from apportion.core.devices.chains import Chain, chain
from apportion.core.devices.demand import NO_FACTS, FleetFacts
from apportion.core.ledger.state import State
from apportion.core.placement.affinity.relations import Relations
from apportion.core.placement.feasibility import nodes as node_filters
from apportion.core.placement.feasibility.evaluator import FITS
from apportion.core.placement.index import ask_loops, packed, row_loops
from apportion.core.placement.index.ask_loops import BINPACK, SPREAD
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.facts import FactColumns
from apportion.core.placement.index.packed import Int32s, Int64, Int64s
from apportion.core.placement.index.row_log import BEFORE_ALL, FORGOTTEN
from apportion.core.placement.index.score_input import (
    NO_ASK,
    NO_DEVICE,
    NodeScore,
    Scoreboard,
    ScoreInput,
)
from apportion.core.placement.pricing.price_table import PriceTable
from apportion.core.placement.scores import WEIGH_SHAPES, node_score
from apportion.core.placement.scores.devices import Order, binpack, first, order_of, spread
from apportion.core.placement.scores.nodes import WEIGHABLE, Binpack, Weighed
from apportion.core.placement.volumes import VolumeNeeds
from apportion_schemas import PolicyChanged, RefusalCode, Shape

_REFUSED: Final = np.int32(REFUSED)
# The cost of a query, of a row with a score or filter outside the row loops, of a row with
# relations to other pods, and of a query after node reports. Unit: one row scored by its load.
ASKED: Final[Int64] = 64
SCORED: Final[Int64] = 8
RELATED: Final[Int64] = 4
REBUILT: Final[Int64] = 2048
CLASSES_MAX: Final = 512  # shapes kept indexed
READ_MAX: Final = 2_500  # nodes that one decision reads for new prices


class PlacementClass:
    """All pods of one shape, with the score of every node for them."""

    def __init__(
        self,
        shape: Shape,
        policy: PolicyChanged,
        price_table: PriceTable | None,
        fleet: FleetFacts = NO_FACTS,
        *,
        relations: Relations | None = None,
        volumes: VolumeNeeds | None = None,
        without: frozenset[int] = frozenset(),
    ) -> None:
        self.shape = shape
        self.relations = relations
        self._fleet = fleet
        self._price_table: PriceTable | None = None
        self.needs = node_filters.needs(shape)  # filters that no index covers
        if volumes is not None and volumes.attached:
            self.needs += ((RefusalCode.VOLUMES_EXHAUSTED, volumes.check),)
        self._prefer_by(policy, price_table)
        host_need = packed.amounts(shape.node.memory_mib, shape.node.cpu_milli, 1)
        self.asks = [
            AskColumns(ask, shape.devices, self.chain, fleet, host_need=host_need, without=without)
            for ask in shape.asks
        ]
        # Every container requests one device, the same, on any NUMA node.
        same = len({structs.replace(ask, container="") for ask in shape.asks}) == 1
        anywhere = not (shape.devices.numa_bind or self.chain.best_linked)
        self._alike = same and shape.asks[0].count == 1 and anywhere
        one = self._alike or len(self.asks) == 1
        self._asked: AskColumns | None = self.asks[0] if one else None
        self._picked: AskColumns | None = self.asks[0] if self.asks else None
        self.facts = FactColumns(shape, volumes.places if volumes is not None else ())
        self.collided: set[int] = set()
        self.kept: list[int] = []  # excluded rows
        self.reserved: list[int] = []  # those of them that are reserved
        self._host_need = host_need
        self._resize(0)
        self._generation = -1
        self._facts_seen = 0
        self._changed_seen: Int64 = BEFORE_ALL
        self._room = np.zeros(0, np.int64)
        self._room_seen: Int64 = BEFORE_ALL  # `_room` is as of this log position

    def follow(
        self, policy: PolicyChanged, price_table: PriceTable | None, fleet: FleetFacts
    ) -> None:
        """Use this policy, these prices and these facts of the fleet; recompute all scores."""
        same = self._policy is policy and self._price_table is price_table
        if same and self._fleet is fleet:
            return
        if self._fleet is not fleet:
            self._fleet = fleet
            for ask in self.asks:
                ask.follow(fleet)
        self._prefer_by(policy, price_table)
        self._begin_anew()

    def _prefer_by(self, policy: PolicyChanged, price_table: PriceTable | None) -> None:
        shape = self.shape
        self._policy, self._price_table = policy, price_table
        device_policy = shape.device_policy or policy.device_policy
        self.chain: Chain = chain(device_policy)
        self._order = order_of(self.chain, shape.device_weights)
        self._follows_score = device_policy in WEIGH_SHAPES and shape.device_weights is None
        name = shape.node_policy or policy.node_policy
        self.node_score: NodeScore = (
            Weighed(name, shape, policy.node_weights)
            if policy.node_weights is not None and name in WEIGHABLE
            else node_score(name, shape, price_table)
        )
        anywhere = not (shape.devices.numa_bind or self.chain.best_linked)
        one = anywhere and [ask.count for ask in shape.asks] == [1]
        self.picks_one = one and self._order in (binpack, spread)
        self._ask_at: Int64 = self.node_score.ask_at
        loops = isinstance(self.node_score, Binpack) and not self.needs
        self._row_looks: Int64 = 1 if loops else SCORED  # a score or filter outside the row loops

    @property
    def fitting(self) -> int:
        """Return how many nodes pass every filter.

        That includes nodes that `exclude` refused, where the pod's containers collide."""
        return self.board.fitting + len(self.collided)

    def fitting_among(self, rows: NDArray[np.bool_]) -> int:
        """Return how many of the marked nodes pass every filter, counted like `fitting`."""
        fits = int(np.count_nonzero(rows & (self.board.points != REFUSED)))
        return fits + sum(bool(rows[row]) for row in self.collided)

    @property
    def fits_somewhere(self) -> bool:
        """Return True if any node could run a pod of this shape, as of the last `refresh`."""
        return self.board.fitting > 0

    def refresh(self, columns: Columns) -> Int64:
        """Rescore the nodes that changed since the last call. Return the work done, in rows."""
        rows: Int64 = len(columns.names)
        looks: Int64 = ASKED
        if self._facts_seen != columns.facts_changed.end or self._generation != columns.generation:
            facts = columns.facts_changed.distinct_since(self._facts_seen, columns.every)
            self._facts_seen = columns.facts_changed.end
            if self._generation != columns.generation or facts is None:
                self._generation, facts = columns.generation, columns.every
                self._resize(rows)
            for ask in self.asks:
                ask.rebuild(columns, facts)
            if self.facts.rebuild(columns, facts):  # node preferences are scaled over all nodes
                self._begin_anew()
            looks += REBUILT
        begin: Int64 = columns.changed.place_of(self._changed_seen)
        self._changed_seen = columns.changed.end
        seen: Int64 = columns.changed.count - begin
        if begin == FORGOTTEN or seen > rows:  # it is cheaper to evaluate every row once
            begin, seen = FORGOTTEN, rows
        if seen:
            self._evaluate(columns, begin)
        looks += seen * self._row_looks
        relations = self.relations
        if relations is not None and (relations.refresh(columns, self.facts.eligible) or seen):
            points, fit = self._unrelated, self._unrelated != REFUSED
            if relations.points is not None:
                points = (points + relations.points) // 2
            score = np.where(fit & (relations.ranks == FITS), points, _REFUSED)
            score[list(self.collided)] = REFUSED
            self.board.replace(score)
            looks += rows * RELATED
        return looks

    def keep_out(self, rows: list[int], reserved: list[int]) -> None:
        """Refuse these nodes, because they are nominated or `reserved` for other pods."""
        self.kept, self.reserved = rows, reserved
        for row in rows:
            if self.board.points[row] != REFUSED:
                self.board.refuse(row)

    def exclude(self, row: int) -> None:
        """Refuse the node in this row until it changes: two containers need the same device."""
        self.board.refuse(row)
        self.collided.add(row)

    @property
    def may_collide(self) -> bool:
        """Return True if a pod may not fit a node that passes every filter."""
        if self._alike:
            return self.asks[0].cuts_instances
        if len(self.asks) > 1 or self.shape.devices.numa_bind:
            return True
        return bool(self.asks) and self.asks[0].together

    @property
    def prefers(self) -> bool:
        """Return True if labels, taints or placed pods make the class prefer some nodes."""
        near = self.relations is not None and self.relations.points is not None
        return near or self.facts.prefers

    def host_fits(self, free: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each host, whether one pod fits its free CPU, memory and pod slots.

        Devices are not checked."""
        fits: NDArray[np.bool_] = packed.lacking_each(free, self._host_need) == 0
        return fits

    def capacity(self, columns: Columns) -> NDArray[np.int64]:
        """Return for each node an upper bound of how many pods of this shape fit there.

        The array is valid until the next call."""
        rows = columns.changed.distinct_since(self._room_seen, columns.every)
        if rows is None or len(self._room) != len(columns.names):
            self._room, rows = np.zeros(len(columns.names), np.int64), columns.every
        self._room_seen = columns.changed.end
        if len(rows):
            self._fill_room(columns, rows)
        return self._room

    def capacity_of(self, columns: Columns, rows: NDArray[np.int64]) -> Int64:
        """Return the sum of `capacity` over these nodes, without looking at others."""
        total = len(columns.names)
        if len(rows) == total or len(self._room) != total:
            self.capacity(columns)
        else:
            self._fill_room(columns, rows)
        found: Int64 = self._room[rows].sum()
        return found

    def _fill_room(self, columns: Columns, rows: NDArray[np.int64]) -> None:
        room: Int64s = self._room.data
        changed: Int64s = rows.data
        ask_loops.fill_hosts(
            changed, columns.flat_free, columns.width, self._host_need, self.facts.node_ok, room
        )
        for ask in self.asks:
            ask.fill(columns, changed, room)

    def pick(self, columns: Columns, row: int) -> int:
        """Return the position of the node's device to use for a one-device pod; -1 if none fits."""
        device = self.scored_device(row)
        if device == NO_DEVICE and self._picked is not None:
            return self._picked.pick(columns, row, SPREAD if self._order is spread else BINPACK)
        return device

    def device_order(self, columns: Columns, row: int) -> Order:
        """Return the order in which to try the node's devices; the score's choice comes first."""
        device = self.scored_device(row)
        if device == NO_DEVICE:
            return self._order
        return first(columns.nodes[row].devices[device], self._order)

    def scored_device(self, row: int) -> int:
        """Return the position of the device that the node's score chose, or `NO_DEVICE`."""
        return self.node_score.device(row) if self._follows_score else NO_DEVICE

    def _resize(self, rows: int) -> None:
        self.facts.resize(rows)
        if self.relations is not None:
            self._unrelated: NDArray[np.int32] = np.full(rows, REFUSED, np.int32)
            self._flat_unrelated: Int32s = self._unrelated.data
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.board = Scoreboard(len(self.facts.ranks))
        self._look: ScoreInput | None = None
        self._changed_seen = self._room_seen = BEFORE_ALL
        self.collided.clear()

    def _evaluate(self, columns: Columns, begin: Int64) -> None:
        look: ScoreInput | None = self._look
        if look is None or begin == FORGOTTEN:
            look = self._look = ScoreInput(columns, self.board.given)
        else:
            look.rows, look.count = columns.some, columns.changed_from(begin)
            look.enough = columns.enough  # replaced when nodes get wider
        row_loops.admit(look.rows, look.count, self.facts.node_ok, look.given)
        if self.needs:  # rare requirements that no column has
            for at in range(look.count):
                node = columns.nodes[look.rows[at]]
                for _, check in self.needs:
                    needed, available = check(self.shape, node)
                    if available < needed:
                        look.given[at] = REFUSED
        self._look_at_asks(look)
        self.node_score.rate(look)
        if self.facts.prefers:
            row_loops.blend(look.rows, look.count, self.facts.preferred, look.given)
        if self.relations is None:
            self.board.take(look.rows, look.count)
        else:
            row_loops.keep(look.rows, look.count, look.given, self._flat_unrelated)
        if self.collided:
            self.collided.difference_update([look.rows[at] for at in range(look.count)])

    def _look_at_asks(self, look: ScoreInput) -> None:
        # Refuse rows whose host or devices lack room; note the device if the score needs it.
        noted = self._ask_at
        if self._asked is not None:
            self._asked.look(look, len(self.asks), noted != NO_ASK)
            return
        if not self.asks:
            columns, needed = look.columns, self._host_need
            ask_loops.house(
                look.rows, look.count, columns.flat_free, columns.width, needed, look.given
            )
        for at, ask in enumerate(self.asks):
            ask.look(look, 1, at == noted)


class ClassCache:
    """Cache the placement classes of one state; evict the least recently used."""

    def __init__(self, state: State, columns: Columns) -> None:
        self._state = state
        self._columns = columns
        self._classes: dict[bytes, PlacementClass] = {}
        self._price_table: PriceTable | None = None
        self._weighs_shapes = False  # True once any class did
        self.looks: Int64 = 0  # cost of all refreshes

    def prepare(self) -> bool:
        """Compute `READ_MAX` more node values at new prices. Return True if none is left."""
        if not self._weighs_shapes and self._state.policy.node_policy not in WEIGH_SHAPES:
            return True
        self._columns.sync()
        price_table = self._price_table_now()
        return price_table is None or price_table.prepare(self._columns, READ_MAX)

    def class_of(
        self,
        key: bytes,
        shape: Shape,
        relate: Callable[[], Relations] | None = None,
        without: frozenset[int] = frozenset(),
        volumes: VolumeNeeds | None = None,
    ) -> PlacementClass:
        """Return the up-to-date class of this key; build it if it is not in the cache."""
        columns = self._columns
        columns.sync()
        policy, price_table = self._state.policy, None
        if (shape.node_policy or policy.node_policy) in WEIGH_SHAPES:
            self._weighs_shapes = True
            price_table = self._price_table_now()
        found: PlacementClass | None = self._classes.pop(key, None)
        if found is not None:
            found.follow(policy, price_table, columns.fleet)
        else:
            found = PlacementClass(
                shape,
                policy,
                price_table,
                columns.fleet,
                relations=None if relate is None else relate(),
                volumes=volumes,
                without=without,
            )
            if len(self._classes) >= CLASSES_MAX:
                del self._classes[next(iter(self._classes))]
        self._classes[key] = found  # keep the least recently used first
        self.looks += found.refresh(columns)
        return found

    def _price_table_now(self) -> PriceTable | None:
        prices = self._state.prices
        if prices is None:
            return None
        offered = self._columns.offered()
        table: PriceTable | None = self._price_table
        if table is None or table.prices is not prices or table.devices is not offered:
            table = self._price_table = PriceTable(prices, offered, table)
        return table
