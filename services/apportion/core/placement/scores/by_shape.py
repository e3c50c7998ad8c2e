"""Scores that keep room for frequent shapes, and choose node and device together.

FGD places a pod where expected fragmentation rises least ("Beware of Fragmentation", Weng et al.,
USENIX ATC 2023). Its score is a sigmoid in whole percent: smaller differences are ties."""

from math import ceil, log
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.index import packed
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import HOST
from apportion.core.placement.index.packed import POINTS, Int64
from apportion.core.placement.index.score_input import NO_ASK, NO_DEVICE, NodeScore, ScoreInput
from apportion.core.placement.pricing import loss_loops
from apportion.core.placement.pricing.price_table import PriceTable
from apportion.core.placement.pricing.readings import Ints, Taken
from apportion.core.placement.pricing.sizes import hardest, size_percent
from apportion.core.placement.pricing.states import (
    DEVICE_COUNTS,
    FULL,
    NOWHERE,
    STATES,
    after_share,
    is_cut,
)
from apportion_schemas import Ask, NodeConstraints, Shape
from apportion_schemas.quantities import WHOLE

MILLION: Final[Int64] = 1_000_000
_COMPUTE: Final = (1 << packed.COMPUTE_BITS) - 1
# gains, in millionths of a device, where the score becomes 1, 2, … 99: sigmoid's inverse
STEPS: Final = tuple(round(MILLION * log(step / (100 - step))) for step in range(1, 100))


