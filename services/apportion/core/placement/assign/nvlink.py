"""Which of several devices are linked best: the set with the most NVLink lanes inside it.

The best set of all is a hard problem, so the search is greedy from each of the first devices:
a set grows by the device that has most lanes to it. Invariant: the work is bounded by
`SEEDS_MAX` x devices x wanted, and of equal sets the one whose devices come first is taken.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from apportion_schemas import Device

SEEDS_MAX: Final = 16


class Linked(NamedTuple):
    """Positions of the chosen devices, in order, and the lanes between all pairs of them."""

    positions: tuple[int, ...]
    lanes: int


def best_linked(devices: Sequence[Device], count: int) -> Linked:
    """`count` of these devices, at least so many, with as many lanes between them as can be."""
    lanes = [[_lanes(one, other) for other in devices] for one in devices]
    if count >= len(devices):
        return _sum(lanes, tuple(range(len(devices))))
    bound = max(map(max, lanes)) * count * (count - 1) // 2
    best = Linked(tuple(range(count)), -1)
    for seed in range(min(SEEDS_MAX, len(devices))):
        found = _grown(lanes, seed, count)
        if found.lanes > best.lanes:
            best = found
        if best.lanes == bound:
            break
    return best


def least_linked(devices: Sequence[Device]) -> int:
    """The position of the device with the fewest lanes to all others, the first of such."""
    return min(
        range(len(devices)),
        key=lambda at: (sum(_lanes(devices[at], other) for other in devices), at),
    )


def _lanes(one: Device, other: Device) -> int:
    return max(one.nvlink_lanes.get(other.id, 0), other.nvlink_lanes.get(one.id, 0))


def _grown(lanes: list[list[int]], seed: int, count: int) -> Linked:
    """The set that grows from the seed."""
    taken, total = [seed], 0
    gains = list(lanes[seed])
    left = [position for position in range(len(lanes)) if position != seed]
    while len(taken) < count:
        nearest = max(left, key=lambda position: (gains[position], -position))
        total += gains[nearest]
        taken.append(nearest)
        left.remove(nearest)
        gains = [gain + more for gain, more in zip(gains, lanes[nearest], strict=True)]
    return Linked(tuple(sorted(taken)), total)


def _sum(lanes: list[list[int]], positions: tuple[int, ...]) -> Linked:
    pairs = ((one, other) for one in positions for other in positions if one < other)
    return Linked(positions, sum(lanes[one][other] for one, other in pairs))
