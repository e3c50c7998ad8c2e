"""Index the nodes as columns, so that numpy can evaluate many nodes at once.

Rows are in the order of node names, so ties never depend on the order of joining. Spare rows let a
new node join while few rows move. Invariant: after `sync`, row i reflects node `names[i]`."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from apportion.core.devices.catalogue import alike_number
from apportion.core.devices.demand import (
    NO_FACTS,
    FleetFacts,
    cut_state,
    groups_of,
    largest_gpu_mib,
)
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.state import NodeState, State
from apportion.core.placement.feasibility.nodes import PREFERABLY_NOT, closed
from apportion.core.placement.index import packed, row_loops
from apportion.core.placement.index.device_kinds import HOST_KIND, NO_ID, NO_KIND, DeviceKinds
from apportion.core.placement.index.labels import LabelColumns
from apportion.core.placement.index.packed import (
    POINTS,
    Int32s,
    Int64,
    Int64s,
    UInt8s,
    UInt16s,
    UInt32s,
    mean_load,
)
from apportion.core.placement.index.row_log import RowLog, Rows
from apportion_schemas import Device, DevicesRegistered, NodeObserved, NodeReported, Share

# The column of `free` and `kind` that is the node's host; its devices follow.
HOST: Final[Int64] = 0
OPEN: Final[Int64] = 0
UNHEALTHY: Final[Int64] = 1
CORDONED: Final[Int64] = 2
_COLUMNS: Final = (
    "free", "kind", "index", "ids", "slices", "cut", "closed", "load", "host_load", "left",
    "host_total", "schedulable", "discouraging", "sums",
)  # fmt: skip
SUMS: Final[Int64] = 4
# The columns of `sums`: memory (MiB) and cores of a node's devices, total and free.
MEMORY: Final[Int64] = 0
CORES: Final[Int64] = 1
MEMORY_FREE: Final[Int64] = 2
CORES_FREE: Final[Int64] = 3
CPU_MILLI_PER_PERCENT: Final[Int64] = 160  # 16 CPUs count as much as one device
LEFT_MAX: Final[Int64] = 20_000  # percent of a device: more than any node has
NodeFacts = tuple[
    NodeReported | None, DevicesRegistered | None, NodeObserved | None, bool, str, str, list[Device]
]
UNSEEN: Final[NodeFacts] = (None, None, None, False, "unseen", "", [])
VACANT: Final = NodeState("")
SPARE_EVERY: Final = 16  # rows per spare row; as many spare ones follow the last row
MOVED_MAX: Final = 1024  # rows that may move for a joining node; beyond, all are laid out again


class Moved(NamedTuple):
    """A range of rows that moved to make one row free for a new node."""

    row: int  # the row that is free now
    begin: int
    end: int
    by: int


class RowOrder:
    """Assigns rows to node names, in the order of names; a row may be vacant."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.vacant: NDArray[np.bool_] = np.ones(0, np.bool_)
        self._order: list[str] = []  # the names without the vacant rows

    def insert(self, name: str) -> Moved | None:
        """Assign a row to a new node. Return the rows that moved; None if no vacant row is near."""
        rank = self._rank(name)
        behind = self.row_of[self._order[rank - 1]] + 1 if rank else 0
        first = max(behind - MOVED_MAX, 0)
        spare = np.flatnonzero(self.vacant[first : behind + MOVED_MAX]) + first
        if not len(spare):
            return None
        # The cheapest move frees a row between the rows before `behind` and the others.
        nearest = int(spare[np.abs(spare - behind).argmin()])
        moved = Moved(behind, behind, nearest, 1)
        if nearest < behind:
            moved = Moved(behind - 1, nearest + 1, behind, -1)
        row, begin, end, by = moved
        self.names[begin + by : end + by] = self.names[begin:end]
        self.vacant[begin + by : end + by] = False
        for at in range(begin + by, end + by):
            self.row_of[self.names[at]] = at
        self._order.insert(rank, name)
        self.names[row], self.row_of[name] = name, row
        self.vacant[row] = False
        return moved

    def remove(self, name: str) -> int:
        """Make the row of a name vacant, and return it."""
        row = self.row_of.pop(name)
        del self._order[self._rank(name)]
        self.names[row], self.vacant[row] = "", True
        return row

    def lay_out(self, joined: Iterable[str]) -> None:
        """Add these names, and assign all rows again with vacant rows between them."""
        for name in joined:
            if name not in self.row_of:
                self._order.insert(self._rank(name), name)
        count = len(self._order)
        rows = np.arange(count) + np.arange(count) // SPARE_EVERY
        total = count + 2 * (count // SPARE_EVERY)
        self.row_of = dict(zip(self._order, rows.tolist(), strict=True))
        self.vacant = np.ones(total, np.bool_)
        self.vacant[rows] = False
        self.names = [""] * total
        for name, row in self.row_of.items():
            self.names[row] = name

    def _rank(self, name: str) -> int:
        return bisect_left(self._order, name)


class Touch(Struct, gc=False):
    """A node to update at the next `sync`."""

    node: NodeState
    shares: list[Share] | None  # update only their devices; None updates all


class Columns:
    """The nodes as columns, with one row per node: free amounts, device kinds and load.

    When `generation` changes, rebuild caches by row. Column 0 is the host; devices follow."""

    def __init__(self, state: State) -> None:
        self.device_kinds = DeviceKinds()
        self.kinds: list[Device] = self.device_kinds.devices
        self.generation = 0
        self.count = 0
        self.names: list[str] = []
        self.every: Rows = np.arange(0)  # all row numbers
        self.every_cells: Int64s = self.every.data
        self.nodes: list[NodeState] = []
        self._order = RowOrder()
        self._row_of = self._order.row_of
        self.vacant = self._order.vacant
        self._facts: list[NodeFacts] = []
        self._odd: set[int] = set()
        self.changed = RowLog()
        self.facts_changed = RowLog()
        self.labels = LabelColumns()
        self._touched: dict[str, Touch] = {}
        for name, node in state.nodes.items():
            self._touched[name] = Touch(node, None)
        self._any_anew = True
        self._state = state
        self.fleet = NO_FACTS
        self._seen_of_fleet: tuple[object, object] = (None, None)
        self._of_kubernetes = state.of_kubernetes
        self.allocate(0, 1)

    def touch(self, node: NodeState, shares: Iterable[Share] | None = None) -> None:
        """Mark the node for the next `sync`; with `shares`, only the devices of these shares."""
        name = node.name
        before = self._touched.get(name)
        if shares is None or name not in self._row_of:
            self._touched[name] = Touch(node, None)
            self._any_anew = True
        elif before is None:
            self._touched[name] = Touch(node, list(shares))
        elif before.shares is not None:
            before.shares.extend(shares)

    def forget(self, node: NodeState) -> None:
        """Make the row of a node vacant, because the node left the state."""
        self._touched.pop(node.name, None)
        if node.name not in self._row_of:
            return
        row: Int64 = self._order.remove(node.name)
        self.nodes[row] = VACANT
        self._refresh(row, VACANT, None)
        self.device_kinds.count(self.kind[row].tolist(), -1)
        self.kind[row] = NO_KIND
        self.changed.append(row)
        self.count = len(self._row_of)

    def sync(self) -> None:
        """Update the rows of all touched nodes; the cost is proportional to touched devices."""
        # nodes that only agents report are gone
        if self._state.of_kubernetes != self._of_kubernetes:
            self._of_kubernetes = self._state.of_kubernetes
            for node in self._state.nodes.values():
                self.touch(node)
        if self._touched:
            touched, self._touched = self._touched, {}
            if self._any_anew:
                self._any_anew = False
                joined = [each.node for name, each in touched.items() if name not in self._row_of]
                width = 1 + max([len(each.node.devices) for each in touched.values()])  # noqa: C419 - a generator would cost the C signature
                few = len(joined) * SPARE_EVERY <= len(self._row_of)
                if width > self.width and few:
                    _move(self, self.every, self.every, len(self.every), width)
                if not few or not all(map(self._insert, joined)):
                    self._lay_out(joined, max(width, self.width))
                self.count = len(self._row_of)
            row_of = self._row_of
            for name, touch in touched.items():
                row: Int64 = row_of[name]
                self._refresh(row, touch.node, touch.shares)
                self.changed.append(row)
        self._sync_fleet()

    def _sync_fleet(self) -> None:
        # `fleet` stays the same object until a fact changes, so that classes compare by identity.
        geometries = self._state.configuration.nvidia.known_mig_geometries
        offered, (was, before) = self.offered(), self._seen_of_fleet
        if geometries is was and offered is before:
            return
        self._seen_of_fleet = geometries, offered
        fleet = FleetFacts(geometries, largest_gpu_mib(filter(None, offered)))
        if fleet != self.fleet:
            cut_otherwise = geometries != self.fleet.geometries
            self.fleet = fleet
            if cut_otherwise:
                _cut_anew(self)

    def changed_from(self, begin: Int64) -> Int64:
        """Put the rows changed since that log position into `some`, each once; return how many."""
        self._turn += 1
        log = self.changed
        return row_loops.distinct(log.cells, begin, log.count, self._seen, self._turn, self.some)

    def kinds_of(self, name: str, shares: Iterable[Share]) -> frozenset[int]:
        """Return the kinds of the devices on which the node has these shares."""
        row = self._row_of[name]
        node = self.nodes[row]
        columns = (_column(node, node.by_id[share.device]) for share in shares)
        return frozenset(int(self.kind[row, column]) for column in columns)

    def row_of(self, name: str) -> int:
        """Return the row of a node in the index."""
        return self._row_of[name]

    def __contains__(self, name: str) -> bool:
        """Return True if a node of that name has a row."""
        return name in self._row_of

    def offered(self) -> list[Device | None]:
        """Return an example of each kind of device, by number; see `DeviceKinds.offered`."""
        return self.device_kinds.offered(self.facts_changed.end)

    def allocate(self, rows: Int64, width: Int64) -> None:
        """Replace all columns with blank ones of `rows` rows."""
        self.free = np.full((rows, width), packed.GUARDS, np.int64)
        self.kind = np.full((rows, width), NO_KIND, np.uint32)
        self.index = np.full((rows, width), -1, np.int16)
        self.ids = np.full((rows, width), NO_ID, np.int64)
        self.slices = np.zeros((rows, width), np.uint8)
        # How each device is cut: the occupied slices, and its group if geometries have groups.
        self.cut = np.zeros((rows, width), np.uint16)
        self.closed = np.zeros((rows, width), np.uint8)
        self.load = np.zeros(rows, np.int32)
        self.host_load = np.zeros(rows, np.int32)
        self.left = np.zeros(rows, np.int32)
        self.host_total = np.zeros((rows, 2), np.int64)
        self.schedulable = np.zeros(rows, np.bool_)  # no filter of facts refuses it
        self.discouraging = np.zeros(rows, np.bool_)
        self.sums = np.zeros((rows, SUMS), np.int64)
        # Flat views, because numpy takes three times as long to read or write a single value.
        self.width: Int64 = width
        self.flat_free: Int64s = self.free.reshape(-1).data
        self.flat_kind: UInt32s = self.kind.reshape(-1).data
        self.flat_cut: UInt16s = self.cut.reshape(-1).data
        self.flat_closed: UInt8s = self.closed.reshape(-1).data
        self.flat_slices: UInt8s = self.slices.reshape(-1).data
        self.flat_load: Int32s = self.load.data
        self.flat_host_load: Int32s = self.host_load.data
        self.flat_left: Int32s = self.left.data
        self._sums: Int64s = self.sums.reshape(-1).data
        self._turn: Int64 = 0
        self._seen: Int64s = np.zeros(rows, np.int64).data
        # Buffers for a class: some rows, and whether devices have enough.
        self.some: Int64s = np.zeros(rows, np.int64).data
        self.enough: UInt8s = np.zeros(rows * width, np.uint8).data

    def _insert(self, node: NodeState) -> bool:
        moved = self._order.insert(node.name)
        if moved is None:
            return False
        row, begin, end, by = moved
        for name in _COLUMNS:
            column = getattr(self, name)
            column[begin + by : end + by] = column[begin:end]
        by_row: tuple[list[Any], ...] = (self.nodes, self._facts)
        for cells in by_row:
            cells[begin + by : end + by] = cells[begin:end]
        self._odd = {at + by if begin <= at < end else at for at in self._odd}
        for at in range(begin + by, end + by):
            self.changed.append(at)
            self.facts_changed.append(at)
        self._give_row(row, node)
        return True

    def _give_row(self, row: int, node: NodeState) -> None:
        self.nodes[row], self._facts[row] = node, UNSEEN
        self.kind[row] = NO_KIND

    def _lay_out(self, joined: list[NodeState], width: int) -> None:
        # Every class evaluates every row again.
        kept, nodes, facts = self._row_of, self.nodes, self._facts
        self._order.lay_out(node.name for node in joined)
        self.names, self.vacant = self._order.names, self._order.vacant
        self._row_of = self._order.row_of
        total = len(self.names)
        self.every = np.arange(total)
        self.every_cells = self.every.data
        self.nodes, self._facts = [VACANT] * total, [UNSEEN] * total
        place = {row: self._row_of[name] for name, row in kept.items()}
        was, now = np.array([*place], np.int64), np.array([*place.values()], np.int64)
        _move(self, was, now, total, width)
        for row, at in place.items():
            self.nodes[at], self._facts[at] = nodes[row], facts[row]
        self._odd = {place[row] for row in self._odd}
        for node in joined:
            row = self._row_of[node.name]
            if self.nodes[row] is VACANT:
                self._give_row(row, node)
        self.generation += 1

    def _refresh(self, row: Int64, node: NodeState, shares: list[Share] | None) -> None:
        if shares is None:
            self._refresh_all(row, node)
        else:
            self._refresh_devices(row, node, shares)
        host = node.host
        memory_mib: Int64 = host.memory_mib
        cpu_milli: Int64 = host.cpu_milli
        memory_free: Int64 = memory_mib - node.memory_used_mib
        cpu_free: Int64 = cpu_milli - node.cpu_used_milli
        guards: Int64 = packed.GUARDS
        free: Int64 = packed.amounts(memory_free, cpu_free, host.pods - len(node.pods))
        self.flat_free[row * self.width + HOST] = guards | free
        self.flat_host_load[row] = mean_load(memory_mib, memory_free, cpu_milli, cpu_free)
        sums: Int64s = self._sums
        at: Int64 = row * SUMS
        self.flat_load[row] = mean_load(
            sums[at + MEMORY], sums[at + MEMORY_FREE], sums[at + CORES], sums[at + CORES_FREE]
        )
        load: Int64 = self.flat_load[row]
        left: Int64 = (POINTS - load) // (POINTS // 100) * len(node.devices)
        left += packed.compute_of(free) // CPU_MILLI_PER_PERCENT
        self.flat_left[row] = min(left, LEFT_MAX)

    def _refresh_all(self, row: Int64, node: NodeState) -> None:
        devices = [state.device for state in node.devices]
        reported, registered, observed, gone, cordon, silent, known = self._facts[row]
        same = node.reported is reported and node.registered is registered
        same = same and node.observed is observed and node.gone == gone
        same = same and node.cordon == cordon and node.silent == silent
        if not same or devices != known:
            newest = (node.reported, node.registered, node.observed, node.gone)
            self._facts[row] = (*newest, node.cordon, node.silent, devices)
            self._refresh_facts(row, node, devices)
            self.facts_changed.append(row)
        self._odd.discard(row)
        for at, state in enumerate(node.devices, HOST + 1):
            amounts = packed.free_amounts(state)
            self.free[row, at] = amounts
            self.slices[row, at] = state.taken
            self.cut[row, at] = _cut(state, self.fleet)
            self.closed[row, at] = _shut(state)
            if _is_odd(state, amounts):
                self._odd.add(row)
        _sum_free(self.sums[row], node)

    def _refresh_devices(self, row: Int64, node: NodeState, shares: list[Share]) -> None:
        # Sums follow from the differences, unless the packed amounts lose information.
        odd = row in self._odd
        memory_mib: Int64 = 0
        cores: Int64 = 0
        begin: Int64 = row * self.width
        for share in shares:
            state = node.by_id[share.device]
            at: Int64 = _column(node, state)
            before: Int64 = self.flat_free[begin + at]
            amounts: Int64 = packed.free_amounts(state)
            self.flat_free[begin + at] = amounts
            if odd or _is_odd(state, amounts):
                self._odd.add(row)
                odd = True
                self.slices[row, at] = state.taken
                self.cut[row, at] = _cut(state, self.fleet)
                self.closed[row, at] = _shut(state)
            memory_mib += packed.memory_of(amounts) - packed.memory_of(before)
            cores += packed.compute_of(amounts) - packed.compute_of(before)
        if odd:
            _sum_free(self.sums[row], node)
        else:
            self._sums[row * SUMS + MEMORY_FREE] += memory_mib
            self._sums[row * SUMS + CORES_FREE] += cores

    def _refresh_facts(self, row: Int64, node: NodeState, devices: list[Device]) -> None:
        count = 1 + len(devices)
        kinds = self.device_kinds
        kinds.count(self.kind[row].tolist(), -1)
        self.host_total[row] = (node.host.memory_mib, node.host.cpu_milli)
        self.free[row] = packed.GUARDS
        self.kind[row] = NO_KIND
        self.index[row], self.ids[row] = -1, NO_ID
        self.slices[row] = self.cut[row] = self.closed[row] = 0
        self.kind[row, :count] = [HOST_KIND, *[kinds.number(device) for device in devices]]
        kinds.count(self.kind[row].tolist(), 1)
        self.index[row, 1:count] = [device.index for device in devices]
        self.ids[row, 1:count] = [kinds.id_number(device.id) for device in devices]
        sums = self.sums[row]
        sums[MEMORY] = sum(device.memory_mib for device in devices)
        sums[CORES] = sum(device.cores for device in devices)
        taints = node.observed.taints if node.observed else ()
        self.schedulable[row] = not closed(node)
        self.discouraging[row] = any(each.effect == PREFERABLY_NOT for each in taints)


def _cut_anew(columns: Columns) -> None:
    # Update the cut of devices with MIG instances after a change of geometries.
    known: dict[tuple[int, int, str], int] = {}
    rows, places = (found.tolist() for found in np.nonzero(columns.slices))
    for row, at in zip(rows, places, strict=True):
        state = columns.nodes[row].devices[at - 1]
        key = (columns.kind.item(row, at), state.taken, state.group)
        if key not in known:
            known[key] = _cut(state, columns.fleet)
        columns.cut[row, at] = known[key]
    for row in dict.fromkeys(rows):
        columns.changed.append(row)


def _move(columns: Columns, was: Rows, now: Rows, rows: Int64, width: Int64) -> None:
    # Resize the columns, and move the rows `was` to `now`.
    old = {name: getattr(columns, name) for name in _COLUMNS}
    columns.allocate(rows, width)
    for name, column in old.items():
        target = getattr(columns, name)
        if column.ndim == 1:
            target[now] = column[was]
        else:
            target[now, : column.shape[1]] = column[was]


def _sum_free(sums: NDArray[np.int64], node: NodeState) -> None:
    sums[MEMORY_FREE] = sum(state.memory_free_mib for state in node.devices)
    sums[CORES_FREE] = sum(state.cores_free for state in node.devices)


def _cut(state: DeviceState, fleet: FleetFacts) -> int:
    taken = state.taken
    if state.group and not taken:
        return alike_number(state.device.family, state.group)
    if not taken or not fleet.geometries:
        return taken
    device = state.device
    groups = groups_of(fleet.geometries, device.family, device.model)
    return cut_state(taken, state.group, groups)


def _column(node: NodeState, state: DeviceState) -> Int64:
    at: Int64 = HOST + 1
    for each in node.devices:
        if each is state:
            return at
        at += 1
    raise ValueError(f"{state.device.id} is not a device of {node.name}")


def _is_odd(state: DeviceState, amounts: Int64) -> bool:
    """Return True for a device that packed amounts cannot describe, such as an oversold one."""
    guards: Int64 = packed.GUARDS
    return bool(
        state.slices
        or state.group
        or amounts == guards
        or state.memory_free_mib < 0
        or state.cores_free < 0
    )


def _shut(state: DeviceState) -> int:
    if not (state.present and state.healthy):
        return UNHEALTHY
    return CORDONED if state.cordon else OPEN
