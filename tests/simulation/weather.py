"""Which faults a run has, how often, and how often they struck.

Every fault is on in about half of the seeds, so that each meets the others and each is also alone.
Invariant: all chance comes from the seed, through a stream of its own for each purpose, so that one
more draw in one place does not change another.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

ON_THE_WIRE = (
    "duplicate publish",
    "delayed delivery",
    "dropped connection",
    "lost answer, stored",
    "lost request, not stored",
    "stored late",
    "lost fetch",
)
ON_A_TIMER = (
    "crash",
    "crash mid-instant",
    "partition",
    "vanished agent",
    "early redelivery",
    "forgotten acks",
    "ledger full",
    "torn snapshot",
    "ledger trimmed",
    "rogue event",
    "device failed",
    "device recovered",
    "cordon",
    "policy change",
    "node not ready",
)
AMONG_MEMBERS = ("unheard member",)
AT_THE_TARGET = ("bind failed", "bind failed for good", "bind hung")
ALWAYS = ("clock skew",)
KINDS = ON_THE_WIRE + ON_A_TIMER + AMONG_MEMBERS + AT_THE_TARGET + ALWAYS


@dataclass
class Weather:
    """The faults of one run: a rate for each that is on, and a count of those that struck.

    The rate of a fault on the wire or at the target is a probability per message or call, that of
    one on a timer is per virtual second. `calm` ends them all; those of `spared` never strike.
    """

    seed: int
    spared: frozenset[str] = frozenset()
    rates: dict[str, float] = field(default_factory=dict)
    struck: Counter[str] = field(default_factory=Counter)
    calm: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        chance = self.stream("weather")
        for kind in ON_THE_WIRE:
            self._draw(chance, kind, 0.004, 0.06)
        for kind in ON_A_TIMER:
            self._draw(chance, kind, 0.02, 0.25)
        for kind in AT_THE_TARGET:
            self._draw(chance, kind, 0.02, 0.3)
        for kind in AMONG_MEMBERS:
            self._draw(chance, kind, 0.05, 0.5)
        self._wire = self.stream("wire")

    def _draw(self, chance: random.Random, kind: str, least: float, most: float) -> None:
        rate = chance.uniform(least, most)
        if chance.random() < 0.5 and kind not in self.spared:
            self.rates[kind] = rate * self.scale

    def stream(self, purpose: str) -> random.Random:
        """A stream of chance for one purpose."""
        return random.Random(f"{self.seed}/{purpose}")

    def strikes(self, kind: str, chance: random.Random) -> bool:
        """Whether this fault happens now; counted if it does."""
        rate = self.rates.get(kind, 0.0)
        if self.calm or not rate or chance.random() >= rate:
            return False
        self.struck[kind] += 1
        return True
