"""Compute how much of one device an ask takes, in percent, so that asks can be compared.

The size of an ask is its fraction of the device's memory or cores, whichever is larger. What a
device has left is the smaller fraction of the two."""

from functools import lru_cache
from typing import Final, NamedTuple

from apportion.core.devices.demand import Demand, demand
from apportion_schemas import Ask, Device, Mode
from apportion_schemas.pricing import PricedShape
from apportion_schemas.quantities import WHOLE

NEVER: Final = 0  # the size of an ask on a device that cannot take it


class SeenShape(NamedTuple):
    """What identical pods ask for, and how many such pods were submitted."""

    ask: Ask | None
    cpu_milli: int
    memory_mib: int
    pods: int
    modes: tuple[Mode, ...] = ()
    use_types: tuple[str, ...] = ()


class Sort(NamedTuple):
    """The properties of a pod that decide its price; pods with equal properties have one price.

    Required models are not among them: with prices per model, pods were packed less densely."""

    ask: Ask | None
    modes: tuple[Mode, ...]  # empty accepts any
    cpu_milli: int

    def size_on(self, device: Device | None) -> int:
        """Return what percentage of the device one share takes, or `NEVER` if it does not fit."""
        if self.ask is None or device is None or (self.modes and device.mode not in self.modes):
            return NEVER
        return size_percent(self.ask, device)

    def pieces(self, size: int) -> int:
        """Return how many parts the pod may split into: its shares, or one for whole devices."""
        return 1 if self.ask is None or size == WHOLE else self.ask.count


def sort_of(shape: SeenShape | PricedShape) -> Sort:
    """Return the properties of the shape that decide its price."""
    return Sort(shape.ask, shape.modes, shape.cpu_milli)


def size_percent(ask: Ask, device: Device) -> int:
    """Return how much of a device a share takes, in percent: `WHOLE` if exclusive, or `NEVER`."""
    if ask.family != device.family:
        return NEVER
    wanted = demand(ask, device)
    if not isinstance(wanted, Demand):
        return NEVER
    if wanted.alone:
        return WHOLE
    sizes = [_percent(wanted.memory_mib, device.memory_mib)]
    sizes.append(_percent(wanted.cores_needed, device.cores))
    return max(sizes) if max(sizes) <= WHOLE else NEVER


@lru_cache(maxsize=1 << 14)
def _percent(needed: int, available: int) -> int:
    # In whole percent, at least 1, rounded so that about as many fit as really do.
    if not needed or not available:
        return 1
    low, rest = divmod(needed * WHOLE, available)
    if not rest:
        return low
    fit = available // needed
    nearest = low + (2 * rest >= available)
    around = [size for size in (low, low + 1) if size]
    return min(around, key=lambda size: (abs(WHOLE // size - fit), abs(size - nearest)))


def hardest(asks: tuple[Ask, ...], devices: list[Device | None]) -> int:
    """Return the position of the ask that takes the largest part of a device."""
    takes = [
        ask.count * max((size_percent(ask, d) for d in devices if d), default=NEVER) for ask in asks
    ]
    return max(range(len(takes)), key=takes.__getitem__)
