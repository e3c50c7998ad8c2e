"""The loops of `AskColumns`: the devices of nodes against one ask.

Invariant: as of every compiled loop, see `compiled`.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement import packed
from apportion.core.placement.board_loops import REFUSED, Points, write
from apportion.core.placement.columns import HOST, Kinds, Rows
from apportion.core.placement.compiled import compiled, interpreted

_GUARDS: Final = packed.GUARDS
_REFUSED: Final = np.int32(REFUSED)
BINPACK: Final = -1
SPREAD: Final = 1
"""Which device comes first, as the weight of its load: the one with the most, or of those with the
fewest holders the one with the least. See `scores.devices`.
"""
_source = interpreted(packed)
_mean_load = compiled(_source.mean_load)
_memory_of = compiled(_source.memory_of)
_compute_of = compiled(_source.compute_of)
_slots_of = compiled(_source.slots_of)

Amounts = NDArray[np.int64]
Flags = NDArray[np.bool_]


@compiled
def _more(free: int, need: int, charge: int, most: int) -> int:
    """How many more find enough on a device where one does already, at most so many.

    Of instances, which charge nothing here, as many as are wanted.
    """
    if not charge:
        return most
    count = 0
    while count < most and (free - charge * (count + 1) - need) & _GUARDS == _GUARDS:
        count += 1
    return count


@compiled
def look(
    rows: Rows,
    free: Amounts,
    kind: Kinds,
    cut: NDArray[Any],
    elsewhere: Flags,
    need: Amounts,
    charge: Amounts,
    instance_fits: Flags,
    count: int,
    times: int,
    fit: Flags,
    enough: Flags,
) -> None:
    """`AskColumns.look`; `elsewhere` is empty where the pod names no device."""
    some_elsewhere, wanted = elsewhere.shape[0] > 0, count * times
    for i in range(len(rows)):
        row, found = rows[i], 0
        for at in range(HOST + 1, free.shape[1]):
            of = kind[row, at]
            has = (free[row, at] - need[of]) & _GUARDS == _GUARDS
            has = has and instance_fits[of, cut[row, at]]
            has = has and not (some_elsewhere and elsewhere[row, at])
            enough[i, at] = has
            found += has
            if has and times > 1:
                found += _more(free[row, at], need[of], charge[of], times - 1)
        enough[i, HOST] = False
        host = (free[row, HOST] - need[kind[row, HOST]]) & _GUARDS == _GUARDS
        fit[i] &= host and found >= wanted


@compiled
def rank(
    rows: Rows,
    free: Amounts,
    kind: Kinds,
    cut: NDArray[Any],
    elsewhere: Flags,
    need: Amounts,
    charge: Amounts,
    instance_fits: Flags,
    count: int,
    times: int,
    welcome: Flags,
    load: Points,
    points: Points,
    most: Points,
    fitting: Rows,
) -> None:
    """`AskColumns.rank`: `look` and `board_loops.write` in one, up to the last device wanted."""
    some_elsewhere, wanted = elsewhere.shape[0] > 0, count * times
    given, opens = np.empty(len(rows), np.int32), np.empty(len(rows), np.bool_)
    # What is far away is asked for at once, and `given` for no other reason: the loop below would
    # wait for each row.
    for i in range(len(rows)):
        given[i], opens[i] = points[rows[i]], welcome[rows[i]]
    for i in range(len(rows)):
        row, found = rows[i], 0
        host = (free[row, HOST] - need[kind[row, HOST]]) & _GUARDS == _GUARDS
        if opens[i] and host:
            for at in range(HOST + 1, free.shape[1]):
                of = kind[row, at]
                if (free[row, at] - need[of]) & _GUARDS != _GUARDS:
                    continue
                if not instance_fits[of, cut[row, at]] or (some_elsewhere and elsewhere[row, at]):
                    continue
                found += 1
                if times > 1:
                    found += _more(free[row, at], need[of], charge[of], times - 1)
                if found >= wanted:
                    break
        given[i] = load[row] if found >= wanted else _REFUSED
    write(points, most, fitting, rows, given)


@compiled
def helped(
    rows: Rows, free: Amounts, kind: Kinds, needs: Amounts, counts: Amounts, found: Rows
) -> int:
    """`Parked.helped`: how many lines have room on one of these rows, and in `found` which.

    `needs` are by line and kind. How cards are cut, and which devices a pod names, is not asked.
    """
    lines = 0
    for line in range(len(counts)):
        need, count = needs[line], counts[line]
        for row in rows:
            if (free[row, HOST] - need[kind[row, HOST]]) & _GUARDS != _GUARDS:
                continue
            fitting, at = 0, HOST + 1
            while at < free.shape[1] and fitting < count:
                fitting += (free[row, at] - need[kind[row, at]]) & _GUARDS == _GUARDS
                at += 1
            if fitting >= count:
                found[lines] = line
                lines += 1
                break
    return lines


@compiled
def pick(
    row: int,
    free: Amounts,
    kind: Kinds,
    cut: NDArray[Any],
    elsewhere: Flags,
    need: Amounts,
    instance_fits: Flags,
    totals: Amounts,
    weight: int,
) -> int:
    """`AskColumns.pick`; of equals the first."""
    best, holders_least, load_least = -1, 0, 0
    for at in range(HOST + 1, free.shape[1]):
        of, left = kind[row, at], free[row, at]
        if (left - need[of]) & _GUARDS != _GUARDS or not instance_fits[of, cut[row, at]]:
            continue
        if elsewhere.shape[0] > 0 and elsewhere[row, at]:
            continue
        memory_mib, cores, slots = totals[of]
        load = _mean_load(memory_mib, _memory_of(left), cores, _compute_of(left)) * weight
        holders = slots - _slots_of(left) if weight > 0 else 0
        if best < 0 or (holders, load) < (holders_least, load_least):
            best, holders_least, load_least = at - HOST - 1, holders, load
    return best
