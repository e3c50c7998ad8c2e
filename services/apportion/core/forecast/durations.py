"""Record how long pods ran, by keys from specific to general, and estimate when running pods end.

Invariant: memory is bounded, whatever keys the events have."""

import re
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import numpy as np

from apportion.core.bounded import remember
from apportion_schemas import PodSubmitted

KEPT: Final = 100  # the newest runs of each key
LEAST: Final = 10  # a key with fewer runs gives way to the next wider key
LONGER_LEAST: Final = 3  # runs that lasted longer than a pod has run, to draw conclusions from them
KEYS_MAX: Final = 5_000
OVERDUE_S: Final = 900.0  # how long a pod may take to end after its deadline
# Seconds from now: 0, then 1 minute, and then each twice as far, up to some 3 months.
GRID: Final = np.concatenate(([0.0], 60.0 * 2.0 ** np.arange(18)))
SIZES: Final = (1.0, 8.0)  # devices: upper limits of the classes of size
Keys = Sequence[Hashable]  # from special to general; the last is the same for all runs
# Numbers, and the random suffixes that Kubernetes appends (apimachinery, util/rand).
_SUFFIXES: Final = re.compile(r"(-(\d+|[bcdf-hj-np-tv-xz2456789]{5,10}))+$")


def keys_of(pod: PodSubmitted, queue: str, devices: float) -> Keys:
    """Return a pod's keys, from specific to general: owner and size, namespace, size class, all.

    An owner's name counts without the numbers and the hash at its end: `train-7` is like `train-8`,
    but `llama-7b` is not like `llama-70b`."""
    owner = _SUFFIXES.sub("", pod.owner or pod.name)
    return (
        ("owner", pod.namespace, queue, owner, devices),
        ("namespace", pod.namespace, queue),
        ("size", size_of(devices)),
        ("all",),
    )


def size_of(devices: float) -> int:
    """Return the size class, 0 to 2, of a job that requests this many devices."""
    return sum(devices > limit for limit in SIZES)


class Durations:
    """For each key, the durations in seconds of the pods that ended last."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, deque[float]] = {}
        self._sorted: dict[Hashable, np.ndarray] = {}

    def add(self, keys: Keys, ran_s: float) -> None:
        """Record under each key how long an ended pod ran."""
        for key in keys:
            runs = self._runs.get(key) or deque(maxlen=KEPT)
            runs.append(ran_s)
            remember(self._runs, key, runs, most=KEYS_MAX)
            self._sorted.pop(key, None)

    def key(self, keys: Keys) -> Hashable:
        """Return the most specific key with enough durations, or else the most general one."""
        return next((key for key in keys if len(self._runs.get(key, ())) >= LEAST), keys[-1])

    def like(self, key: Hashable) -> np.ndarray:
        """Return the durations of a key in ascending order."""
        if len(self._sorted) > len(self._runs):
            self._sorted.clear()  # of keys that are forgotten
        found = self._sorted.get(key)
        if found is None:
            found = self._sorted[key] = np.sort(np.array(self._runs.get(key, ()), float))
        return found

    def released(self, running: Iterable[tuple[Keys, float, float, float]]) -> np.ndarray:
        """Return how many devices running pods are expected to release by each time of `GRID`.

        `running` has the keys, the seconds so far, the devices, and the longest duration in seconds
        of each pod. A pod is expected to last as long as the pods of its key that ran longer than
        it so far. If there are too few of these, it has an even chance of running for twice its
        time so far. It has ended at the first time of `GRID` after its longest duration. This does
        not count if it was over `OVERDUE_S` ago: then nothing seems to end the pod."""
        groups: dict[Hashable, list[tuple[float, float, float]]] = {}
        for keys, ran_s, devices, most_s in running:
            groups.setdefault(self.key(keys), []).append((ran_s, devices, most_s))
        total = np.zeros(len(GRID))
        for key, pods in groups.items():
            runs, (ran, devices, most) = self.like(key), np.array(pods).T
            later = ran[:, None] + GRID
            longer = len(runs) - np.searchsorted(runs, ran, "right")
            still = len(runs) - np.searchsorted(runs, later, "right")
            plain = (ran + GRID[1])[:, None] / (later + GRID[1])
            known = still / np.maximum(longer, 1)[:, None]
            lasts = np.where((longer >= LONGER_LEAST)[:, None], known, plain)
            most[ran > most + OVERDUE_S] = np.inf
            ended = later >= np.maximum(most, ran + GRID[1])[:, None]
            total += devices @ (1.0 - np.where(ended, 0.0, lasts))
        return np.maximum.accumulate(total)
