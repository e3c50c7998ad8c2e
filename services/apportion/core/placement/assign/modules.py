"""Devices that share a module and are handed out by whole modules: the dies of an Ascend 910C.

Source: HAMi's `computeBestCombination910C`: two dies with one quotient of their index are a module,
and a container of several gets modules of which both dies fit. Invariant: of modules that would do,
those are taken whose first device comes first.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from apportion_schemas import Device


def choices(devices: Sequence[Device], count: int, size: int) -> Iterator[list[int]]:
    """The positions of `count` of these devices in whole modules of this size, in order; the
    preferred ones first.
    """
    modules: dict[int, list[int]] = {}
    for position, device in enumerate(devices):
        modules.setdefault(device.index // size, []).append(position)
    whole = [module for module in modules.values() if len(module) == size]
    if count % size == 0:
        for some in combinations(whole, count // size):
            yield sorted(position for module in some for position in module)
