"""Measure how good the forecasts of starts are in the replay of a trace.

Only jobs that are not placed at once count, and only those among the last third of all arrivals. A
forecast is made when the engine first refuses a job, from the events until then. Invariant: the
figures follow from the observed changes alone."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from apportion.core.forecast.line import Line
from apportion.core.forecast.waits import LEVELS, MINUTE_S
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.state import PodState
from apportion.lab.recording import Workload
from apportion.lab.traces import Job
from apportion_schemas import PodPlaced, PodRefused

PERCENT: Final = 100.0
PART: Final = 2 / 3  # of the jobs, by arrival, are only history


class ForecastFigures(Struct, frozen=True, kw_only=True):
    """How good the forecasts of starts are. A field is None if no start was forecast."""

    forecasts: int  # of jobs that were not placed at once
    unknown: int  # such jobs without a forecast
    coverage_pct: float | None  # of starts within the band of 80 %
    pinball_log2: float | None  # mean over the quantiles, on log2 of seconds + 60


class ForecastMeter:
    """Measures forecasts in a replay of `workload`, which was made from `jobs`."""

    def __init__(self, workload: Workload, jobs: Sequence[Job]) -> None:
        self._line = Line(workload.beginning())
        self._now_s = 0.0
        arrivals_s = sorted(job.arrival_s for job in jobs)
        self._begin_s = workload.begin_s + arrivals_s[int(len(arrivals_s) * PART)]
        self._open: dict[str, tuple[float, tuple[float, ...] | None]] = {}  # by owner
        self._seen: set[str] = set()
        self._found: list[tuple[float, tuple[float, ...]]] = []
        self._unknown = 0

    def advance(self, now_s: float) -> None:
        """Set the current time, in seconds since 1970."""
        self._now_s = now_s

    def observe(self, change: Change) -> None:
        """Follow a change of the state, and make or judge a forecast."""
        data, pod = change.data, change.pod
        if change.refused:
            return
        self._line.observe(data, self._now_s)
        if pod is None:
            return
        owner = pod.submitted.owner
        if isinstance(data, PodRefused) and owner not in self._seen:
            self._seen.add(owner)
            if self._now_s >= self._begin_s:
                self._open[owner] = (self._now_s, self._band(pod))
        elif isinstance(data, PodPlaced):
            self._seen.add(owner)
            since_s, band = self._open.pop(owner, (0.0, None))
            if band is not None:
                self._found.append((self._now_s - since_s, band))
            elif since_s:
                self._unknown += 1

    def figures(self) -> ForecastFigures:
        """Return the figures of the replay so far."""
        waits = np.array([waited for waited, _ in self._found])
        bands = np.array([band for _, band in self._found])
        coverage = pinball = None
        if len(waits):
            within = (waits >= bands[:, 0] - 0.5) & (waits <= bands[:, 2] + 0.5)
            coverage = float(PERCENT * within.mean())
            missed = np.log2(waits + MINUTE_S)[:, None] - np.log2(bands + MINUTE_S)
            levels = np.array(LEVELS)
            pinball = float(np.maximum(levels * missed, (levels - 1) * missed).mean())
        return ForecastFigures(
            forecasts=len(waits), unknown=self._unknown, coverage_pct=coverage, pinball_log2=pinball
        )

    def _band(self, pod: PodState) -> tuple[float, ...] | None:
        found = self._line.forecast(pod)
        if found is None or found.unknown:
            return None
        times = (found.earliest, found.median, found.latest)
        return tuple((micros_of(each) or 0) / SECOND - self._now_s for each in times)
