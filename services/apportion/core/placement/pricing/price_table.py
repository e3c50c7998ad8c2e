"""Turn one set of prices into tables by kind of device, and compute the value of each node.

Values are whole millionths of a device, so every machine gets the same result. CPU prices are in
millionths of a device per milli-core. Tables are rebuilt in steps when prices or kinds change,
because a rebuild takes longer than a decision may."""

from math import isqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.feasibility.devices import type_name
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import Int64, Int64s
from apportion.core.placement.index.row_log import FORGOTTEN
from apportion.core.placement.pricing import loss_loops
from apportion.core.placement.pricing.readings import Ints, Readings, Tables
from apportion.core.placement.pricing.sizes import NEVER, Sort, sort_of
from apportion.core.placement.pricing.states import (
    DEVICE_COUNTS,
    NOWHERE,
    STATES,
    States,
    after_share,
    by_percent_left,
    idle_state,
    is_cut,
    percent_left,
)
from apportion_schemas import Device, DeviceConstraints, PricesLearnt
from apportion_schemas.pricing import PricedShape
from apportion_schemas.quantities import WHOLE

Values = NDArray[np.int64]
CPU_PRICES: Final = (0, 2, 8, 32, 128, 512)  # in addition to what CPU earns by itself
CPU_PRICE_MAX: Final = 1_000
VALUE_MAX: Final = 4_000_000  # of one share or one device
UNLIMITED: Final = 1 << 20
_NOTHING: Final = -(1 << 40)
_ENDLESS: Final = 1 << 40


