"""Runs of the code as it is, each played once in a process however many tests look at it.

A run is a function of its seed, its rates and its side, so a second look at it shows nothing new.
Invariant: nothing broken is played here; whoever plants a fault takes `run`, or stands under it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from tests.simulation.weather import Weather
from tests.simulation.world import Outcome, run


def played(
    seed: int, *, rates: Mapping[str, float] | None = None, cluster: bool | None = None
) -> Outcome:
    """The run of this seed, with these rates turned on; `cluster` None leaves that to the seed."""
    side = bool(Weather(seed, cluster=cluster).cluster)
    return _play(seed, tuple(sorted((rates or {}).items())), side)


@cache
def _play(seed: int, rates: tuple[tuple[str, float], ...], side: bool) -> Outcome:
    return run(seed, adjust=lambda weather: weather.rates.update(rates), cluster=side)
