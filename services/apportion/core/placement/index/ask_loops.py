# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""Compiled loops of `AskColumns`, which compare the devices of nodes with one ask.

Arrays are flat, with `width` values per node. The loops do not check array bounds."""

from typing import Final

from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import HOST
from apportion.core.placement.index.packed import (
    COMPUTE_GUARD,
    MEMORY_GUARD,
    SLOTS_GUARD,
    TEMPLATE_CPU_GUARD,
    Int32s,
    Int64,
    Int64s,
    UInt8s,
    UInt16s,
    UInt32s,
    compute_of,
    lacking,
    mean_load,
    memory_of,
    slots_of,
    times,
)

# Device order, as the weight of the load: `BINPACK` takes the highest load first; `SPREAD` the
# fewest shares, then the lowest load. See `scores.devices`.
BINPACK: Final[Int64] = -1
SPREAD: Final[Int64] = 1


def _more(free: Int64, need: Int64, charge: Int64, most: Int64) -> Int64:
    # At most `most`; MIG instances charge nothing here, so all of them count.
    count: Int64 = 0
    if not charge:
        return most
    while count < most and not lacking(free - charge * (count + 1), need):
        count += 1
    return count


def look(
    rows: Int64s,
    number: Int64,
    free: Int64s,
    kind: UInt32s,
    cut: UInt16s,
    elsewhere: UInt8s,
    need: Int64s,
    charge: Int64s,
    fits: UInt8s,
    width: Int64,
    cuts: Int64,
    wanted: Int64,
    alike: Int64,
    noted: Int64,
    enough: UInt8s,
    given: Int32s,
) -> None:
    """Implement `AskColumns.look`; unless `noted`, check no more devices than needed."""
    named: Int64 = len(elsewhere)
    i: Int64
    at: Int64
    for i in range(number):
        if given[i] == REFUSED:
            continue
        host: Int64 = rows[i] * width + HOST
        found: Int64 = 0
        end: Int64 = host if lacking(free[host], need[kind[host]]) else host + width
        for at in range(host + 1, end):
            of: Int64 = kind[at]
            if (
                lacking(free[at], need[of])
                or not fits[of * cuts + cut[at]]
                or (named and elsewhere[at])
            ):
                if noted:
                    enough[i * width + at - host] = 0
                continue
            found += 1 + (_more(free[at], need[of], charge[of], alike - 1) if alike > 1 else 0)
            if noted:
                enough[i * width + at - host] = 1
            elif found >= wanted:
                break
        if found < wanted:
            given[i] = REFUSED


def fill(
    rows: Int64s,
    free: Int64s,
    kind: UInt32s,
    need: Int64s,
    charge: Int64s,
    width: Int64,
    wanted: Int64,
    found: Int64s,
) -> None:
    """Implement `AskColumns.fill`: lower the pods in `found` to what the devices allow."""
    i: Int64
    at: Int64
    for i in range(len(rows)):
        most: Int64 = found[rows[i]] * wanted
        room: Int64 = 0
        at = rows[i] * width + HOST + 1
        end: Int64 = (rows[i] + 1) * width
        while at < end and room < most:
            of: Int64 = kind[at]
            room += times(free[at], need[of], charge[of])
            at += 1
        if room < most:
            found[rows[i]] = room // wanted


def fill_hosts(
    rows: Int64s, free: Int64s, width: Int64, need: Int64, node_ok: UInt8s, found: Int64s
) -> None:
    """Set the value of each of these rows to how many pods the host has room for at most."""
    i: Int64
    for i in range(len(rows)):
        row: Int64 = rows[i]
        found[row] = times(free[row * width + HOST], need, need) if node_ok[row] else 0


def house(
    rows: Int64s, number: Int64, free: Int64s, width: Int64, need: Int64, given: Int32s
) -> None:
    """Refuse each node with too little CPU or memory for a pod without devices."""
    i: Int64
    for i in range(number):
        if lacking(free[rows[i] * width + HOST], need):
            given[i] = REFUSED


def helped(
    rows: Int64s,
    free: Int64s,
    kind: UInt32s,
    needs: Int64s,
    counts: Int64s,
    width: Int64,
    kinds: Int64,
    found: Int64s,
) -> Int64:
    """Write to `found` the indexes of the shape queues that now have room; return their number."""
    helped_count: Int64 = 0
    slot: Int64
    i: Int64
    for slot in range(len(counts)):
        need: Int64 = slot * kinds
        for i in range(len(rows)):
            host: Int64 = rows[i] * width + HOST
            if lacking(free[host], needs[need + kind[host]]):
                continue
            fitting: Int64 = 0
            at: Int64 = host + 1
            while at < host + width and fitting < counts[slot]:
                if not lacking(free[at], needs[need + kind[at]]):
                    fitting += 1
                at += 1
            if fitting >= counts[slot]:
                found[helped_count] = slot
                helped_count += 1
                break
    return helped_count


def rank(
    ranks: UInt8s,
    free: Int64s,
    kind: UInt32s,
    closed: UInt8s,
    cut: UInt16s,
    need: Int64s,
    alone: UInt8s,
    fits: UInt8s,
    cuts: Int64,
    codes: UInt8s,
) -> None:
    """Implement `AskColumns.rank`, one rank per device.

    `codes` are the ranks of: no refusal, unhealthy, cordoned, in use, too few slots, too few cores,
    too little memory, occupied instances, and too little CPU of an NPU."""
    slots: Int64 = SLOTS_GUARD  # local variables, as in `packed.lacking`
    compute: Int64 = COMPUTE_GUARD
    memory: Int64 = MEMORY_GUARD
    template_cpu: Int64 = TEMPLATE_CPU_GUARD
    at: Int64
    for at in range(len(ranks)):
        if ranks[at] != codes[0]:
            continue
        of: Int64 = kind[at]
        lacks: Int64 = lacking(free[at], need[of])
        if closed[at]:
            ranks[at] = codes[closed[at]]
        elif lacks & slots:
            ranks[at] = codes[3 if alone[of] else 4]
        elif lacks & compute:
            ranks[at] = codes[5]
        elif lacks & memory:
            ranks[at] = codes[6]
        elif not fits[of * cuts + cut[at]]:
            ranks[at] = codes[7]
        elif lacks & template_cpu:
            ranks[at] = codes[8]


def pick(
    row: Int64,
    free: Int64s,
    kind: UInt32s,
    cut: UInt16s,
    elsewhere: UInt8s,
    need: Int64s,
    fits: UInt8s,
    totals: Int64s,
    width: Int64,
    cuts: Int64,
    weight: Int64,
) -> Int64:
    """Implement `AskColumns.pick`; if devices are equally good, the first wins."""
    host: Int64 = row * width + HOST
    best: Int64 = -1
    holders_least: Int64 = 0
    load_least: Int64 = 0
    at: Int64
    for at in range(host + 1, host + width):
        of: Int64 = kind[at]
        left: Int64 = free[at]
        if lacking(left, need[of]) or not fits[of * cuts + cut[at]]:
            continue
        if len(elsewhere) and elsewhere[at]:
            continue
        memory_mib: Int64 = totals[of * 3]
        cores: Int64 = totals[of * 3 + 1]
        load: Int64 = mean_load(memory_mib, memory_of(left), cores, compute_of(left)) * weight
        holders: Int64 = totals[of * 3 + 2] - slots_of(left) if weight > 0 else 0
        if best < 0 or holders < holders_least or (holders == holders_least and load < load_least):
            best, holders_least, load_least = at - host - 1, holders, load
    return best
