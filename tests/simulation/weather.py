"""The faults of a run: which kinds can occur, how often, and how often each has occurred.

Each kind is enabled in about half of the seeds, so that it occurs alone and with other kinds. Each
purpose has its own random stream, so an additional draw in one stream does not change the others.
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
FROM_A_NODE = ("hostile agent",)
WITH_A_STOLEN_KEY = ("forged snapshot",)
FROM_A_FLOOD = ("agent flood",)
ALWAYS = ("clock skew",)
AT_THE_API = (
    "api busy",
    "api failed, not done",
    "api failed, done",
    "api request lost",
    "api answer lost",
    "api done late",
    "api slow",
    "watch dropped",
    "watch event twice",
    "watch event late",
)
IN_THE_CLUSTER = (
    "api away",
    "api partition",
    "past forgotten",
    "node left",
    "node unready",
    "pod ended",
    "pod force-deleted",
    "pod made again",
    "pod held by a finalizer",
    "bound by another",
    "let go by hand",
)
OF_LIMITS = ("limits changed",)
FROM_ANOTHER_SCHEDULER = ("slice of another scheduler",)
FROM_A_RESIZE = ("pod shrunk",)
KINDS = (
    ON_THE_WIRE
    + ON_A_TIMER
    + AMONG_MEMBERS
    + AT_THE_TARGET
    + FROM_A_NODE
    + WITH_A_STOLEN_KEY
    + FROM_A_FLOOD
    + OF_LIMITS
    + ALWAYS
    + AT_THE_API
    + IN_THE_CLUSTER
    + FROM_ANOTHER_SCHEDULER
    + FROM_A_RESIZE
)
WITHOUT_A_CLUSTER = (*AT_THE_TARGET, *OF_LIMITS, "node not ready")
CLUSTER_SHARE = 0.25
"""The fraction of seeds with a cluster. Runs of the other seeds have a folder of manifests."""


@dataclass
class Weather:
    """The faults of one run: the rate of each fault, and how often each has struck.

    For faults of the network and of bindings, a rate is a probability per message or call. For all
    other faults, it is a probability per virtual second."""

    seed: int
    spared: frozenset[str] = frozenset()  # Faults that never strike.
    cluster: bool | None = None  # With an API server; if None, the seed decides.
    rates: dict[str, float] = field(default_factory=dict)
    struck: Counter[str] = field(default_factory=Counter)
    calm: bool = False  # True ends all faults.
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
        for kind in FROM_A_NODE:
            self._draw(self.stream("weather of a node"), kind, 0.2, 2.0)
        for kind in WITH_A_STOLEN_KEY:
            self._draw(self.stream("weather of a stolen key"), kind, 0.05, 0.5)
        for kind in FROM_A_FLOOD:
            self._draw(self.stream("weather of a flood"), kind, 0.02, 0.2)
        for kind in OF_LIMITS:
            self._draw(self.stream("weather of limits"), kind, 0.05, 0.5)
        if self.cluster is None:
            self.cluster = self.stream("mode").random() < CLUSTER_SHARE
        if self.cluster:
            self._form_cluster(self.stream("weather of the cluster"))

    def _form_cluster(self, chance: random.Random) -> None:
        for kind in WITHOUT_A_CLUSTER:
            self.rates.pop(kind, None)
        for kind in AT_THE_API:
            self._draw(chance, kind, 0.005, 0.1)
        for kind in IN_THE_CLUSTER:
            self._draw(chance, kind, 0.02, 0.2)
        for kind in FROM_ANOTHER_SCHEDULER:
            self._draw(self.stream("weather of another scheduler"), kind, 0.05, 0.5)
        for kind in FROM_A_RESIZE:
            self._draw(self.stream("weather of a resize"), kind, 0.05, 0.5)

    def _draw(self, chance: random.Random, kind: str, least: float, most: float) -> None:
        rate = chance.uniform(least, most)
        if chance.random() < 0.5 and kind not in self.spared:
            self.rates[kind] = rate * self.scale

    def stream(self, purpose: str) -> random.Random:
        """Return the random stream for this purpose."""
        return random.Random(f"{self.seed}/{purpose}")

    def strikes(self, kind: str, chance: random.Random) -> bool:
        """Draw whether a fault of this kind strikes now. If so, count it and return True."""
        rate = self.rates.get(kind, 0.0)
        if self.calm or not rate or chance.random() >= rate:
            return False
        self.struck[kind] += 1
        return True
