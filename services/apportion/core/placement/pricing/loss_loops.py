# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""Compiled loops that compute what placing a pod costs a node.

The loops do not check array bounds."""

from typing import Final

from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import HOST
from apportion.core.placement.index.packed import (
    POINTS,
    Int64,
    Int64s,
    UInt8s,
    UInt32s,
    compute_of,
    memory_of,
    slots_of,
)
from apportion.core.placement.index.score_input import ScoreInput
from apportion.core.placement.pricing.readings import Readings, Tables, Taken
from apportion.core.placement.pricing.states import ALL_SLICES, DEVICE_COUNTS, IDLE, PERCENT, STATES

SCALE: Final[Int64] = 128  # multiplies values, so that percent left can break ties
NEVER: Final[Int64] = -(1 << 60)


def read(
    rows: Int64s,
    begin: Int64,
    end: Int64,
    free: Int64s,
    kind: UInt32s,
    slices: UInt8s,
    tables: Tables,
    readings: Readings,
) -> None:
    """Recompute the values of the nodes in `rows[begin:end]`."""
    i: Int64
    for i in range(begin, end):
        row: Int64 = rows[i]
        _read_states(row, free, kind, slices, tables, readings)
        host: Int64 = free[row * readings.width + HOST]
        _read_value(row, compute_of(host), tables, readings)
        _read_room(row, compute_of(host), memory_of(host), tables, readings)


def _read_states(
    row: Int64, free: Int64s, kind: UInt32s, slices: UInt8s, tables: Tables, readings: Readings
) -> None:
    # The state of each device, and the number of idle ones.
    host: Int64 = row * readings.width + HOST
    end: Int64 = host + readings.width
    idles: Int64 = kind[min(host + 1, end - 1)] * DEVICE_COUNTS
    at: Int64
    for at in range(host + 1, end):
        of: Int64 = kind[at]
        shares: Int64 = slots_of(free[at])
        idle: Int64 = shares == tables.kinds[of * 4 + 2]
        found: Int64 = 0
        if tables.kinds[of * 4 + 3]:
            found = slices[at] if shares else ALL_SLICES
            if found:
                idle = 0  # slices may be closed although there is no share
        elif idle:
            found = IDLE
        elif shares:
            memory: Int64 = memory_of(free[at]) * PERCENT // tables.kinds[of * 4]
            found = min(memory, compute_of(free[at]) * PERCENT // tables.kinds[of * 4 + 1])
        readings.idle[at] = idle
        readings.state[at] = found + of * STATES
        idles += idle
    readings.idles[row] = idles


def _read_value(row: Int64, cpu_milli: Int64, tables: Tables, readings: Readings) -> None:
    # The value at each price of CPU, and the lowest of these.
    prices: Int64 = tables.prices
    idles: Int64 = readings.idles[row]
    least: Int64 = -NEVER
    price: Int64
    at: Int64
    for price in range(prices):
        value: Int64 = tables.device_value[idles * prices + price]
        value += tables.cpu_prices[price] * cpu_milli
        for at in range(row * readings.width + HOST + 1, (row + 1) * readings.width):
            value += tables.share_value[readings.state[at] * prices + price]
        readings.value[row * prices + price] = value
        least = min(least, value)
    readings.least[row] = least


def _read_room(
    row: Int64, cpu_milli: Int64, memory_mib: Int64, tables: Tables, readings: Readings
) -> None:
    # How many pods of each frequent shape fit.
    shapes: Int64 = tables.shapes
    idles: Int64 = readings.idles[row]
    shape: Int64
    at: Int64
    for shape in range(shapes):
        room: Int64 = tables.device_room[idles * shapes + shape]
        for at in range(row * readings.width + HOST + 1, (row + 1) * readings.width):
            room += tables.share_room[readings.state[at] * shapes + shape]
        readings.room[row * shapes + shape] = room
        readings.hosted[row * shapes + shape] = _hosted(room, cpu_milli, memory_mib, shape, tables)


def weigh(look: ScoreInput, free: Int64s, tables: Tables, readings: Readings, taken: Taken) -> None:
    """Score each row (node) by what the pod costs it, and record the cheapest device."""
    width: Int64 = readings.width
    i: Int64
    at: Int64
    for i in range(look.count):
        if look.given[i] == REFUSED:
            continue
        row: Int64 = look.rows[i]
        column: Int64 = HOST
        best: Int64 = NEVER
        if taken.count:
            for at in range(HOST + 1, width):
                if look.enough[i * width + at]:
                    left: Int64 = _left(row, at, tables, readings, taken)
                    if left > best:
                        best, column = left, at
        else:
            best = _left(row, HOST, tables, readings, taken)
        taken.device[row] = column - 1
        host: Int64 = free[row * width + HOST]
        loss: Int64 = readings.least[row] + -best // SCALE
        loss += _variety_lost(row, host, column, tables, readings, taken)
        look.given[i] = POINTS - min(max(loss, 0), POINTS)


def _left(row: Int64, at: Int64, tables: Tables, readings: Readings, taken: Taken) -> Int64:
    # The value left after taking this device, if any, times `SCALE`, minus what is left of the
    # device: with equal values the fullest device wins.
    prices: Int64 = tables.prices
    idles: Int64 = readings.idles[row]
    fewer: Int64 = idles
    state: Int64 = 0
    after: Int64 = 0
    percent: Int64 = 0
    if at != HOST:
        state = readings.state[row * readings.width + at]
        after = taken.after[state]
        percent = tables.percent_left[state]
        if readings.idle[row * readings.width + at]:
            fewer -= min(idles % DEVICE_COUNTS, taken.count)
    least: Int64 = -NEVER
    price: Int64
    for price in range(prices):
        value: Int64 = readings.value[row * prices + price]
        value -= tables.cpu_prices[price] * taken.cpu_milli
        change: Int64 = tables.share_value[after * prices + price]
        change -= tables.share_value[state * prices + price]
        value += change * taken.count
        value += tables.device_value[fewer * prices + price]
        value -= tables.device_value[idles * prices + price]
        least = min(least, value)
    return least * SCALE - percent


def _variety_lost(
    row: Int64, host: Int64, column: Int64, tables: Tables, readings: Readings, taken: Taken
) -> Int64:
    # The weighted loss of room for the frequent shapes.
    shapes: Int64 = tables.shapes
    cpu_milli: Int64 = compute_of(host) - taken.cpu_milli
    memory_mib: Int64 = memory_of(host) - taken.memory_mib
    idles: Int64 = readings.idles[row]
    fewer: Int64 = idles
    state: Int64 = 0
    after: Int64 = 0
    if column != HOST:
        state = readings.state[row * readings.width + column]
        after = taken.after[state]
        if readings.idle[row * readings.width + column]:
            fewer -= min(idles % DEVICE_COUNTS, taken.count)
    lost: Int64 = 0
    shape: Int64
    for shape in range(shapes):
        room: Int64 = readings.room[row * shapes + shape]
        if not room:
            continue
        change: Int64 = tables.share_room[after * shapes + shape]
        change -= tables.share_room[state * shapes + shape]
        room += change * taken.count
        room += tables.device_room[fewer * shapes + shape]
        room -= tables.device_room[idles * shapes + shape]
        lost += tables.frequent[shape * 3 + 2] * (
            readings.hosted[row * shapes + shape]
            - _hosted(room, cpu_milli, memory_mib, shape, tables)
        )
    return lost


def _hosted(
    pods: Int64, cpu_milli: Int64, memory_mib: Int64, shape: Int64, tables: Tables
) -> Int64:
    # Limit the pods to the host's CPU and memory. Usually all fit, so that is checked first.
    cpu_each: Int64 = tables.frequent[shape * 3]
    memory_each: Int64 = tables.frequent[shape * 3 + 1]
    if pods * cpu_each <= cpu_milli and pods * memory_each <= memory_mib:
        return pods
    return min(pods, cpu_milli // cpu_each, memory_mib // memory_each)