class Fgd(NodeScore):
    """The policy `fgd`: choose the node where the pod's largest ask fragments devices least."""

    policy = "fgd"

    def __init__(self, shape: Shape, price_table: PriceTable) -> None:
        self._price_table = price_table
        self._fragments = price_table.fragments()
        self._devices = np.zeros(0, np.int8)  # the device that gave each row its points
        self._cpu_milli = shape.node.cpu_milli
        self.ask_at, self._count = NO_ASK, 0
        if shape.asks:
            self.ask_at = hardest(shape.asks, price_table.devices)
            ask = shape.asks[self.ask_at]
            self._count = ask.count
            sizes = [size_percent(ask, device) if device else 0 for device in price_table.devices]
            self._taken = np.repeat(np.array(sizes, np.int64), STATES)
        total = self._fragments.total
        self._steps = np.array([ceil(step * total * WHOLE / MILLION) for step in STEPS], np.int64)

    def rate(self, seen: ScoreInput) -> None:
        """Score each node: the less the pod fragments its devices, the more points."""
        columns, given = seen.columns, np.asarray(seen.given)[: seen.count]
        chosen = np.flatnonzero(given != REFUSED)
        readings = self._price_table.read(columns)
        if not len(chosen):
            return
        rows = np.asarray(seen.rows)[: seen.count].take(chosen)
        state = readings.states.take(rows, 0)
        left = self._price_table.percent_left.take(state)
        left[:, HOST] = 0
        sizes = self._fragments.sizes.take(readings.numbers.take(rows) // DEVICE_COUNTS, 0)
        usable = Usable.of(left, sizes)
        cpu_free = columns.free[:, HOST].take(rows) >> packed.COMPUTE_AT & _COMPUTE
        before = self._expected(cpu_free, usable)
        cpu_milli = cpu_free - self._cpu_milli
        if self.ask_at == NO_ASK:
            percent = self._percent(before - self._expected(cpu_milli, usable))
        else:
            width = columns.width
            enough = np.asarray(seen.enough)[: seen.count * width].reshape(-1, width)
            taken = np.minimum(self._taken.take(state), left) * enough.take(chosen, 0)
            column, percent = self._best(before, cpu_milli, left, taken, usable)
            if len(self._devices) != len(columns.names):
                self._devices = np.full(len(columns.names), NO_DEVICE, np.int8)
            self._devices[rows] = column - 1
        given[chosen] = percent * (POINTS // 100)

    def device(self, row: int) -> int:
        """Return the position of the device that gave the row its score."""
        return int(self._devices[row]) if row < len(self._devices) else NO_DEVICE

    def _percent(self, gain: Ints) -> Ints:
        return np.searchsorted(self._steps, gain, "right")

    def _best(
        self, before: Ints, cpu_milli: Ints, left: Ints, taken: Ints, usable: "Usable"
    ) -> tuple[NDArray[np.intp], Ints]:
        # The first column with the best score, and that score. `taken` is what the share would take
        # of each device with room; an ask for several devices takes the first ones.
        if self._count > 1:
            taken *= (taken > 0).cumsum(1) <= self._count
            after = self._expected(cpu_milli, Usable.of(left - taken, usable.sizes))
            return taken.argmax(1), self._percent(before - after)
        most = np.full(len(left), -1)
        best = np.zeros(len(left), np.intp)
        for column in np.flatnonzero(taken.any(0)).tolist():
            changed = usable.changed(left[:, column], left[:, column] - taken[:, column])
            percent = self._percent(before - self._expected(cpu_milli, changed))
            better = (percent > most) & (taken[:, column] > 0)
            most[better] = percent[better]
            best[better] = column
        return best, np.maximum(most, 0)

    def _expected(self, cpu_milli: Ints, usable: "Usable") -> Ints:
        fragments = self._fragments
        fits = usable.devices >= fragments.counts
        fits &= cpu_milli[:, np.newaxis] >= fragments.cpu_milli
        expected: Ints = usable.all_left * fragments.total
        expected -= (usable.left * fits) @ fragments.pods
        return expected


class Usable(NamedTuple):
    """How much room for each shape is left on the devices of each node."""

    sizes: Ints  # percent of a device for one share
    left: Ints  # free percent of these devices in total
    devices: Ints  # how many have room for a share
    all_left: Ints  # free percent of all devices of a node

    @classmethod
    def of(cls, left: Ints, sizes: Ints) -> "Usable":
        """Compute `Usable` from the free percent of each device."""
        usable = cls(sizes, np.zeros_like(sizes), np.zeros_like(sizes), left.sum(1))
        for column in range(HOST + 1, left.shape[1]):
            here = left[:, column, np.newaxis]
            fits = here >= sizes
            np.add(usable.left, here * fits, out=usable.left)
            np.add(usable.devices, fits, out=usable.devices)
        return usable

    def changed(self, before: Ints, after: Ints) -> "Usable":
        """Return `Usable` after the free percent of one device per node changed."""
        was, now = before[:, np.newaxis], after[:, np.newaxis]
        fitted, fits = was >= self.sizes, now >= self.sizes
        return Usable(
            self.sizes,
            self.left + (now * fits - was * fitted),
            self.devices + fits - fitted,
            self.all_left + after - before,
        )


class Price:
    """The policy `price`: choose the node that loses least value.

    The value of a node is the highest total price of the frequent pods that still fit there. It is
    computed at several CPU prices, and the lowest counts."""

    policy = "price"

    def __init__(self, shape: Shape, price_table: PriceTable) -> None:
        self._price_table = price_table
        self._rows = -1
        self.ask_at = hardest(shape.asks, price_table.devices) if shape.asks else NO_ASK
        ask = shape.asks[self.ask_at] if shape.asks else None
        self._taken = _taken(price_table, ask, shape.node)

    def rate(self, seen: ScoreInput) -> None:
        """Score each node: `POINTS` minus the value that the pod would cost it."""
        columns, price_table, taken = seen.columns, self._price_table, self._taken
        if self._rows != len(columns.names):
            self._rows = len(columns.names)
            taken.make_room(self._rows)
        readings = price_table.read(columns)
        loss_loops.weigh(seen, columns.flat_free, readings.tables, readings, taken)

    def device(self, row: int) -> int:
        """Return the position of the device that costs the node least."""
        return self._taken.device[row]

    def total(self, points: Int64) -> float:
        """Return the score to show: 100 without loss, 50 for a loss of one device's value."""
        return 100 * MILLION / (MILLION + POINTS - points)


def _taken(price_table: PriceTable, ask: Ask | None, needs: NodeConstraints) -> Taken:
    after = np.arange(len(price_table.devices) * STATES, dtype=np.int32)
    for kind, device in enumerate(price_table.devices):
        states = after_share(ask, device).astype(np.int32)
        if is_cut(device):
            states = np.where(states == NOWHERE, np.arange(STATES), states)
        else:  # a share that misses by a fraction of a percent takes all that is left
            states[states == NOWHERE] = FULL
        after[kind * STATES :][:STATES] = states + kind * STATES
    count = ask.count if ask is not None else 0
    return Taken(after, count, needs.cpu_milli, needs.memory_mib)
