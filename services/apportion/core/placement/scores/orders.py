"""Device orders made of a chain: several keys, one after the other, and loads weighed by the pod.

Source: HAMi's `hami.io/gpu-scheduler-policy` and `hami.io/device-scoring-weights`.
"""

from typing import Final

from apportion.core.devices.chains import NUMA, Chain
from apportion.core.devices.shares import DeviceState
from apportion.core.placement.index import packed
from apportion.core.placement.index.packed import POINTS
from apportion.core.placement.scores import devices
from apportion.core.placement.scores.devices import Order
from apportion_schemas import DeviceWeights

_PLAIN: Final[dict[str, Order]] = {"binpack": devices.binpack, "spread": devices.spread}
_LAST_NUMA: Final = 1 << 20


def order_of(chain: Chain, weights: DeviceWeights | None) -> Order:
    """The order that a chain means; a policy that weighs shapes falls back on `binpack`."""
    names = tuple(name if name in {"spread", NUMA} else "binpack" for name in chain.keys)
    if weights is None and len(names) == 1 and names[0] in _PLAIN:
        return _PLAIN[names[0]]
    keys = [_key(name, weights) for name in names]
    return lambda free, state: tuple([key(free, state) for key in keys])


def weighed_load(free: int, state: DeviceState, weights: DeviceWeights) -> int:
    """The used part of the device's slots, cores and memory, each counted as often as it weighs."""
    device = state.device
    parts = (
        (weights.slots, device.slots, packed.slots_of(free)),
        (weights.cores, device.cores, packed.compute_of(free)),
        (weights.memory, device.memory_mib, packed.memory_of(free)),
    )
    used = sum(weight * (total - left) * POINTS // max(total, 1) for weight, total, left in parts)
    return used // max(weights.slots + weights.cores + weights.memory, 1)


def _key(name: str, weights: DeviceWeights | None) -> Order:
    """One key of a chain, least first."""
    if name == NUMA:
        return _numa
    sign = 1 if name == "spread" else -1
    if weights is not None:
        return lambda free, state: sign * weighed_load(free, state, weights)
    return _PLAIN[name]


def _numa(free: int, state: DeviceState) -> int:
    del free
    return _LAST_NUMA if state.device.numa is None else state.device.numa
