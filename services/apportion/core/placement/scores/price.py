"""Price: a pod goes where the pods that usually come lose least.

A node is worth what it could still earn (the least over several prices of CPU, so that neither CPU
nor devices are left over alone), and a little for the variety of shapes that it still has room
for. The score is what of that the pod would leave. Of the node's devices the pod takes the one
that leaves the most value, of equals the fullest.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index.packed import POINTS
from apportion.core.placement.pricing.loss import SCALE, Seen, Taken, weigh
from apportion.core.placement.pricing.price_table import PriceTable
from apportion.core.placement.pricing.sizes import hardest
from apportion.core.placement.pricing.states import (
    FULL,
    NOWHERE,
    STATES,
    after_share,
    is_cut,
)
from apportion.core.placement.pricing.tables import DEVICE_COUNTS
from apportion.core.placement.scores.score_input import NO_DEVICE, Points, ScoreInput
from apportion_schemas import Ask, NodeConstraints, Shape

MILLION: Final = 1_000_000
_NONE: Final = np.zeros((0, 0), np.bool_)


class Price:
    """The price score of one shape; of several asks, the one that takes most decides."""

    policy = "price"

    def __init__(self, shape: Shape, price_table: PriceTable) -> None:
        self._price_table = price_table
        self._devices: NDArray[np.int8] = np.zeros(0, np.int8)
        self._ask_at = hardest(shape.asks, price_table.devices) if shape.asks else -1
        ask = shape.asks[self._ask_at] if shape.asks else None
        self._taken = _taken(price_table, ask, shape.node)

    def points(self, given: ScoreInput) -> Points:
        """`POINTS` less the loss in millionths of a device."""
        columns = given.columns
        if len(self._devices) != len(columns.names):
            self._devices = np.full(len(columns.names), NO_DEVICE, np.int8)
        points = np.zeros(len(given.rows), np.int32)
        enough = given.enough[self._ask_at] if given.enough else _NONE
        seen = Seen(given.rows, given.fit, enough, columns.free, columns.kind, columns.slices)
        weigh(seen, self._price_table.tables, self._taken, points, self._devices)
        return points

    def device(self, row: int) -> int:
        """The device that leaves the most value."""
        return int(self._devices[row])

    def total(self, points: int) -> float:
        """100 where nothing is lost, 50 where a whole device is, and so on."""
        return 100 * MILLION / (MILLION + POINTS - points)


def _taken(price_table: PriceTable, ask: Ask | None, needs: NodeConstraints) -> Taken:
    """What taking a share changes, by kind of device and its state.

    Values are multiplied by `SCALE`, less what is left: of equal values the least left wins.
    """
    tables, count = price_table.tables, ask.count if ask is not None else 0
    after = np.arange(len(price_table.devices) * STATES)
    for kind, device in enumerate(price_table.devices):
        states = after_share(ask, device).astype(np.int64)
        if is_cut(device):
            states = np.where(states == NOWHERE, np.arange(STATES), states)
        else:  # what fits by a fraction of a percent takes all that is left
            states[states == NOWHERE] = FULL
        after[kind * STATES :][:STATES] = states + kind * STATES
    change = tables.share_value[after] - tables.share_value
    idle = np.arange(len(price_table.devices) * DEVICE_COUNTS)
    fewer = idle - np.minimum(idle % DEVICE_COUNTS, count)
    return Taken(
        value=change * (count * SCALE) - price_table.percent_left[:, np.newaxis],
        value_broken=(tables.device_value[fewer] - tables.device_value) * SCALE,
        room=(tables.share_room[after] - tables.share_room) * count,
        room_broken=tables.device_room[fewer] - tables.device_room,
        cpu_milli=needs.cpu_milli,
        memory_mib=needs.memory_mib,
        some_device=ask is not None,
    )
