"""Device orders: the key by which the devices of the chosen node are tried, least first.

A key is made of what the device has free, packed, and of what it is. Equal devices come in the
order in which they stand on their node, that of their index.
"""

from collections.abc import Callable
from typing import Any

from apportion.core.devices.shares import DeviceState
from apportion.core.placement.index import packed
from apportion.core.placement.index.packed import mean_load

Order = Callable[[int, DeviceState], Any]


def load(free: int, state: DeviceState) -> int:
    """The used part of the device: the mean over memory and cores."""
    device = state.device
    memory_free_mib, cores_free = packed.memory_of(free), packed.compute_of(free)
    return mean_load(device.memory_mib, memory_free_mib, device.cores, cores_free)


def binpack(free: int, state: DeviceState) -> int:
    """The fullest device that still fits, so that whole devices stay free."""
    return -load(free, state)


def spread(free: int, state: DeviceState) -> tuple[int, int]:
    """The device with the fewest holders, then the emptiest."""
    return state.device.slots - packed.slots_of(free), load(free, state)


def first(chosen: DeviceState, order: Order) -> Order:
    """The chosen device before all others, which keep their order."""
    return lambda free, state: (state is not chosen, order(free, state))
