"""Add up amounts in use over time, by row and device model: the arithmetic of a report.

A device is a million parts (`CARD`), memory is in MiB, time in microseconds. Invariant: a meter's
sum is its rate integrated over the period, and each microsecond counts in one step only."""

from enum import IntEnum
from typing import Final

from msgspec import Struct, field

CARD: Final = 1_000_000
ROWS_MAX: Final = 20_000
CELLS_MAX: Final = 200_000


class Part(IntEnum):
    """The state of a fraction of a device: allocated to pods, free, cordoned or unhealthy."""

    ALLOCATED = 0
    FREE = 1
    CORDONED = 2
    UNHEALTHY = 3


PARTS: Final = len(Part)
Key = tuple[str, str]  # row and model


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
        for part in range(PARTS):
            if self.rates.cards[part]:
                self.sums.cards[part] += self.rates.cards[part] * passed
            if self.rates.mib[part]:
                self.sums.mib[part] += self.rates.mib[part] * passed


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
        # by the number of a step, from 0, and a row with a device model
        self.cells: dict[tuple[int, Key], Sums] = {}

    def turn(self, key: Key, part: Part, cards: int, mib: int) -> None:
        """Add these amounts to a row's current usage of a model."""
        meter = self._meters.get(key)
        if meter is None:
            if len(self._meters) >= ROWS_MAX:
                raise TooMuch(f"more than {ROWS_MAX:,} rows; group by something coarser")
            meter = self._meters[key] = Meter(self.now)
        meter.settle(self.now)
        meter.rates.cards[part] += cards
        meter.rates.mib[part] += mib

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
