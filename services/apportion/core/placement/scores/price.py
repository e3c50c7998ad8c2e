"""Price: a pod goes where the pods that usually come lose least.

A node is worth what it could still earn (the least over several prices of CPU, so that neither CPU
nor devices are left over alone), and a little for the variety of shapes that it still has room
for. The score is what of that the pod would leave. Of the node's devices the pod takes the one
that leaves the most value, of equals the fullest.
"""

from typing import Final

import numpy as np

from apportion.core.placement.index.packed import POINTS, Int64
from apportion.core.placement.index.score_input import NO_ASK, ScoreInput
from apportion.core.placement.pricing import loss_loops
from apportion.core.placement.pricing.price_table import PriceTable
from apportion.core.placement.pricing.readings import Taken
from apportion.core.placement.pricing.sizes import hardest
from apportion.core.placement.pricing.states import (
    FULL,
    NOWHERE,
    STATES,
    after_share,
    is_cut,
)
from apportion_schemas import Ask, NodeConstraints, Shape

MILLION: Final[Int64] = 1_000_000


class Price:
    """The price score of one shape; of several asks, the one that takes most decides."""

    policy = "price"

    def __init__(self, shape: Shape, price_table: PriceTable) -> None:
        self._price_table = price_table
        self._rows = -1
        self.ask_at = hardest(shape.asks, price_table.devices) if shape.asks else NO_ASK
        ask = shape.asks[self.ask_at] if shape.asks else None
        self._taken = _taken(price_table, ask, shape.node)

    def rate(self, seen: ScoreInput) -> None:
        """`POINTS` less the loss in millionths of a device."""
        columns, price_table, taken = seen.columns, self._price_table, self._taken
        if self._rows != len(columns.names):
            self._rows = len(columns.names)
            taken.make_room(self._rows)
        readings = price_table.read(columns)
        loss_loops.weigh(seen, columns.flat_free, readings.tables, readings, taken)

    def device(self, row: int) -> int:
        """The device that leaves the most value."""
        return self._taken.device[row]

    def total(self, points: Int64) -> float:
        """100 where nothing is lost, 50 where a whole device is, and so on."""
        return 100 * MILLION / (MILLION + POINTS - points)


def _taken(price_table: PriceTable, ask: Ask | None, needs: NodeConstraints) -> Taken:
    after = np.arange(len(price_table.devices) * STATES, dtype=np.int32)
    for kind, device in enumerate(price_table.devices):
        states = after_share(ask, device).astype(np.int32)
        if is_cut(device):
            states = np.where(states == NOWHERE, np.arange(STATES), states)
        else:  # what fits by a fraction of a percent takes all that is left
            states[states == NOWHERE] = FULL
        after[kind * STATES :][:STATES] = states + kind * STATES
    count = ask.count if ask is not None else 0
    return Taken(after, count, needs.cpu_milli, needs.memory_mib)
