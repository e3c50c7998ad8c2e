"""What is left of devices, in tables: what it could earn, and how many pods of each sort it holds.

All numbers are whole: values in millionths of a device, CPU prices in millionths of a device per
milli-core. So every machine weighs a node by exactly the same number.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.pricing.sizes import NEVER, Sort, sort_of
from apportion_schemas import Device
from apportion_schemas.pricing import PricedShape
from apportion_schemas.quantities import COUNT_MAX, WHOLE

Values = NDArray[np.int64]

CPU_PRICES: Final = (0, 2, 8, 32, 128, 512)  # above what CPU earns by itself
VALUE_MAX: Final = 4_000_000  # of one share or one device
CPU_PRICE_MAX: Final = 1_000
SHARE_LEFTS: Final = WHOLE + 1  # 0 to 100 percent of a device that is in use
DEVICE_COUNTS: Final = COUNT_MAX + 1
_NOTHING: Final = -(1 << 40)


def cpu_prices(shapes: tuple[PricedShape, ...]) -> Values:
    """The prices at which a node's CPU is weighed: the least is what CPU alone could earn."""
    alone = [s.value // s.cpu_milli for s in shapes if s.ask is None and s.cpu_milli]
    floor = min(max(alone, default=0), CPU_PRICE_MAX)
    return np.array([floor + step for step in CPU_PRICES], np.int64)


def net_values(
    shapes: tuple[PricedShape, ...], device: Device, prices: Values
) -> tuple[Values, Values]:
    """The most that a share of each size, and each number of whole devices, brings on this device.

    Net of CPU, at each CPU price: arrays of `len(prices)` x 100 and x 65; `_NOTHING` where no pod
    takes so much.
    """
    share = np.full((len(prices), WHOLE), _NOTHING, np.int64)
    whole = np.full((len(prices), DEVICE_COUNTS), _NOTHING, np.int64)
    for shape in shapes:
        sort = sort_of(shape)
        size = sort.size_on(device)
        if sort.ask is None or size == NEVER:
            continue
        pieces = sort.pieces(size)
        devices = sort.ask.count // pieces
        value = min(shape.value // pieces, VALUE_MAX * devices)
        net = value - prices * (shape.cpu_milli // pieces)
        target = whole[:, devices] if size == WHOLE else share[:, size]
        np.maximum(target, net, out=target)
    return share, whole


def share_values(net: Values) -> Values:
    """The most that what is left of one device can still earn, for 0 to 100 percent.

    A knapsack that takes any number of each size; `net` has a row for each CPU price and a column
    for each size below 100.
    """
    best = np.zeros((len(net), SHARE_LEFTS), np.int64)
    for left in range(1, SHARE_LEFTS):
        taken = net[:, 1 : left + 1]
        earned = best[:, left - taken.shape[1] : left][:, ::-1] + taken
        best[:, left] = np.maximum(best[:, left - 1], earned.max(1, initial=0))
    return best


def device_values(net: Values, one_shared: Values) -> Values:
    """The most that this many idle devices can earn, each taken whole by some pod or shared."""
    best = np.zeros_like(net)
    for count in range(1, DEVICE_COUNTS):
        earned = best[:, :count][:, ::-1] + net[:, 1 : count + 1]
        best[:, count] = np.maximum(best[:, count - 1] + one_shared, earned.max(1))
    return best


def share_room(sort: Sort, device: Device) -> NDArray[np.int64]:
    """How many such shares fit what is left of one device, for 0 to 100 percent."""
    size = sort.size_on(device)
    if size in (NEVER, WHOLE):
        return np.zeros(SHARE_LEFTS, np.int64)
    return np.arange(SHARE_LEFTS) // size


def device_room(sort: Sort, device: Device | None) -> NDArray[np.int64]:
    """How many pods that take whole devices fit this many idle ones; no limit without an ask."""
    counts = np.arange(DEVICE_COUNTS)
    if sort.ask is None:
        return np.full(DEVICE_COUNTS, 1 << 20)
    if sort.size_on(device) != WHOLE:
        return counts * 0
    return counts // sort.ask.count
