"""The tables of one set of prices for the kinds of device that there are, and nodes read by them.

A derived structure: made anew when prices are learnt or a new kind of device comes. A node is
weighed by what it has left: the state of each device in use (`states`), and how many are idle.
"""

from typing import Final

import numpy as np

from apportion.core.placement.index.columns import FORGOTTEN, Columns
from apportion.core.placement.index.packed import Int64, Int64s
from apportion.core.placement.pricing import loss_loops, tables
from apportion.core.placement.pricing.fragments import Fragments
from apportion.core.placement.pricing.readings import Ints, Readings, Tables
from apportion.core.placement.pricing.states import (
    DEVICE_COUNTS,
    STATES,
    idle_state,
    is_cut,
    percent_left,
)
from apportion.core.placement.pricing.variety import Frequent, frequent
from apportion_schemas import Device, PricesLearnt

_ENDLESS: Final = 1 << 40


class PriceTable:
    """The tables of one set of prices for the kinds of device that were offered, by their number.

    `percent_left` is by kind and state; `fragments` are those of the published measure.
    """

    def __init__(self, prices: PricesLearnt, offered: list[Device | None]) -> None:
        self.prices = prices
        self.devices = offered
        cut = np.array([is_cut(device) for device in self.devices])
        amounts = [self._of_kinds(amount) for amount in ("memory_mib", "cores", "slots")]
        self.percent_left = np.concatenate([percent_left(device) for device in self.devices])
        cpu_prices = tables.cpu_prices(prices.shapes)
        self.tables = Tables(
            np.stack([*amounts, cut], 1),
            cpu_prices,
            self._values(cpu_prices),
            self._rooms(frequent(prices.shapes)),
            self.percent_left,
        )
        self.fragments = Fragments(prices, self.devices)
        self._readings = Readings(self.tables, 0, 1)
        self._generation = -1
        self._seen = 0

    def covers(self, prices: PricesLearnt | None, offered: list[Device | None]) -> bool:
        """Whether the tables are of these very prices and kinds."""
        return self.prices is prices and self.devices is offered

    def read(self, columns: Columns) -> Readings:
        """The nodes by these tables, up to date; always asked with the same columns."""
        log = columns.changed
        begin: Int64 = log.place_of(self._seen)
        end: Int64 = log.count
        rows: Int64s = log.cells
        self._seen = log.end
        if self._generation != columns.generation:
            self._generation, begin = columns.generation, FORGOTTEN
            self._readings = Readings(self.tables, len(columns.names), columns.width)
        if begin == FORGOTTEN:
            rows = columns.every_cells
            begin, end = 0, len(columns.names)
        loss_loops.read(
            rows,
            begin,
            end,
            columns.flat_free,
            columns.flat_kind,
            columns.flat_slices,
            self.tables,
            self._readings,
        )
        return self._readings

    def _of_kinds(self, amount: str) -> Ints:
        have = [max(getattr(device, amount), 1) if device else _ENDLESS for device in self.devices]
        return np.array(have, np.int64)

    def _values(self, cpu_prices: Ints) -> tuple[Ints, Ints]:
        shapes, steps = self.prices.shapes, len(cpu_prices)
        share = np.zeros((steps, len(self.devices), STATES), np.int64)
        device = np.zeros((steps, len(self.devices), DEVICE_COUNTS), np.int64)
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
        device = np.zeros((len(self.devices), DEVICE_COUNTS, len(shapes)), np.int64)
        for kind, each in enumerate(self.devices):
            for at, shape in enumerate(shapes):
                device[kind, :, at] = tables.device_room(shape.sort, each)
                if each is not None:
                    share[kind, :, at] = tables.share_room(shape.sort, each)
        kinds = len(self.devices)  # told, for there may be no shape
        needs = [(max(s.cpu_milli, 1), max(s.memory_mib, 1), s.weight) for s in shapes]
        return (
            share.reshape(kinds * STATES, len(shapes)),
            device.reshape(kinds * DEVICE_COUNTS, len(shapes)),
            np.array(needs, np.int64).reshape(len(shapes), 3),
        )