def cpu_prices(shapes: tuple[PricedShape, ...]) -> Values:
    """Return the CPU prices at which values are computed."""
    alone = [s.value // s.cpu_milli for s in shapes if s.ask is None and s.cpu_milli]
    floor = min(max(alone, default=0), CPU_PRICE_MAX)
    return np.array([floor + step for step in CPU_PRICES], np.int64)


def share_values(shapes: tuple[PricedShape, ...], device: Device, prices: Values) -> Values:
    """Return the highest value of the shares on a device, minus the price of their CPU.

    The result has a row per CPU price and a column per device state."""
    best_of: dict[bytes, tuple[States, Values]] = {}
    for shape in shapes:
        sort = sort_of(shape)
        size = sort.size_on(device)
        if size in (NEVER, WHOLE):
            continue
        after, net = after_share(sort.ask, device, size), _net(shape, sort.pieces(size), prices)
        _, known = best_of.get(after.tobytes(), (after, net))
        best_of[after.tobytes()] = after, np.maximum(known, net)
    best = np.zeros((len(prices), STATES), np.int64)
    if not best_of:
        return best
    after = np.array([states for states, _ in best_of.values()])
    net = np.array([values for _, values in best_of.values()]).T
    somewhere = after != NOWHERE
    for state in by_percent_left(device, np.flatnonzero(somewhere.any(0)).tolist()):
        can = somewhere[:, state]
        earned = best[:, after[can, state]] + net[:, can]
        best[:, state] = earned.max(1, initial=0)
    return best


def device_values(
    shapes: tuple[PricedShape, ...], device: Device, prices: Values, one_shared: Values
) -> Values:
    """Return the highest value of pods on idle devices, minus the price of their CPU.

    The result has a row per CPU price and a column per number of idle devices."""
    net = np.full((len(prices), DEVICE_COUNTS), _NOTHING, np.int64)
    for shape in shapes:
        sort = sort_of(shape)
        if sort.ask is not None and sort.size_on(device) == WHOLE:
            target = net[:, sort.ask.count]
            np.maximum(target, _net(shape, 1, prices), out=target)
    best = np.zeros_like(net)
    for count in range(1, DEVICE_COUNTS):
        earned = best[:, :count][:, ::-1] + net[:, 1 : count + 1]
        best[:, count] = np.maximum(best[:, count - 1] + one_shared, earned.max(1))
    return best


def share_room(sort: Sort, device: Device) -> Values:
    """Return how many more such shares fit on a device in each of its states."""
    room = [0] * STATES
    if sort.size_on(device) not in (NEVER, WHOLE):
        after = after_share(sort.ask, device)
        leads = after.tolist()
        for state in by_percent_left(device, np.flatnonzero(after != NOWHERE).tolist()):
            room[state] = 1 + room[leads[state]]
    return np.array(room, np.int64)


def device_room(sort: Sort, device: Device | None) -> Values:
    """Return how many such pods fit on each number of idle devices."""
    counts = np.arange(DEVICE_COUNTS)
    if sort.ask is None:
        return np.full(DEVICE_COUNTS, UNLIMITED)
    if sort.size_on(device) != WHOLE:
        return counts * 0
    return counts // sort.ask.count


def _net(shape: PricedShape, pieces: int, prices: Values) -> Values:
    # What one independent piece of the pod earns net of its CPU, at each CPU price.
    devices = shape.ask.count // pieces if shape.ask is not None else 1
    net: Values = min(shape.value // pieces, VALUE_MAX * devices) - prices * (
        shape.cpu_milli // pieces
    )
    return net


class _OfKind(NamedTuple):
    """The price tables of one kind of device."""

    share_value: Ints
    device_value: Ints
    share_room: Ints
    device_room: Ints


_Known = tuple[Device | None, _OfKind]


# After "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): a node's idle capacity is a
# fragment to a pod that does not fit there; otherwise only that on devices too full for its share.

TOO_BIG = WHOLE + 1


class Fragments:
    """The frequencies and sizes of pod shapes, for the score `fgd`."""

    def __init__(self, prices: PricesLearnt, devices: list[Device | None]) -> None:
        shapes = prices.shapes
        self.cpu_milli = np.array([shape.cpu_milli for shape in shapes], np.int64)
        counts = [shape.ask.count if shape.ask else 1 for shape in shapes]
        self.counts = np.array(counts, np.int64)
        self.pods = np.array([shape.pods for shape in shapes], np.int64)
        self.total = int(self.pods.sum())
        sizes = [[_size(shape, device) for shape in shapes] for device in devices]
        self.sizes = np.array(sizes, np.int64)  # in percent by kind and shape


def _size(shape: PricedShape, device: Device | None) -> int:
    if shape.ask is None or device is None:
        return TOO_BIG
    wants = DeviceConstraints(use_types=shape.use_types)
    size = sort_of(shape).size_on(device)
    return size if size != NEVER and type_name(shape.ask, wants, device) else TOO_BIG


SHAPES_WEIGHED: Final = 16  # more cost time and gain nothing


class Frequent(NamedTuple):
    """A frequent pod shape, and the value of having room for one more such pod.

    The weight is half the shape's frequency times the square root of its size."""

    sort: Sort
    cpu_milli: int
    memory_mib: int
    weight: int  # value of room for one more


def frequent(shapes: tuple[PricedShape, ...]) -> list[Frequent]:
    """Return the shapes of most weight; merge those that differ only in required models."""
    merged: dict[Sort, list[PricedShape]] = {}
    for shape in shapes:
        merged.setdefault(sort_of(shape), []).append(shape)
    total = sum(shape.pods for shape in shapes)
    found = []
    for sort, alike in merged.items():
        pods = sum(shape.pods for shape in alike)
        memory_mib = sum(shape.pods * shape.memory_mib for shape in alike) // pods
        pieces = sort.pieces(WHOLE if sort.ask is not None and sort.ask.whole else NEVER)
        root = isqrt(alike[0].size // pieces * 1000)  # of thousandths, in thousandths
        weight = pods * pieces * root // (2 * total)
        found.append(Frequent(sort, sort.cpu_milli // pieces, memory_mib // pieces, weight))
    found.sort(key=lambda each: (-each.weight, repr(each)))
    return found[:SHAPES_WEIGHED]


class PriceTable:
    """The tables for one set of prices: the value of devices of each kind in each state."""

    def __init__(
        self, prices: PricesLearnt, offered: list[Device | None], before: "PriceTable | None" = None
    ) -> None:
        self.prices = prices
        self.devices = offered
        self.percent_left = np.concatenate([percent_left(device) for device in self.devices])
        self._cpu_prices = cpu_prices(prices.shapes)
        self._frequent: list[Frequent] | None = None
        # of the next kind, whose other tables are not computed yet
        self._shares: Ints | None = None
        same = before is not None and before.prices is prices
        self._known: list[_Known] = before.known() if before is not None and same else []
        self._of_kinds: list[_OfKind] = []
        self._fragments: Fragments | None = None
        self._tables: Tables | None = None
        self._readings: Readings | None = None
        self._generation = -1
        self._seen = 0
        self._read_to: Int64 = 0

    def fragments(self) -> Fragments:
        """Return the frequencies and sizes of shapes that the score `fgd` needs."""
        if self._fragments is None:
            self._fragments = Fragments(self.prices, self.devices)
        return self._fragments

    def known(self) -> "list[_Known]":
        """Return the tables computed so far, each with an example device of its kind."""
        return list(zip(self.devices, self._of_kinds, strict=False))

    def prepare(self, columns: Columns, rows: Int64) -> bool:
        """Do one step. Return True when every node has a value.

        A step builds a part of the tables or, once they exist, values up to `rows` more nodes."""
        known: Tables | None = self._tables
        if known is None:
            self._learn_kind()
            return False
        if self._read_to < len(columns.names) or self._begins_anew(columns):
            self._read(columns, known, rows)
        return self._read_to == len(columns.names)

    def read(self, columns: Columns) -> Readings:
        """Bring the values of all nodes up to date and return them.

        Pass the same columns in every call."""
        return self._read(columns, self.learn(), len(columns.names))

    def learn(self) -> Tables:
        """Compute the tables that are missing, and return all of them."""
        while self._tables is None:
            self._learn_kind()
        return self._tables

    def _learn_kind(self) -> None:
        # Compute a part of the next missing kind; after the last one, join the tables.
        for at in range(len(self._of_kinds), len(self.devices)):
            device = self.devices[at]
            if at >= len(self._known) or self._known[at][0] is not device:
                if self._shares is None:  # first the value of its shares, then the rest
                    self._shares = np.zeros((len(self._cpu_prices), STATES), np.int64)
                    if device is not None:
                        shapes = self.prices.shapes
                        self._shares = share_values(shapes, device, self._cpu_prices)
                else:
                    self._of_kinds.append(self._of_kind(device, self._shares))
                    self._shares = None
                return
            self._of_kinds.append(self._known[at][1])
        self._tables = self._join()
        self._known = []

    def _read(self, columns: Columns, known: Tables, rows: Int64) -> Readings:
        # Read the changed rows, and `rows` of those not read yet.
        log = columns.changed
        begin: Int64 = log.place_of(self._seen)
        self._seen = log.end
        total: Int64 = len(columns.names)
        found: Readings | None = self._readings
        if found is None or self._begins_anew(columns):
            self._generation, begin = columns.generation, FORGOTTEN
            found = self._readings = Readings(known, total, columns.width)
        if begin == FORGOTTEN or log.count - begin > total:  # it is cheaper to read every row once
            self._read_to = 0
        else:
            _read_rows(columns, log.cells, begin, log.count, found)
        if self._read_to < total:
            begin, self._read_to = self._read_to, min(self._read_to + rows, total)
            _read_rows(columns, columns.every_cells, begin, self._read_to, found)
        return found

    def _begins_anew(self, columns: Columns) -> bool:
        found: Readings | None = self._readings
        if found is None or self._generation != columns.generation:
            return True
        return found.width != columns.width

    def _of_kind(self, device: Device | None, share: Ints) -> _OfKind:
        # All values are 0 if no node has a device of the kind.
        shapes, prices, wanted = self.prices.shapes, self._cpu_prices, self._frequent_shapes()
        whole = np.zeros((len(prices), DEVICE_COUNTS), np.int64)
        shares = np.zeros((STATES, len(wanted)), np.int64)
        wholes = np.zeros((DEVICE_COUNTS, len(wanted)), np.int64)
        for at, each in enumerate(wanted):
            wholes[:, at] = device_room(each.sort, device)
        if device is not None:
            idle = share[:, idle_state(device)].copy()
            whole = device_values(shapes, device, prices, idle)
            share[:, idle_state(device)] = 0  # idle devices are valued together
            for at, each in enumerate(wanted):
                shares[:, at] = share_room(each.sort, device)
        return _OfKind(share.T, whole.T, shares, wholes)

    def _frequent_shapes(self) -> list[Frequent]:
        if self._frequent is None:
            self._frequent = frequent(self.prices.shapes)
        return self._frequent

    def _join(self) -> Tables:
        kinds = [
            (max(each.memory_mib, 1), max(each.cores, 1), max(each.slots, 1), is_cut(each))
            if each
            else (_ENDLESS, _ENDLESS, _ENDLESS, False)
            for each in self.devices
        ]
        needs = [
            (max(s.cpu_milli, 1), max(s.memory_mib, 1), s.weight) for s in self._frequent_shapes()
        ]
        joined = [np.concatenate(each) for each in zip(*self._of_kinds, strict=True)]
        share_value, device_value, share_room, device_room = joined
        return Tables(
            np.array(kinds, np.int64),
            self._cpu_prices,
            (share_value, device_value),
            (share_room, device_room, np.array(needs, np.int64).reshape(len(needs), 3)),
            self.percent_left,
        )


def _read_rows(columns: Columns, rows: Int64s, begin: Int64, end: Int64, into: Readings) -> None:
    loss_loops.read(
        rows,
        begin,
        end,
        columns.flat_free,
        columns.flat_kind,
        columns.flat_slices,
        into.tables,
        into,
    )
