"""Add up amounts in use over time, by row and device model: the arithmetic of a report.

A device is a million parts (`CARD`), memory is in MiB, time in microseconds. Invariant: a meter's
sum is its rate integrated over the period, and each microsecond counts in one step only."""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from msgspec import Struct, field

CARD: Final = 1_000_000
ROWS_MAX: Final = 20_000
CELLS_MAX: Final = 200_000


class Part(IntEnum):
    """The state of a fraction of a device: allocated to pods, free, cordoned or unhealthy.

    A report of lost hours also uses the parts from `DRAINING` on. There, `FREE` means that no
    pending pod requests the fraction. From `DELAYED` on, the order is that in which pending pods
    take what is free."""

    ALLOCATED = 0
    FREE = 1
    CORDONED = 2
    UNHEALTHY = 3
    DRAINING = 4
    DELAYED = 5
    QUOTA = 6
    GANG = 7
    TOPOLOGY = 8
    FRAGMENTED = 9


PARTS: Final = len(Part)
Key = tuple[str, str]  # row and model
BITS: Final = 64  # fraction bits of the time per unit of weight
Give = Callable[[str, Part, int], None]  # of a row, a part and its device time


class TooMuch(ValueError):
    """Raised if a report has too many rows or steps; suggests how to make it smaller."""


class Sums(Struct):
    """Device time for each `Part`: in millionths of a device and in MiB, times microseconds."""

    cards: list[int] = field(default_factory=lambda: [0] * PARTS)
    mib: list[int] = field(default_factory=lambda: [0] * PARTS)

    def add(self, other: "Sums") -> None:
        """Add the sums of another row, model or step."""
        for part in range(PARTS):
            self.cards[part] += other.cards[part]
            self.mib[part] += other.mib[part]


class Meter(Struct):
    """The amounts that one row uses of one device model, and the totals up to the time `since`."""

    since: int
    rates: Sums = field(default_factory=Sums)
    sums: Sums = field(default_factory=Sums)

    def settle(self, now: int) -> None:
        """Add up the device time since the last call, at the current rates."""
        passed = now - self.since
        if passed <= 0:
            return
        self.since = now
        for sums, rates in ((self.sums.cards, self.rates.cards), (self.sums.mib, self.rates.mib)):
            for part, rate in enumerate(rates):
                if rate:
                    sums[part] += rate * passed


class Meters:
    """Measures all rows and models in one period, in steps of `step` microseconds (0: one step).

    Steps begin at multiples of their length since 1970 (UTC); the first and last may be cut."""

    def __init__(self, start: int, end: int, step: int = 0) -> None:
        self.start, self.end = start, end
        self.now = start
        self._step = step or max(end - start, 1)
        self._origin = start - start % self._step if step else start
        self._edge = self._origin + self._step
        self._meters: dict[Key, Meter] = {}
        # called before a step is closed, with its end
        self.closing: Callable[[int], None] = lambda _: None
        # by the number of a step, from 0, and a row with a device model
        self.cells: dict[tuple[int, Key], Sums] = {}

    def turn(self, key: Key, part: Part, cards: int, mib: int) -> None:
        """Add these amounts to a row's current usage of a model."""
        meter = self._meter(key)
        meter.settle(self.now)
        meter.rates.cards[part] += cards
        meter.rates.mib[part] += mib

    def move(self, source: Key, target: Key, part: Part, cards: int) -> None:
        """Count this device time of the current step as `part` of `target`, not free in `source`.

        `cards` is in millionths of a device, times microseconds."""
        self._meter(source).sums.cards[Part.FREE] -= cards
        self._meter(target).sums.cards[part] += cards

    def _meter(self, key: Key) -> Meter:
        meter = self._meters.get(key)
        if meter is None:
            if len(self._meters) >= ROWS_MAX:
                raise TooMuch(f"more than {ROWS_MAX:,} rows; group by a key with fewer values")
            meter = self._meters[key] = Meter(self.now)
        return meter

    def go_to(self, moment: int) -> None:
        """Move the current time forward to `moment`, but not beyond the end of the period."""
        moment = min(moment, self.end)
        while self._edge <= moment:
            self._close(self._edge)
            self._edge += self._step
        self.now = max(self.now, moment)

    def finish(self) -> None:
        """Move the current time to the end of the period."""
        self.go_to(self.end)
        if self.end > self._edge - self._step:
            self._close(self.end)
            self._edge = self.end + self._step

    def step_of(self, moment: int) -> int:
        """Return the number of the step that contains `moment`."""
        return (moment - self._origin) // self._step

    def edges(self, step: int) -> tuple[int, int]:
        """Return the start and the end of a step within the period."""
        begin = self._origin + step * self._step
        return max(begin, self.start), min(begin + self._step, self.end)

    def _close(self, edge: int) -> None:
        """Store the sums of the current step, and drop meters without current usage."""
        step = self.step_of(edge - 1)
        self.now = max(self.now, edge)
        self.closing(edge)
        for key, meter in list(self._meters.items()):
            meter.settle(edge)
            if any(meter.sums.cards) or any(meter.sums.mib):
                self.cells[step, key] = meter.sums
                meter.sums = Sums()
            if not any(meter.rates.cards) and not any(meter.rates.mib):
                del self._meters[key]
        if len(self.cells) > CELLS_MAX:
            raise TooMuch(
                f"more than {CELLS_MAX:,} values (rows x steps); use longer steps or fewer rows"
            )


class _Weight(Struct):
    cards: int
    seen: dict[Part, int]  # time per unit of weight that the row already has


class Division:
    """Divides the device time of some parts among rows, in proportion to their weights.

    It adds up how much time one unit of weight has got, and visits a row only when the row's weight
    changes or a step ends. Rows never get more than was divided; what the rounding leaves over,
    less than a unit per visit, stays free."""

    def __init__(self, now: int, give: Give) -> None:
        """Begin at `now`. `give` gets a row, a part and its device time."""
        self.total = 0  # of all weights
        self._since, self._give = now, give
        self._rates: Mapping[Part, int] = {}
        self._grown: dict[Part, int] = {}
        self._rows: dict[str, _Weight] = {}

    def divide(self, rates: Mapping[Part, int], now: int) -> None:
        """From `now` on, divide these amounts of each part, in millionths of a device."""
        if rates != self._rates:
            self._advance(now)
            self._rates = rates

    def weigh(self, row: str, cards: int, now: int) -> None:
        """Add `cards` to the weight of a row."""
        self._advance(now)
        weight = self._rows.get(row)
        if weight is None:
            weight = self._rows[row] = _Weight(0, dict(self._grown))
        else:
            self._settle(row, weight)
        weight.cards += cards
        self.total += cards
        if not weight.cards:
            del self._rows[row]

    def settle(self, now: int) -> None:
        """Give each row its device time up to `now`."""
        self._advance(now)
        for row, weight in self._rows.items():
            self._settle(row, weight)

    def _advance(self, now: int) -> None:
        passed, self._since = now - self._since, max(now, self._since)
        if passed <= 0:
            return
        for part, rate in self._rates.items():
            grown = (rate * passed << BITS) // self.total
            self._grown[part] = self._grown.get(part, 0) + grown

    def _settle(self, row: str, weight: _Weight) -> None:
        for part, grown in self._grown.items():
            cards = weight.cards * (grown - weight.seen.get(part, 0)) >> BITS
            if cards:
                self._give(row, part, cards)
            # even if it is nothing, because the weight may change now
            weight.seen[part] = grown
