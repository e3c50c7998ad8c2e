"""Encode a device's free part as a number below 256, its state; compute the state after a share.

The state of a MIG device is the mask of its occupied slices. For other devices it is the percent
left of memory or compute. Invariant: a device has room for finitely many shares."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.devices.demand import Demand, demand
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.pricing.sizes import NEVER, size_percent
from apportion_schemas import Ask, Device
from apportion_schemas.quantities import WHOLE

STATES: Final[Int64] = 256
PERCENT: Final[Int64] = 100
IDLE: Final[Int64] = PERCENT + 1  # of an unused device that is not MIG
ALL_SLICES: Final[Int64] = STATES - 1  # of a closed MIG device
NO_SLICES: Final = 0  # of an unused MIG device
FULL: Final = 0  # of a device that is not MIG: nothing is left
NOWHERE: Final = -1
DEVICE_COUNTS: Final[Int64] = 65  # number of values for a node's idle devices: 0 to `COUNT_MAX`

States = NDArray[np.int16]


def is_cut(device: Device | None) -> bool:
    """Return True for a MIG device, whose state is a mask of slices."""
    return device is not None and device.mode == "mig"


def idle_state(device: Device | None) -> int:
    """Return the state of a device of this type without shares."""
    return NO_SLICES if is_cut(device) else IDLE


def percent_left(device: Device | None) -> NDArray[np.int64]:
    """Return for each state of such a device how much is free, in percent."""
    left = np.zeros(STATES, np.int64)
    if is_cut(device):
        occupied = [mask.bit_count() for mask in range(STATES)]
        left[:] = [WHOLE * (8 - slices) // 8 for slices in occupied]
    else:
        left[: WHOLE + 1] = np.arange(WHOLE + 1)
        left[IDLE] = WHOLE
    return left


def after_share(ask: Ask | None, device: Device | None, size: int | None = None) -> States:
    """Return, for each state, the state after one share, or `NOWHERE` if the share does not fit."""
    if ask is None or device is None:
        return _after_size(NEVER)
    if not is_cut(device):
        return _after_size(size_percent(ask, device) if size is None else size)
    wanted = demand(ask, device)
    if isinstance(wanted, Demand) and ask.family == device.family:
        return _after_place(tuple(place for _, place in wanted.places))
    return _after_size(NEVER)


def by_percent_left(device: Device, states: Iterable[int]) -> list[int]:
    """Sort the states by what is left of the device, least first."""
    left = percent_left(device)
    return sorted(states, key=left.tolist().__getitem__)


@lru_cache(maxsize=WHOLE + 1)
def _after_size(size: int) -> States:
    after = np.full(STATES, NOWHERE, np.int16)
    if size != NEVER:
        after[size : WHOLE + 1] = np.arange(WHOLE + 1 - size)
        after[IDLE] = WHOLE - size
    after.setflags(write=False)
    return after


@lru_cache(maxsize=256)
def _after_place(places: tuple[int, ...]) -> States:
    # The state after an instance at the first free one of these places.
    after = np.full(STATES, NOWHERE, np.int16)
    for mask in range(STATES):
        free = [place for place in places if not mask & place]
        after[mask] = mask | free[0] if free else NOWHERE
    after.setflags(write=False)
    return after
