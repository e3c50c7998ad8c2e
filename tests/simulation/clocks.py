"""The clock of one simulated process: virtual time, a wrong wall clock, and random pauses."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

from tests.simulation.loop import rest

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class SkewedClock:
    """A clock in virtual time, whose wall clock is wrong by `skew_s` seconds."""

    def __init__(self, chance: random.Random, *, skew_s: float) -> None:
        self._chance = chance
        self._skew = timedelta(seconds=skew_s)

    def now(self) -> datetime:
        passed = timedelta(seconds=asyncio.get_running_loop().time())
        return EPOCH + passed + self._skew

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def pause(self, longest_s: float) -> None:
        await rest(longest_s * self._chance.uniform(0.5, 1.0))
