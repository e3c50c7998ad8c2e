"""Record how long pods waited in similar situations, and how good past forecasts were.

Waits are compared by log2(seconds + 60), a scale of doublings. A past wait counts more if it is
newer and if its situation is more similar. Pods that are still waiting count as longer than
they have waited (the Kaplan-Meier estimator), so a queue that does not move is not forgotten.

Which situations are dropped does not depend on the waits that followed, so long waits are as likely
to be kept as short ones. Invariant: memory is bounded, and equal histories give equal forecasts."""

from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np

from apportion.core.answers.reads import StartUnknown

KEPT: Final = 1_000  # situations
NOTED_EVERY_S: Final = 1.0  # at least
JUDGED: Final = 200  # newest forecasts by which the calibration is measured
LEVELS: Final = (0.1, 0.5, 0.9)
PROBABILITY: Final = LEVELS[2] - LEVELS[0]
STARTS_LEAST: Final = 20  # fewer known starts: no forecast
SIMILAR_LEAST: Final = 5.0  # a smaller sum of the similarities of known starts: no forecast
ALIKE_LEAST: Final = 1e-6  # less similar situations do not count at all
MINUTE_S: Final = 60.0
ROUNDED_S: Final = 0.5  # of the times that a forecast shows
# How situations are compared. Chosen on the traces of docs/contribute/lab.md.
SCALE: Final = 3.0  # doublings of a time that make a situation much less similar
SHRUNK: Final = 0.7  # by what power the wait grows with the expected wait
HALF: Final = 300  # situations until an old one counts half
_X, _OLDEST, _KNOWN, _Y, _AT, _QUEUE, _KIND, _SIZE, _VALID, _NUMBER, _EARLIEST, _LATEST = range(12)


class Situation(NamedTuple):
    """The features of a pending pod by which forecasts find similar pods.

    `expected_s` is when its devices should be released, and `oldest_s` for how long the oldest
    pending pod of its kind and size has waited. `queue`, `kind` and `size` are hashes of its queue,
    its kind of devices and its size class."""

    expected_s: float
    oldest_s: float
    queue: int
    kind: int
    size: int


class Band(NamedTuple):
    """Forecast seconds until a start, as the quantiles of `LEVELS`. `similar` is the sum of the
    similarities, each from 0 to 1, of the past starts that the forecast is from."""

    p10_s: float
    p50_s: float
    p90_s: float
    similar: float


