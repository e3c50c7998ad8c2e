"""The loops of `AskColumns`: the devices of nodes against one ask.

Invariant: as of every compiled loop, see `compiled`.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement import packed
from apportion.core.placement.columns import HOST, Rows
from apportion.core.placement.compiled import compiled, interpreted

_GUARDS: Final = packed.GUARDS
_source = interpreted(packed)
_mean_load = compiled(_source.mean_load)
_memory_of = compiled(_source.memory_of)
_compute_of = compiled(_source.compute_of)
_slots_of = compiled(_source.slots_of)

Seen = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any], NDArray[np.bool_]]
"""The columns `free`, `kind` and `cut`, and `elsewhere`, empty where the pod names no device."""
Fits = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""By kind of device the need, and which cuts have room for it."""
Asked = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], int, int]
"""By kind the need, what is charged and which cuts have room; then how many devices are wanted, and
how often."""


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
    rows: Rows, seen: Seen, asked: Asked, fit: NDArray[np.bool_], enough: NDArray[np.bool_]
) -> None:
    """`AskColumns.look`; without instances, every cut has room."""
    free, kind, cut, elsewhere = seen
    need, charge, instance_fits, count, times = asked
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
def pick(row: int, seen: Seen, asked: Fits, totals: NDArray[np.int64], weight: int) -> int:
    """`AskColumns.pick`, -1 where no device has enough; of equals the first.

    `weight` is 1 for the fewest holders and then the least load, -1 for the most load.
    """
    free, kind, cut, elsewhere = seen
    need, instance_fits = asked
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
