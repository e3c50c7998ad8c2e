"""Price: a pod goes where the pods that usually come lose least.

A node is worth what it could still earn (the least over several prices of CPU, so that neither CPU
nor devices are left over alone), and a little for the variety of shapes that it still has room
for. The score is what of that the pod would leave. Of the node's devices the pod takes the one
that leaves the most value, of equals the fullest.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.columns import POINTS
from apportion.core.placement.pricing.market import Floats, Ints, Market, Nodes
from apportion.core.placement.pricing.sizes import hardest
from apportion.core.placement.pricing.states import (
    FULL,
    NOWHERE,
    STATES,
    after_share,
    is_cut,
)
from apportion.core.placement.pricing.tables import DEVICE_COUNTS
from apportion.core.placement.scores.look import Look, Points
from apportion.core.placement.scores.noted import NotedDevices
from apportion_schemas import Ask, Shape

MILLION: Final = 1_000_000
SCALE: Final = 128  # more than any percent
NEVER_CHOSEN: Final = -(1 << 60)


class Price:
    """The price score of one shape; of several asks, the one that takes most decides."""

    policy = "price"

    def __init__(self, shape: Shape, market: Market) -> None:
        self._market = market
        self._devices = NotedDevices()
        self._cpu_after = np.array([[0], [-shape.node.cpu_milli]])  # added to nodes', before first
        self._memory_after = np.array([[0], [-shape.node.memory_mib]])
        self._cpu_cost = (market.cpu_prices * shape.node.cpu_milli)[:, np.newaxis]
        self._ask_at = -1
        if shape.asks:
            self._ask_at = hardest(shape.asks, market.devices)
            self._count = shape.asks[self._ask_at].count
            self._tabulate(shape.asks[self._ask_at])

    def points(self, look: Look) -> Points:
        """`POINTS` less the loss in millionths of a device."""
        points = np.zeros(len(look.fit), np.int32)
        chosen = look.fit.nonzero()[0]
        if not len(chosen):
            return points
        market = self._market
        nodes = market.nodes(*look.of(chosen))
        values, room = market.values(nodes), np.empty((2, len(chosen), market.shapes))
        market.room(nodes, out=room[0])
        loss = np.minimum.reduce(values, 0)
        values -= self._cpu_cost
        if self._ask_at < 0:
            room[1] = room[0]
            loss -= np.minimum.reduce(values, 0)
        else:
            enough = look.enough[self._ask_at].take(chosen, 0)
            left, column = self._place(nodes, values, room, enough)
            self._devices.note(look, chosen, column - 1)
            loss -= left
        cpu_milli, memory_mib = (
            nodes.cpu_milli + self._cpu_after,
            nodes.memory_mib + self._memory_after,
        )
        before, after = market.variety(cpu_milli, memory_mib, room)
        loss += (before - after).astype(np.int64)
        points[chosen] = POINTS - np.minimum(np.maximum(loss, 0), POINTS)
        return points

    def device(self, row: int) -> int:
        """The device that leaves the most value."""
        return self._devices.of(row)

    def total(self, points: int) -> float:
        """100 where nothing is lost, 50 where a whole device is, and so on."""
        return 100 * MILLION / (MILLION + POINTS - points)

    def _tabulate(self, ask: Ask) -> None:
        """What taking a share changes, by kind of device and its state.

        Values are multiplied by `SCALE`, less what is left: of equal values the least left wins.
        """
        market = self._market
        before = np.arange(len(market.devices) * STATES)
        after = before.copy()
        for kind, device in enumerate(market.devices):
            states = after_share(ask, device).astype(np.int64)
            if is_cut(device):
                states = np.where(states == NOWHERE, np.arange(STATES), states)
            else:  # what fits by a fraction of a percent takes all that is left
                states[states == NOWHERE] = FULL
            after[kind * STATES :][:STATES] = states + kind * STATES
        change = market.share_value[:, after] - market.share_value
        self._value_change = change * (self._count * SCALE) - market.percent_left
        self._room_change = (market.share_room[after] - market.share_room) * self._count
        idle = np.arange(len(market.devices) * DEVICE_COUNTS)
        fewer = idle - np.minimum(idle % DEVICE_COUNTS, self._count)
        broken = market.device_value[:, fewer] - market.device_value
        self._value_broken = broken * SCALE
        self._room_broken = market.device_room[fewer] - market.device_room

    def _place(
        self, nodes: Nodes, values: Ints, room: Floats, enough: NDArray[np.bool_]
    ) -> tuple[Ints, NDArray[np.intp]]:
        """The value left with the best device, and its column; `room[1]` becomes what it leaves."""
        after = self._value_broken.take(nodes.idle, 1)[:, :, np.newaxis] * nodes.is_idle
        after += (values * SCALE)[:, :, np.newaxis]
        after += self._value_change.take(nodes.state, 1)
        least = np.where(enough, np.minimum.reduce(after, 0), NEVER_CHOSEN)
        column = least.argmax(1)
        at = column + np.arange(len(column)) * least.shape[1]
        breaks = nodes.is_idle.take(at)[:, np.newaxis]
        np.multiply(self._room_broken.take(nodes.idle, 0), breaks, out=room[1])
        room[1] += self._room_change.take(nodes.state.take(at), 0)
        room[1] += room[0]
        return -(-least.take(at) // SCALE), column
