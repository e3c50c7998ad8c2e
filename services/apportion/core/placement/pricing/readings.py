"""The value of each node before a pod is placed.

Invariant: after `PriceTable.read`, each row is the value of its node by the price tables."""

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index.packed import Int8s, Int32s, Int64, Int64s, UInt8s

Ints = NDArray[np.int64]


class Tables:
    """The tables of one set of prices, flat for the compiled loops."""

    def __init__(
        self,
        kinds: Ints,
        cpu_prices: Ints,
        values: tuple[Ints, Ints],
        rooms: tuple[Ints, Ints, Ints],
        percent_left: Ints,
    ) -> None:
        share_value, device_value = values
        share_room, device_room, frequent = rooms
        self.kinds: Int64s = kinds.reshape(-1).data  # MiB, cores, slots, whether it has MIG
        self.prices: Int64 = len(cpu_prices)
        self.cpu_prices: Int64s = cpu_prices.data
        self.share_value: Int64s = share_value.reshape(-1).data  # by kind and state
        self.device_value: Int64s = device_value.reshape(-1).data  # by kind and idle devices
        self.shapes: Int64 = len(frequent)
        self.share_room: Int32s = share_room.astype(np.int32).reshape(-1).data
        self.device_room: Int32s = device_room.astype(np.int32).reshape(-1).data
        self.frequent: Int64s = frequent.reshape(-1).data
        self.percent_left: Int64s = percent_left.data


class Readings:
    """The value of each node before a pod is placed, at the current prices."""

    def __init__(self, tables: Tables, rows: int, width: int) -> None:
        self.tables = tables
        self.width: Int64 = width
        self.states = np.zeros((rows, width), np.int32)
        self.numbers = np.zeros(rows, np.int32)
        self.state: Int32s = self.states.reshape(-1).data  # index into the tables
        self.idle: UInt8s = np.zeros(rows * width, np.uint8).data
        self.idles: Int32s = self.numbers.data
        self.least: Int64s = np.zeros(rows, np.int64).data  # of a node
        self.value: Int64s = np.zeros(rows * tables.prices, np.int64).data  # at each CPU price
        self.room: Int32s = np.zeros(rows * tables.shapes, np.int32).data
        self.hosted: Int32s = np.zeros(rows * tables.shapes, np.int32).data


class Taken:
    """What one pod takes of a node: devices, host CPU and memory."""

    def __init__(
        self, after: NDArray[np.int32], count: Int64, cpu_milli: Int64, memory_mib: Int64
    ) -> None:
        self.after: Int32s = after.data  # from a table index to that after one share
        self.count: Int64 = count  # devices
        self.cpu_milli: Int64 = cpu_milli
        self.memory_mib: Int64 = memory_mib
        self.make_room(0)

    def make_room(self, rows: int) -> None:
        """Reset to `rows` rows without a chosen device."""
        self.device: Int8s = np.full(rows, -1, np.int8).data