class Waits:
    """Situations of pods that had to wait, and the waits that followed."""

    def __init__(self) -> None:
        self._rows = np.zeros((0, 12))  # in the order of their numbers
        self._count = 0
        self._judged: deque[bool] = deque(maxlen=JUDGED)  # whether pods started in their bands
        self.every_s = NOTED_EVERY_S  # the shortest time between situations to note

    def note(self, situation: Situation, now_s: float, band: Band | StartUnknown) -> int:
        """Record a pending pod's situation and forecast. Return the number of this record."""
        self._judge_overdue(now_s)
        if len(self._rows) == KEPT:
            self._thin(now_s)
        number, self._count = self._count, self._count + 1
        x, oldest = _doublings(situation.expected_s), _doublings(situation.oldest_s)
        times = (np.nan, np.nan)
        if isinstance(band, Band):
            times = (now_s + band.p10_s, now_s + band.p90_s)
        row = (x, oldest, 0, 0, now_s, *situation[2:], 1, number, *times)
        self._rows = np.vstack((self._rows, row))
        return number

    def _thin(self, now_s: float) -> None:
        """Drop the oldest quarter of the situations, or every second one if too many still wait.

        Which ones are dropped does not depend on a pod's wait, or the waits would be biased."""
        part = KEPT // 4
        open_part = (self._rows[:part, _VALID] > self._rows[:part, _KNOWN]).mean()
        if open_part > 1 - LEVELS[-1]:  # long waits would be forgotten before they are known
            self._rows = self._rows[1::2]
            self.every_s = max((now_s - self._rows[0, _AT]) / len(self._rows), NOTED_EVERY_S)
        else:
            self._rows = self._rows[part:]
            self.every_s = max(self.every_s / 2, NOTED_EVERY_S)

    def started(self, number: int, now_s: float) -> None:
        """Record that the pod of situation `number` started, and judge its forecast."""
        self._judge_overdue(now_s)
        rows, mine = self._rows, self._rows[:, _NUMBER] == number
        rows[mine, _KNOWN], rows[mine, _Y] = 1, _doublings(now_s - rows[mine, _AT])
        early_s = rows[mine & (rows[:, _LATEST] > 0), _EARLIEST] - now_s
        self._judged.extend((early_s <= ROUNDED_S).tolist())

    def left(self, number: int, now_s: float) -> None:
        """Forget the situation of a pod that ended before it started."""
        self._judge_overdue(now_s)
        self._rows[self._rows[:, _NUMBER] == number, _VALID] = 0

    def judged(self, now_s: float) -> list[bool]:
        """Return for each of the newest forecasts if it was right. An overdue one is wrong."""
        return [*self._judged, *[False] * int(self._overdue(now_s).sum())][-JUDGED:]

    def _judge_overdue(self, now_s: float) -> None:
        overdue = self._overdue(now_s)
        self._judged.extend([False] * int(overdue.sum()))
        self._rows[overdue, _LATEST] = np.nan  # judged

    def _overdue(self, now_s: float) -> np.ndarray:
        rows = self._rows
        return (rows[:, _VALID] > rows[:, _KNOWN]) & (rows[:, _LATEST] + ROUNDED_S < now_s)

    def band(
        self, situation: Situation, now_s: float, elapsed_s: float = 0.0
    ) -> Band | StartUnknown:
        """Return when a pod in this situation starts, or why that is unknown.

        `elapsed_s` is the time since its first refusal. The pod's situation at that refusal is
        compared with past ones. Of these, only waits of more than `elapsed_s` count."""
        rows = self._rows[self._rows[:, _VALID] > 0]
        known = rows[:, _KNOWN] > 0
        if known.sum() < STARTS_LEAST:
            return "little-history"
        x = _doublings(situation.expected_s + elapsed_s)
        oldest = _doublings(situation.oldest_s - elapsed_s)
        unlike = ((rows[:, _X] - x) ** 2 + (rows[:, _OLDEST] - oldest) ** 2) / SCALE**2
        for column, value in ((_QUEUE, situation.queue), (_KIND, situation.kind),
                              (_SIZE, situation.size)):  # fmt: skip
            unlike = unlike + (rows[:, column] != value)
        alike = np.exp(-unlike)
        if alike[known].sum() < SIMILAR_LEAST:
            return "little-history"
        waits = np.where(known, rows[:, _Y], _doublings(now_s - rows[:, _AT]))
        waits = np.maximum(waits + SHRUNK * (x - rows[:, _X]), _doublings(0.0))
        longer = (waits >= _doublings(elapsed_s)) & (alike > ALIKE_LEAST)
        similar = float(alike[known & longer].sum())
        if similar < SIMILAR_LEAST:
            return "few-started"
        weight = alike * 0.5 ** (np.arange(len(rows))[::-1] / HALF)
        found = _quantiles(waits[longer], known[longer], weight[longer])
        if np.isnan(found).any():
            return "few-started"
        seconds = np.maximum(2.0**found - MINUTE_S - elapsed_s, 0.0)
        earliest, median, latest = map(float, seconds)
        return Band(earliest, median, latest, similar)


def _doublings(seconds: float | np.ndarray) -> Any:
    return np.log2(np.maximum(seconds, 0.0) + MINUTE_S)


def _quantiles(values: np.ndarray, known: np.ndarray, weight: np.ndarray) -> Any:
    """Return the quantiles of `LEVELS`. A value that is not `known` is only a lower bound.

    A quantile is NaN if too few values are known to give it an upper bound."""
    order = np.lexsort((~known, values))
    values, known, weight = values[order], known[order], weight[order]
    left = weight[::-1].cumsum()[::-1]
    survive = np.cumprod(np.where(known, 1.0 - weight / left, 1.0))
    reached = (1.0 - survive)[known]
    middle = (np.concatenate(([0.0], reached[:-1])) + reached) / 2
    return np.where(reached[-1] >= LEVELS, np.interp(LEVELS, middle, values[known]), np.nan)
