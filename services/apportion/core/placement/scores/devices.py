"""Device orders: the key by which the devices of the chosen node are tried, least first.

Every key ends in the device's index, so that no two devices tie.
"""

from collections.abc import Callable
from typing import Any

from apportion.core.ledger.state import DeviceState
from apportion.core.placement.columns import mean_load

Order = Callable[[DeviceState], tuple[Any, ...]]


def load(state: DeviceState) -> int:
    """The used part of the device: the mean over memory and cores."""
    device = state.device
    return mean_load(device.memory_mib, state.memory_free_mib, device.cores, state.cores_free)


def binpack(state: DeviceState) -> tuple[int, int]:
    """The fullest device that still fits, so that whole devices stay free."""
    return -load(state), state.device.index


def spread(state: DeviceState) -> tuple[int, int, int]:
    """The device with the fewest holders, then the emptiest."""
    return state.device.slots - state.slots_free, load(state), state.device.index


def first(chosen: DeviceState, order: Order) -> Order:
    """The chosen device before all others, which keep their order."""
    return lambda state: (state is not chosen, *order(state))
