"""Order the devices of the chosen node by a sort key; the lowest key is tried first.

Devices with equal keys keep the order of their index on the node."""

from collections.abc import Callable
from typing import Any, Final

from apportion.core.devices.chains import NUMA, Chain
from apportion.core.devices.shares import DeviceState
from apportion.core.placement.index import packed
from apportion.core.placement.index.packed import POINTS, mean_load
from apportion_schemas import DeviceWeights

Order = Callable[[int, DeviceState], Any]


def load(free: int, state: DeviceState) -> int:
    """Return the used fraction of the device, in `POINTS`: the mean of memory and cores."""
    device = state.device
    memory_free_mib, cores_free = packed.memory_of(free), packed.compute_of(free)
    return mean_load(device.memory_mib, memory_free_mib, device.cores, cores_free)


def binpack(free: int, state: DeviceState) -> int:
    """Return a sort key that prefers the fullest device, so that whole devices stay free."""
    return -load(free, state)


def spread(free: int, state: DeviceState) -> tuple[int, int]:
    """Return a key that prefers the device with the fewest shares, then the emptiest."""
    return state.device.slots - packed.slots_of(free), load(free, state)


def first(chosen: DeviceState, order: Order) -> Order:
    """Return an order in which the chosen device comes before all others."""
    return lambda free, state: (state is not chosen, order(free, state))


# Device orders made of a chain of several keys, with loads weighted by the pod.
# Source: HAMi's `hami.io/gpu-scheduler-policy` and `hami.io/device-scoring-weights`.

_PLAIN: Final[dict[str, Order]] = {"binpack": binpack, "spread": spread}
_LAST_NUMA: Final = 1 << 20


def order_of(chain: Chain, weights: DeviceWeights | None) -> Order:
    """Return the order in which a chain of device policies tries devices."""
    names = tuple(name if name in {"spread", NUMA} else "binpack" for name in chain.keys)
    if weights is None and len(names) == 1 and names[0] in _PLAIN:
        return _PLAIN[names[0]]
    keys = [_key(name, weights) for name in names]
    return lambda free, state: tuple([key(free, state) for key in keys])


def weighed_load(free: int, state: DeviceState, weights: DeviceWeights) -> int:
    """Return the weighted mean of the used fractions of slots, cores and memory, in `POINTS`."""
    device = state.device
    parts = (
        (weights.slots, device.slots, packed.slots_of(free)),
        (weights.cores, device.cores, packed.compute_of(free)),
        (weights.memory, device.memory_mib, packed.memory_of(free)),
    )
    used = sum(weight * (total - left) * POINTS // max(total, 1) for weight, total, left in parts)
    return used // max(weights.slots + weights.cores + weights.memory, 1)


def _key(name: str, weights: DeviceWeights | None) -> Order:
    if name == NUMA:
        return lambda _free, state: _LAST_NUMA if state.device.numa is None else state.device.numa
    sign = 1 if name == "spread" else -1
    if weights is not None:
        return lambda free, state: sign * weighed_load(free, state, weights)
    return _PLAIN[name]
