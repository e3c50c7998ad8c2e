"""Simulate the system that binds pods: a binding can succeed, fail, or get no answer.

Invariant: a binding that is reported as failed has had no effect."""

from __future__ import annotations

import random

from apportion.binder.binding import Bound, Failed, Outcome
from apportion_schemas import PodEvicted, PodPlaced, PodResized
from tests.simulation.loop import rest
from tests.simulation.weather import Weather

CALL_S = (0.001, 0.08)
HUNG_S = 60.0


class FailingTarget:
    """The API server for all simulated binders. Some of their requests fail."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self._chance: random.Random = weather.stream("target")

    async def bind(self, placed: PodPlaced) -> Outcome:
        await rest(self._chance.uniform(*CALL_S))
        strikes = self._weather.strikes
        if strikes("bind hung", self._chance):
            await rest(HUNG_S)
        if strikes("bind failed for good", self._chance):
            return Failed(f"pod {placed.pod} may not run on {placed.node}", final=True)
        if strikes("bind failed", self._chance):
            return Failed("the API server is busy", final=False)
        return Bound()

    async def evict(self, evicted: PodEvicted, later: int | None = None) -> Failed | None:  # noqa: ARG002 - it has no pods
        await rest(self._chance.uniform(*CALL_S))
        if self._weather.strikes("bind failed", self._chance):
            return Failed(f"pod {evicted.pod} is not let go of yet", final=False)
        return None

    async def resize(self, resized: PodResized) -> Failed | None:
        await rest(self._chance.uniform(*CALL_S))
        if self._weather.strikes("bind failed", self._chance):
            return Failed(f"pod {resized.pod} does not say it yet", final=False)
        return None
