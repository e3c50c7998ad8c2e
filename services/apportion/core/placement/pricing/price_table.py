"""The tables of one set of prices for the kinds of device that there are, and nodes read by them.

A derived structure: made anew when prices are learnt or a new kind of device comes. A node is
weighed by what it has left: the state of each device in use (`states`), and how many are idle.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index import packed
from apportion.core.placement.index.columns import HOST
from apportion.core.placement.pricing import tables
from apportion.core.placement.pricing.fragments import Fragments
from apportion.core.placement.pricing.states import (
    IDLE,
    STATES,
    idle_state,
    is_cut,
    percent_left,
)
from apportion.core.placement.pricing.variety import Frequent, frequent
from apportion_schemas import Device, PricesLearnt
from apportion_schemas.quantities import WHOLE

_MEMORY: Final = np.int64((1 << packed.MEMORY_BITS) - 1)
_COMPUTE: Final = np.int64((1 << packed.COMPUTE_BITS) - 1)
_SLOTS: Final = np.int64((1 << packed.SLOTS_BITS) - 1)
_COMPUTE_AT: Final = np.int64(packed.COMPUTE_AT)
_SLOTS_AT: Final = np.int64(packed.SLOTS_AT)
_ENDLESS: Final = 1 << 40
ALL_SLICES: Final = STATES - 1  # of a card that is closed

Ints = NDArray[np.int64]


class Nodes(NamedTuple):
    """What some nodes have left; `state` and `is_idle` are by node and column, the others by node.

    `state` is a position in the tables by kind and state, `idle` in those by kind and number idle;
    `none_idle` is where the node's own begin.
    """

    cpu_milli: Ints
    memory_mib: Ints
    state: Ints
    is_idle: NDArray[np.bool_]
    idle: Ints
    none_idle: Ints


class Tables(NamedTuple):
    """Tables by kind of device and state (`share_*`), or by kind and number of idle devices.

    Values have a column for each of `cpu_prices`, in millionths of a device; rooms one for each of
    the `frequent` shapes, in pods. `kinds` has memory in MiB, cores, slots and whether it is cut
    of each kind of device; `frequent` CPU in milli-cores, memory in MiB and weight of each shape.
    """

    kinds: Ints
    cpu_prices: Ints
    share_value: Ints
    device_value: Ints
    share_room: Ints
    device_room: Ints
    frequent: Ints


class PriceTable:
    """The tables of one set of prices for the kinds of device that were offered, by their number.

    `percent_left` is by kind and state; `fragments` are those of the published measure.
    """

    def __init__(self, prices: PricesLearnt, offered: list[Device | None]) -> None:
        self.prices = prices
        self.devices = offered
        self._memory_mib = self._of_kinds("memory_mib")
        self._cores = self._of_kinds("cores")
        self._slots = self._of_kinds("slots")
        self._cut = np.array([is_cut(device) for device in self.devices])
        self._some_cut = bool(self._cut.any())
        self.percent_left = np.concatenate([percent_left(device) for device in self.devices])
        cpu_prices = tables.cpu_prices(prices.shapes)
        self.tables = Tables(
            np.stack([self._memory_mib, self._cores, self._slots, self._cut], 1),
            cpu_prices,
            *self._values(cpu_prices),
            *self._rooms(frequent(prices.shapes)),
        )
        self.fragments = Fragments(prices, self.devices)

    def covers(self, prices: PricesLearnt | None, offered: list[Device | None]) -> bool:
        """Whether the tables are of these very prices and kinds."""
        return self.prices is prices and self.devices is offered

    def nodes(self, free: Ints, kind: NDArray[np.intp], slices: NDArray[np.uint8]) -> Nodes:
        """What these rows of the columns of these names come to."""
        memory = free & _MEMORY
        compute = free >> _COMPUTE_AT & _COMPUTE
        shares = free >> _SLOTS_AT & _SLOTS
        state = np.minimum(
            memory * WHOLE // self._memory_mib.take(kind), compute * WHOLE // self._cores.take(kind)
        )
        state *= shares > 0
        is_idle = shares == self._slots.take(kind)
        state = np.where(is_idle, IDLE, state)
        if self._some_cut:
            cut = np.where(shares > 0, slices, ALL_SLICES)
            state = np.where(self._cut.take(kind), cut, state)
        none_idle = kind[:, -1 if kind.shape[1] == 1 else HOST + 1] * tables.DEVICE_COUNTS
        return Nodes(
            cpu_milli=compute[:, HOST],
            memory_mib=memory[:, HOST],
            state=state + kind * STATES,
            is_idle=is_idle,
            idle=none_idle + np.add.reduce(is_idle, 1),
            none_idle=none_idle,
        )

    def _of_kinds(self, amount: str) -> Ints:
        have = [max(getattr(device, amount), 1) if device else _ENDLESS for device in self.devices]
        return np.array(have, np.int64)

    def _values(self, cpu_prices: Ints) -> tuple[Ints, Ints]:
        shapes, steps = self.prices.shapes, len(cpu_prices)
        share = np.zeros((steps, len(self.devices), STATES), np.int64)
        device = np.zeros((steps, len(self.devices), tables.DEVICE_COUNTS), np.int64)
        for kind, each in enumerate(self.devices):
            if each is not None:
                values = tables.share_values(shapes, each, cpu_prices)
                idle = values[:, idle_state(each)].copy()
                device[:, kind] = tables.device_values(shapes, each, cpu_prices, idle)
                values[:, idle_state(each)] = 0  # idle devices are valued together
                share[:, kind] = values
        by_state, by_number = share.reshape(steps, -1).T, device.reshape(steps, -1).T
        return np.ascontiguousarray(by_state), np.ascontiguousarray(by_number)

    def _rooms(self, shapes: list[Frequent]) -> tuple[Ints, Ints, Ints]:
        share = np.zeros((len(self.devices), STATES, len(shapes)), np.int64)
        device = np.zeros((len(self.devices), tables.DEVICE_COUNTS, len(shapes)), np.int64)
        for kind, each in enumerate(self.devices):
            for at, shape in enumerate(shapes):
                device[kind, :, at] = tables.device_room(shape.sort, each)
                if each is not None:
                    share[kind, :, at] = tables.share_room(shape.sort, each)
        kinds = len(self.devices)  # told, for there may be no shape
        needs = [(max(s.cpu_milli, 1), max(s.memory_mib, 1), s.weight) for s in shapes]
        return (
            share.reshape(kinds * STATES, len(shapes)),
            device.reshape(kinds * tables.DEVICE_COUNTS, len(shapes)),
            np.array(needs, np.int64).reshape(len(shapes), 3),
        )
