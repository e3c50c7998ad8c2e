"""The loops of `AskColumns`: the devices of nodes against one ask.

Arrays that have a row for each node are flat here: `width` values of each node, those of the host
first. `need` and `charge` are by kind, `fits` by kind and cut, `cuts` values of each kind.
`elsewhere` is empty where the pod names no device. The rows are those from `begin` to `end`.

Invariant: as of every compiled loop, see `compiled`.
"""

from typing import Final

from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import HOST
from apportion.core.placement.index.compiled import (
    Flat32,
    Flat64,
    FlatCuts,
    FlatFlags,
    FlatKinds,
    compiled,
)
from apportion.core.placement.index.packed import (
    Int64,
    compute_of,
    lacking,
    mean_load,
    memory_of,
    slots_of,
)

BINPACK: Final[Int64] = -1
SPREAD: Final[Int64] = 1
"""Which device comes first, as the weight of its load: the one with the most, or of those with the
fewest holders the one with the least. See `scores.devices`.
"""


@compiled
def _more(free: Int64, need: Int64, charge: Int64, most: Int64) -> Int64:
    """How many more find enough on a device where one does already, at most so many.

    Of instances, which charge nothing here, as many as are wanted.
    """
    count: Int64 = 0
    if not charge:
        return most
    while count < most and not lacking(free - charge * (count + 1), need):
        count += 1
    return count


@compiled
def look(
    rows: Flat64,
    free: Flat64,
    kind: FlatKinds,
    cut: FlatCuts,
    elsewhere: FlatFlags,
    need: Flat64,
    charge: Flat64,
    fits: FlatFlags,
    width: Int64,
    cuts: Int64,
    count: Int64,
    times: Int64,
    fit: FlatFlags,
    enough: FlatFlags,
) -> None:
    """`AskColumns.look`."""
    named: Int64 = len(elsewhere)
    i: Int64
    at: Int64
    for i in range(len(rows)):
        host: Int64 = rows[i] * width + HOST
        found: Int64 = 0
        for at in range(host + 1, host + width):
            of: Int64 = kind[at]
            has: Int64 = 0
            if not lacking(free[at], need[of]) and fits[of * cuts + cut[at]]:
                has = 1
            if named and elsewhere[at]:
                has = 0
            enough[i * width + at - host] = has
            found += has
            if has and times > 1:
                found += _more(free[at], need[of], charge[of], times - 1)
        enough[i * width + HOST] = 0
        if lacking(free[host], need[kind[host]]) or found < count * times:
            fit[i] = 0


@compiled
def rank(
    rows: Flat64,
    begin: Int64,
    end: Int64,
    free: Flat64,
    kind: FlatKinds,
    cut: FlatCuts,
    elsewhere: FlatFlags,
    need: Flat64,
    charge: Flat64,
    fits: FlatFlags,
    width: Int64,
    cuts: Int64,
    wanted: Int64,
    times: Int64,
    node_ok: FlatFlags,
    load: Flat32,
    given: Flat32,
) -> None:
    """`AskColumns.rank`: as `look`, up to the last device wanted."""
    named: Int64 = len(elsewhere)
    i: Int64
    # What is far away is asked for at once: the loop below would wait for each row.
    for i in range(begin, end):
        given[i - begin] = load[rows[i]] if node_ok[rows[i]] else REFUSED
    for i in range(begin, end):
        host: Int64 = rows[i] * width + HOST
        found: Int64 = 0
        at: Int64 = host + 1
        if given[i - begin] == REFUSED or lacking(free[host], need[kind[host]]):
            at = host + width
        while at < host + width and found < wanted:
            of: Int64 = kind[at]
            has: Int64 = not lacking(free[at], need[of]) and fits[of * cuts + cut[at]]
            if has and not (named and elsewhere[at]):
                found += 1 + (_more(free[at], need[of], charge[of], times - 1) if times > 1 else 0)
            at += 1
        if found < wanted:
            given[i - begin] = REFUSED


@compiled
def helped(
    rows: Flat64,
    free: Flat64,
    kind: FlatKinds,
    needs: Flat64,
    counts: Flat64,
    width: Int64,
    kinds: Int64,
    found: Flat64,
) -> Int64:
    """`Parked.helped`: how many lines have room on one of these rows, and in `found` which.

    `needs` are by line and kind. How cards are cut, and which devices a pod names, is not asked.
    """
    lines: Int64 = 0
    line: Int64
    i: Int64
    for line in range(len(counts)):
        need: Int64 = line * kinds
        for i in range(len(rows)):
            host: Int64 = rows[i] * width + HOST
            if lacking(free[host], needs[need + kind[host]]):
                continue
            fitting: Int64 = 0
            at: Int64 = host + 1
            while at < host + width and fitting < counts[line]:
                if not lacking(free[at], needs[need + kind[at]]):
                    fitting += 1
                at += 1
            if fitting >= counts[line]:
                found[lines] = line
                lines += 1
                break
    return lines


@compiled
def pick(
    row: Int64,
    free: Flat64,
    kind: FlatKinds,
    cut: FlatCuts,
    elsewhere: FlatFlags,
    need: Flat64,
    fits: FlatFlags,
    totals: Flat64,
    width: Int64,
    cuts: Int64,
    weight: Int64,
) -> Int64:
    """`AskColumns.pick`; of equals the first. `totals` are memory, cores and slots of each kind."""
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
