"""What is left of devices, in tables: what it could earn, and how many pods of each sort it holds.

All numbers are whole: values in millionths of a device, CPU prices in millionths of a device per
milli-core. So every machine weighs a node by exactly the same number.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.pricing.sizes import NEVER, Sort, sort_of
from apportion.core.placement.pricing.states import (
    DEVICE_COUNTS,
    NOWHERE,
    STATES,
    States,
    after_share,
    by_percent_left,
)
from apportion_schemas import Device
from apportion_schemas.pricing import PricedShape
from apportion_schemas.quantities import WHOLE

Values = NDArray[np.int64]

CPU_PRICES: Final = (0, 2, 8, 32, 128, 512)  # above what CPU earns by itself
CPU_PRICE_MAX: Final = 1_000
VALUE_MAX: Final = 4_000_000  # of one share or one device
UNLIMITED: Final = 1 << 20
_NOTHING: Final = -(1 << 40)


def cpu_prices(shapes: tuple[PricedShape, ...]) -> Values:
    """The prices at which a node's CPU is weighed: the least is what CPU alone could earn."""
    alone = [s.value // s.cpu_milli for s in shapes if s.ask is None and s.cpu_milli]
    floor = min(max(alone, default=0), CPU_PRICE_MAX)
    return np.array([floor + step for step in CPU_PRICES], np.int64)


def share_values(shapes: tuple[PricedShape, ...], device: Device, prices: Values) -> Values:
    """The most that shares can still earn on one device, by CPU price and state.

    A knapsack over all sequences of shares, net of their CPU.
    """
    best_of: dict[bytes, tuple[States, Values]] = {}
    for shape in shapes:
        sort = sort_of(shape)
        size = sort.size_on(device)
        if size in (NEVER, WHOLE):
            continue
        after, net = after_share(sort.ask, device, size), _net(shape, sort.pieces(size), prices)
        _, known = best_of.get(after.tobytes(), (after, net))
        best_of[after.tobytes()] = after, np.maximum(known, net)
    best = np.zeros((len(prices), STATES), np.int64)
    if not best_of:
        return best
    after = np.array([states for states, _ in best_of.values()])
    net = np.array([values for _, values in best_of.values()]).T
    somewhere = after != NOWHERE
    for state in by_percent_left(device, np.flatnonzero(somewhere.any(0)).tolist()):
        can = somewhere[:, state]
        earned = best[:, after[can, state]] + net[:, can]
        best[:, state] = earned.max(1, initial=0)
    return best


def device_values(
    shapes: tuple[PricedShape, ...], device: Device, prices: Values, one_shared: Values
) -> Values:
    """The most that so many idle devices can earn, by CPU price and number: taken whole or shared.

    `one_shared` is what one earns when it is shared.
    """
    net = np.full((len(prices), DEVICE_COUNTS), _NOTHING, np.int64)
    for shape in shapes:
        sort = sort_of(shape)
        if sort.ask is not None and sort.size_on(device) == WHOLE:
            target = net[:, sort.ask.count]
            np.maximum(target, _net(shape, 1, prices), out=target)
    best = np.zeros_like(net)
    for count in range(1, DEVICE_COUNTS):
        earned = best[:, :count][:, ::-1] + net[:, 1 : count + 1]
        best[:, count] = np.maximum(best[:, count - 1] + one_shared, earned.max(1))
    return best


def share_room(sort: Sort, device: Device) -> Values:
    """How many such shares fit, by state."""
    room = [0] * STATES
    if sort.size_on(device) not in (NEVER, WHOLE):
        after = after_share(sort.ask, device)
        leads = after.tolist()
        for state in by_percent_left(device, np.flatnonzero(after != NOWHERE).tolist()):
            room[state] = 1 + room[leads[state]]
    return np.array(room, np.int64)


def device_room(sort: Sort, device: Device | None) -> Values:
    """How many pods that take whole devices fit so many idle ones; no limit without an ask."""
    counts = np.arange(DEVICE_COUNTS)
    if sort.ask is None:
        return np.full(DEVICE_COUNTS, UNLIMITED)
    if sort.size_on(device) != WHOLE:
        return counts * 0
    return counts // sort.ask.count


def _net(shape: PricedShape, pieces: int, prices: Values) -> Values:
    """What one independent piece of the pod brings beside its CPU, at each CPU price."""
    devices = shape.ask.count // pieces if shape.ask is not None else 1
    net: Values = min(shape.value // pieces, VALUE_MAX * devices) - prices * (
        shape.cpu_milli // pieces
    )
    return net
