"""The nodes as columns: what numpy needs to ask one question of many nodes.

A derived structure: it can be dropped and made again from the `State` at any time. Rows are in the
order of node names, so that a choice among equals never depends on the order in which nodes were
learnt.

Invariant: after `sync`, row i says of node `names[i]` what the state says of it, and the two logs
name every row that changed since a reader of the logs last looked.
"""

from bisect import bisect_left
from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.ledger.state import DeviceState, NodeState, State
from apportion.core.placement import packed
from apportion_schemas import Device

POINTS: Final = 100_000  # a score's full range: 0 to 100 in thousandths
LOG_ROWS_MAX: Final = 1 << 16
NO_KIND: Final = 0  # of a column beyond the node's last device

_COLUMNS: Final = (
    "free",
    "kind",
    "index",
    "slices",
    "closed",
    "room",
    "load",
    "host_load",
    "welcoming",
)
OPEN, UNHEALTHY, CORDONED = 0, 1, 2
_KEEPS_OUT: Final = ("NoSchedule", "NoExecute")

Rows = NDArray[np.int64]


class RowLog:
    """Rows in the order in which they changed, for readers that come at their own pace."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._start = 0

    @property
    def end(self) -> int:
        """The position after the newest entry."""
        return self._start + len(self._rows)

    def append(self, row: int) -> None:
        """Note that the row changed."""
        self._rows.append(row)
        if len(self._rows) > LOG_ROWS_MAX:
            drop = LOG_ROWS_MAX // 2
            del self._rows[:drop]
            self._start += drop

    def since(self, position: int) -> list[int] | None:
        """The rows that changed since then, or None if the log no longer reaches so far back."""
        if position < self._start:
            return None
        return self._rows[position - self._start :]


class Columns:
    """Free amounts, kinds of device, room and load of every node.

    `free`, `kind`, `index`, `slices` and `closed` have a row for each node and a column for each
    device; the others a value for each node. A `welcoming` node keeps out no pod that has no
    wishes of its own: present, ready, not cordoned, without taints.
    """

    def __init__(self, state: State) -> None:
        self._kind_of: dict[tuple[object, ...], int] = {}
        self.kinds: list[Device] = []
        self.generation = 0
        self.names: list[str] = []
        self.nodes: list[NodeState] = []
        self._standing: list[tuple[object, ...]] = []
        self._totals: list[tuple[int, int]] = []
        self.changed = RowLog()
        self.standing_changed = RowLog()
        self._touched: dict[str, NodeState] = dict(state.nodes)
        self._allocate(0, 1)

    def touch(self, node: NodeState) -> None:
        """Note that the node changed; its row is made again by the next `sync`."""
        self._touched[node.name] = node

    def sync(self) -> None:
        """Bring the rows up to the state: cost follows the number of touched nodes."""
        if not self._touched:
            return
        touched, self._touched = self._touched, {}
        widest = max((len(node.devices) for node in touched.values()), default=0)
        joined = [name for name in touched if self.find(name) is None]
        if joined or widest > self.free.shape[1]:
            self._join({name: touched[name] for name in joined}, widest)
        for name, node in touched.items():
            row = self.find(name)
            if row is not None:
                self._refresh(row, node)

    def find(self, name: str) -> int | None:
        """The row of that node."""
        row = bisect_left(self.names, name)
        return row if row < len(self.names) and self.names[row] == name else None

    def _allocate(self, rows: int, width: int) -> None:
        self.free = np.zeros((rows, width), np.int64)
        self.kind = np.zeros((rows, width), np.int32)
        self.index = np.full((rows, width), -1, np.int16)
        self.slices = np.zeros((rows, width), np.uint8)
        self.closed = np.zeros((rows, width), np.uint8)
        self.room = np.zeros(rows, np.int64)
        self.load = np.zeros(rows, np.int32)
        self.host_load = np.zeros(rows, np.int32)
        self.welcoming = np.zeros(rows, np.bool_)

    def _join(self, joined: dict[str, NodeState], widest: int) -> None:
        """Make room for new nodes and wider ones; every class looks at every row again."""
        old_names, old = self.names, {name: getattr(self, name) for name in _COLUMNS}
        nodes = dict(zip(old_names, self.nodes, strict=True)) | joined
        standing = dict(zip(old_names, self._standing, strict=True))
        self.names = sorted(nodes)
        self.nodes = [nodes[name] for name in self.names]
        self._standing = [standing.get(name, ()) for name in self.names]
        totals = dict(zip(old_names, self._totals, strict=True))
        self._totals = [totals.get(name, (0, 0)) for name in self.names]
        width = max(widest, self.free.shape[1])
        self._allocate(len(self.names), width)
        place = np.searchsorted(np.array(self.names, object), np.array(old_names, object))
        for column, was in old.items():
            target = getattr(self, column)
            if was.ndim == 1:
                target[place] = was
            else:
                target[place, : was.shape[1]] = was
        self.generation += 1

    def _refresh(self, row: int, node: NodeState) -> None:
        reported, observed = node.reported, node.observed
        standing = (reported, observed, node.gone, node.cordon)
        if any(a is not b for a, b in zip(standing, self._standing[row] or (0,) * 4, strict=True)):
            self._standing[row] = standing
            self._refresh_standing(row, node)
            self.standing_changed.append(row)
        self._refresh_devices(row, node)
        self._refresh_host(row, node)
        self.changed.append(row)

    def _refresh_devices(self, row: int, node: NodeState) -> None:
        devices = node.devices
        count = len(devices)
        self.free[row, :count] = [packed.free_amounts(state) for state in devices]
        slices = [state.slices for state in devices]
        if any(slices) or self.slices[row].any():
            self.slices[row, :count] = slices
        closed = [_shut(state) for state in devices]
        if any(closed) or self.closed[row].any():
            self.closed[row, :count] = closed
        memory_total, cores_total = self._totals[row]
        memory_free = sum(state.memory_free_mib for state in devices)
        cores_free = sum(state.cores_free for state in devices)
        self.load[row] = mean_load(memory_total, memory_free, cores_total, cores_free)

    def _refresh_host(self, row: int, node: NodeState) -> None:
        host = node.host
        cpu_free = host.cpu_milli - node.cpu_used_milli
        memory_free = host.memory_mib - node.memory_used_mib
        self.room[row] = packed.node_room(cpu_free, memory_free, host.pods - len(node.pods))
        self.host_load[row] = mean_load(host.memory_mib, memory_free, host.cpu_milli, cpu_free)

    def _refresh_standing(self, row: int, node: NodeState) -> None:
        kinds = [self._kind(state.device) for state in node.devices]
        self.kind[row] = NO_KIND
        self.index[row] = -1
        self.free[row] = 0
        self.kind[row, : len(kinds)] = kinds
        self.slices[row] = self.closed[row] = 0
        self._totals[row] = (
            sum(state.device.memory_mib for state in node.devices),
            sum(state.device.cores for state in node.devices),
        )
        self.index[row, : len(kinds)] = [state.device.index for state in node.devices]
        taints = node.observed.taints if node.observed else ()
        kept_out = any(taint.effect in _KEEPS_OUT for taint in taints)
        self.welcoming[row] = node.ready and not node.cordon and not kept_out

    def _kind(self, device: Device) -> int:
        """A number for devices that every ask would treat alike but for id and index."""
        key = (
            device.family,
            device.model,
            device.mode,
            device.memory_mib,
            device.physical_memory_mib,
            device.cores,
            device.slots,
        )
        known = self._kind_of.get(key)
        if known is None:
            self.kinds.append(device)
            known = self._kind_of[key] = len(self.kinds)  # from 1: 0 is `NO_KIND`
        return known


def _shut(state: DeviceState) -> int:
    if not (state.present and state.healthy):
        return UNHEALTHY
    return CORDONED if state.cordon else OPEN


def mean_load(memory_total: int, memory_free: int, cores_total: int, cores_free: int) -> int:
    """The mean of the used part of two resources, in `POINTS`; 0 where either is not there."""
    if not memory_total or not cores_total:
        return 0
    memory = (memory_total - memory_free) * POINTS // memory_total
    cores = (cores_total - cores_free) * POINTS // cores_total
    return min(max((memory + cores) // 2, 0), POINTS)
