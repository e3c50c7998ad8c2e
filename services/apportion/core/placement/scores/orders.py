"""Device orders made of a chain: several keys, one after the other, and loads weighed by the pod.

Source: HAMi's `hami.io/gpu-scheduler-policy` and `hami.io/device-scoring-weights`. Invariant: every
order ends in the device's index, so that no two devices tie.
"""

from collections.abc import Callable
from typing import Any, Final

from apportion.core.ledger.state import DeviceState
from apportion.core.placement.chains import NUMA, Chain
from apportion.core.placement.columns import POINTS
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
    return lambda state: (*(key(state) for key in keys), state.device.index)


def weighed_load(state: DeviceState, weights: DeviceWeights) -> int:
    """The used part of the device's slots, cores and memory, each counted as often as it weighs."""
    device = state.device
    parts = (
        (weights.slots, device.slots, state.slots_free),
        (weights.cores, device.cores, state.cores_free),
        (weights.memory, device.memory_mib, state.memory_free_mib),
    )
    used = sum(weight * (total - free) * POINTS // max(total, 1) for weight, total, free in parts)
    return used // max(weights.slots + weights.cores + weights.memory, 1)


def _key(name: str, weights: DeviceWeights | None) -> Callable[[DeviceState], Any]:
    """One key of a chain, least first."""
    if name == NUMA:
        return lambda state: _LAST_NUMA if state.device.numa is None else state.device.numa
    sign = 1 if name == "spread" else -1
    if weights is not None:
        return lambda state: sign * weighed_load(state, weights)
    if name == "spread":
        return lambda state: devices.spread(state)[:-1]
    return lambda state: -devices.load(state)
