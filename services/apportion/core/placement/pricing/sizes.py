"""How much of one device an ask takes, in percent: the one measure in which prices compare.

A share counts by whatever it takes most of, memory or cores; so does what a device has left.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.devices.demand import Demand, demand
from apportion_schemas import Ask, Device
from apportion_schemas.quantities import WHOLE

NEVER: Final = 0  # the size of an ask on a device that cannot take it


def size_percent(ask: Ask, device: Device) -> int:
    """The part of such a device that one share of the ask takes, rounded up; `NEVER` if none can.

    `WHOLE` stands for a device that is wanted alone, too.
    """
    if ask.family != device.family:
        return NEVER
    wanted = demand(ask, device)
    if not isinstance(wanted, Demand):
        return NEVER
    if wanted.alone:
        return WHOLE
    parts = [-(-wanted.memory_mib * WHOLE // max(device.memory_mib, 1))]
    if device.cores:
        parts.append(-(-wanted.cores_needed * WHOLE // device.cores))
    size = max(1, *parts)
    return size if size <= WHOLE else NEVER


def units(ask: Ask, size: int) -> tuple[int, int]:
    """Independent pieces of the pod's devices, and devices in each: whole devices go together."""
    return (1, ask.count) if size == WHOLE else (ask.count, 1)


def hardest(asks: tuple[Ask, ...], devices: list[Device | None]) -> tuple[int, NDArray[np.int64]]:
    """Which of the asks takes most of these devices, and its size on each of them."""
    sizes = [
        np.array([size_percent(ask, d) if d else NEVER for d in devices], np.int64) for ask in asks
    ]
    takes = [int(each.max()) * ask.count for each, ask in zip(sizes, asks, strict=True)]
    at = max(range(len(takes)), key=takes.__getitem__)
    return at, sizes[at]
