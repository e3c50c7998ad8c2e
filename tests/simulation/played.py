"""Simulation runs of the unmodified code. A process plays each run once and keeps the outcome.

Tests with a planted fault call `run` instead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from tests.simulation.weather import Weather
from tests.simulation.world import Outcome, run


def played(
    seed: int, *, rates: Mapping[str, float] | None = None, cluster: bool | None = None
) -> Outcome:
    """Run the simulation with this seed and these fault rates, and return its outcome.

    If `cluster` is None, the seed decides whether the run has a cluster."""
    side = bool(Weather(seed, cluster=cluster).cluster)
    return _play(seed, tuple(sorted((rates or {}).items())), side)


@cache
def _play(seed: int, rates: tuple[tuple[str, float], ...], side: bool) -> Outcome:
    return run(seed, adjust=lambda weather: weather.rates.update(rates), cluster=side)
