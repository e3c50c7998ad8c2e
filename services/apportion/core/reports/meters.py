"""Rates that are added up over time, by row and model: the arithmetic of a report.

A card is a million parts (`CARD`), memory is MiB, time microseconds; so all sums are whole numbers.
Invariant: what a meter has added up is its rate at every moment between the period's two ends, and
what lies in a step is in no other."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from msgspec import Struct

CARD: Final = 1_000_000
ROWS_MAX: Final = 20_000
CELLS_MAX: Final = 200_000


class Part(IntEnum):
    """What a part of a card, and of its memory, is at one moment."""

    GRANTED = 0
    FREE = 1
    CORDONED = 2
    BROKEN = 3


PARTS: Final = len(Part)
Key = tuple[str, str]
"""Row and model."""


class TooMuch(ValueError):
    """More rows or steps than a report may have; the message says what to ask for instead."""


class Sums(Struct):
    """Cards (millionths times microseconds) and MiB (times microseconds) of each part."""

    cards: list[int]
    mib: list[int]

    @classmethod
    def nothing(cls) -> "Sums":
        """Sums of a row that has held nothing so far."""
        return cls([0] * PARTS, [0] * PARTS)

    def add(self, other: "Sums") -> None:
        """Add those of another row, model or step."""
        for part in range(PARTS):
            self.cards[part] += other.cards[part]
            self.mib[part] += other.mib[part]


class Meter(Struct):
    """The rates of one row and model since `since`, and what they have come to before it."""

    since: int
    cards: list[int]
    mib: list[int]
    sums: Sums

    def settle(self, now: int) -> None:
        """Add what the rates have come to up to the moment `now`."""
        passed = now - self.since
        if passed <= 0:
            return
        self.since = now
        for part in range(PARTS):
            if self.cards[part]:
                self.sums.cards[part] += self.cards[part] * passed
            if self.mib[part]:
                self.sums.mib[part] += self.mib[part] * passed

    @property
    def still(self) -> bool:
        """Whether it has no rate and so adds nothing."""
        return not any(self.cards) and not any(self.mib)


class Meters:
    """The meters of one period, in steps of `step` microseconds, or in one.

    Steps begin at multiples of their length since 1970, so on the hour or at midnight in UTC; the
    first and the last may be cut short by the period."""

    def __init__(self, start: int, end: int, step: int = 0) -> None:
        self.start, self.end = start, end
        self.now = start
        self._step = step or max(end - start, 1)
        self._origin = start - start % self._step if step else start
        self._edge = self._origin + self._step
        self._meters: dict[Key, Meter] = {}
        self._cells: dict[tuple[int, Key], Sums] = {}

    def turn(self, key: Key, part: Part, cards: int, mib: int) -> None:
        """Change a rate by so much from now on."""
        meter = self._meters.get(key)
        if meter is None:
            if len(self._meters) >= ROWS_MAX:
                raise TooMuch(f"more than {ROWS_MAX:,} rows; add up by something coarser")
            meter = self._meters[key] = Meter(self.now, [0] * PARTS, [0] * PARTS, Sums.nothing())
        meter.settle(self.now)
        meter.cards[part] += cards
        meter.mib[part] += mib

    def go_to(self, moment: int) -> None:
        """Let time pass up to the moment, as far as it is in the period; it never goes back."""
        moment = min(moment, self.end)
        while self._edge <= moment:
            self._close(self._edge)
            self._edge += self._step
        self.now = max(self.now, moment)

    def finish(self) -> None:
        """Let time pass up to the period's end."""
        self.go_to(self.end)
        if self.end > self._edge - self._step:
            self._close(self.end)
            self._edge = self.end + self._step

    def cells(self) -> Iterator[tuple[int, Key, Sums]]:
        """What came in each step, by row and model; steps count from 0."""
        for (step, key), sums in self._cells.items():
            yield step, key, sums

    def step_of(self, moment: int) -> int:
        """In which step the moment lies."""
        return (moment - self._origin) // self._step

    def edges(self, step: int) -> tuple[int, int]:
        """Where the step begins and ends."""
        begin = self._origin + step * self._step
        return max(begin, self.start), min(begin + self._step, self.end)

    def _close(self, edge: int) -> None:
        """Put what came since the step began into cells, and forget meters that stand still."""
        step = self.step_of(edge - 1)
        self.now = max(self.now, edge)
        for key, meter in list(self._meters.items()):
            meter.settle(edge)
            if any(meter.sums.cards) or any(meter.sums.mib):
                self._cells[step, key] = meter.sums
                meter.sums = Sums.nothing()
            if meter.still:
                del self._meters[key]
        if len(self._cells) > CELLS_MAX:
            raise TooMuch(
                f"more than {CELLS_MAX:,} rows and steps; ask for longer steps, or fewer rows"
            )
