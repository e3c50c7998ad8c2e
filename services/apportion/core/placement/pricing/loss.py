"""What a pod would cost a node: its value and variety before the pod, less those after it.

See `scores.price` for what that means. Here is the loop over nodes and their devices.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index import packed
from apportion.core.placement.index.columns import HOST, Kinds
from apportion.core.placement.index.compiled import compiled
from apportion.core.placement.index.packed import POINTS
from apportion.core.placement.pricing.price_table import ALL_SLICES, Ints, Tables
from apportion.core.placement.pricing.states import IDLE, STATES
from apportion.core.placement.pricing.tables import DEVICE_COUNTS
from apportion_schemas.quantities import WHOLE

SCALE: Final = 128  # of values that devices are compared by; more than any percent
_NEVER: Final = -(1 << 60)
_MEMORY: Final = (1 << packed.MEMORY_BITS) - 1
_COMPUTE: Final = (1 << packed.COMPUTE_BITS) - 1
_SLOTS: Final = (1 << packed.SLOTS_BITS) - 1
_COMPUTE_AT: Final = packed.COMPUTE_AT
_SLOTS_AT: Final = packed.SLOTS_AT

Bools = NDArray[np.bool_]


class Seen(NamedTuple):
    """The rows to weigh, which of them fit, which devices have enough, and the columns."""

    rows: Ints
    fit: Bools
    enough: Bools
    free: Ints
    kind: Kinds
    slices: NDArray[np.uint8]


class Taken(NamedTuple):
    """What a pod changes.

    `value` is that of a device, by state and CPU price, times `SCALE`, and `value_broken` what
    breaking an idle one adds, by their number; `room` and `room_broken` are the same of the room
    for each of the frequent shapes.
    """

    value: Ints
    value_broken: Ints
    room: Ints
    room_broken: Ints
    cpu_milli: int
    memory_mib: int
    some_device: bool


class _Node(NamedTuple):
    """The states of a node's devices, as positions in the tables; which are idle, and so many."""

    state: Ints
    idle: Bools
    idles: int


@compiled
def weigh(
    seen: Seen,
    tables: Tables,
    taken: Taken,
    points: NDArray[np.int32],
    devices: NDArray[np.int8],
) -> None:
    """Fill `points` of the rows that fit, and `devices`, by row, with the one that loses least."""
    prices = tables.cpu_prices
    width = seen.free.shape[1]
    state, idle = np.zeros(width, np.int64), np.zeros(width, np.bool_)
    value = np.empty(len(prices), np.int64)
    for i in range(len(seen.rows)):
        if not seen.fit[i]:
            continue
        row = seen.rows[i]
        host = seen.free[row, HOST]
        node = _Node(state, idle, _read(row, seen, tables.kinds, state, idle))
        cpu_milli = host >> _COMPUTE_AT & _COMPUTE
        for price in range(len(prices)):
            value[price] = tables.device_value[node.idles, price] + prices[price] * cpu_milli
        for at in range(HOST + 1, width):
            for price in range(len(prices)):
                value[price] += tables.share_value[state[at], price]
        loss = value.min()
        for price in range(len(prices)):
            value[price] -= prices[price] * taken.cpu_milli
        column = HOST
        if taken.some_device:
            column, left = _place(seen.enough[i], node, value, taken)
            loss -= left
            devices[row] = column - 1
        else:
            loss -= value.min()
        loss += _variety_lost(host, node, column, tables, taken)
        points[i] = POINTS - min(max(loss, 0), POINTS)


@compiled
def _read(row: int, seen: Seen, kinds: Ints, state: Ints, idle: Bools) -> int:
    """Fill the states of the row's devices and which are idle; the position of their number."""
    width = seen.free.shape[1]
    idles = int(seen.kind[row, min(HOST + 1, width - 1)]) * DEVICE_COUNTS
    for at in range(HOST + 1, width):
        of, left = seen.kind[row, at], seen.free[row, at]
        memory_mib, cores, slots, is_cut = kinds[of]
        shares = left >> _SLOTS_AT & _SLOTS
        idle[at] = shares == slots
        idles += int(idle[at])
        found = 0
        if is_cut:
            found = int(seen.slices[row, at]) if shares else ALL_SLICES
        elif idle[at]:
            found = IDLE
        elif shares:
            memory = (left & _MEMORY) * WHOLE // memory_mib
            found = min(memory, (left >> _COMPUTE_AT & _COMPUTE) * WHOLE // cores)
        state[at] = found + of * STATES
    return idles


@compiled
def _place(enough: Bools, node: _Node, value: Ints, taken: Taken) -> tuple[int, int]:
    """The column of the device that leaves the most value, the first of equals; and that value."""
    best, column = _NEVER, HOST
    for at in range(HOST + 1, len(enough)):
        if not enough[at]:
            continue
        least = -_NEVER
        for price in range(len(value)):
            after = value[price] * SCALE + taken.value[node.state[at], price]
            if node.idle[at]:
                after += taken.value_broken[node.idles, price]
            least = min(least, after)
        if least > best:
            best, column = least, at
    return column, -(-best // SCALE)


@compiled
def _variety_lost(host: int, node: _Node, column: int, tables: Tables, taken: Taken) -> int:
    """How much less room for the frequent shapes there is after the pod, weighed."""
    cpu_milli, memory_mib = host >> _COMPUTE_AT & _COMPUTE, host & _MEMORY
    cpu_after, memory_after = cpu_milli - taken.cpu_milli, memory_mib - taken.memory_mib
    lost = 0
    for shape in range(len(tables.frequent)):
        cpu_each, memory_each, weight = tables.frequent[shape]
        room = tables.device_room[node.idles, shape]
        for at in range(HOST + 1, len(node.state)):
            room += tables.share_room[node.state[at], shape]
        if not room:
            continue
        before = _hosted(room, cpu_milli, memory_mib, cpu_each, memory_each)
        if column != HOST:
            room += taken.room[node.state[column], shape]
            if node.idle[column]:
                room += taken.room_broken[node.idles, shape]
        after = _hosted(room, cpu_after, memory_after, cpu_each, memory_each)
        lost += (before - after) * weight
    return lost


@compiled
def _hosted(pods: int, cpu_milli: int, memory_mib: int, cpu_each: int, memory_each: int) -> int:
    """So many of the pods as the host has CPU and memory for; mostly all, so try that first."""
    if pods * cpu_each <= cpu_milli and pods * memory_each <= memory_mib:
        return pods
    return min(pods, cpu_milli // cpu_each, memory_mib // memory_each)
