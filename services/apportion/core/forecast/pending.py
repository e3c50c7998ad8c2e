"""Pods and jobs as forecasts see them, and the pending jobs by the devices that they accept.

Invariant: a job is counted once, by what it needed when it was added."""

import math
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from apportion.core.devices.catalogue import type_matches
from apportion.core.forecast.durations import Keys, size_of


class Kind(NamedTuple):
    """Which devices a pod accepts: of this family, and of one of these types, if there are any."""

    family: str
    types: tuple[str, ...]


class Pod(Struct):
    """A pod that requests devices."""

    job: str  # its gang, or else itself
    queue: str
    kind: Kind
    devices: float
    priority: int
    keys: Keys
    came_s: float  # when it was submitted, or lost its last scheduling gate
    gated: bool
    elsewhere: bool  # another scheduler chooses its node
    models: dict[str, float] = {}  # its devices by model, while it is placed
    since_s: float = 0.0  # of its placement
    most_s: float = math.inf  # how long it runs at most
    evicted: bool = False


class Job(Struct):
    """The pending pods of one gang, or one pending pod.

    A job is `blocked` if more free devices would not start it."""

    name: str
    queue: str
    kind: Kind
    priority: int
    since_s: float
    devices: float = 0.0
    pods: dict[str, None] = {}  # by uid
    number: int = -1  # of its situation, if this is noted
    refused_s: float | None = None  # when a refusal for lack of devices first made it wait
    blocked: bool = False

    @property
    def alike(self) -> tuple[str, int, float]:
        """Return what decides the order of jobs of a kind: queue, priority and devices."""
        return self.queue, self.priority, self.devices


class Pending:
    """The pending jobs that are not blocked. To change a job, remove it first, and add it again."""

    def __init__(self) -> None:
        # Since when each job waits, by kind and class of size, by what decides the order, by name.
        self._jobs: dict[tuple[Kind, int], dict[tuple[str, int, float], dict[str, float]]] = {}

    def add(self, job: Job) -> None:
        """Add a job, unless it has no pods or is blocked."""
        if job.pods and not job.blocked:
            jobs = self._jobs.setdefault((job.kind, size_of(job.devices)), {})
            jobs.setdefault(job.alike, {})[job.name] = job.since_s

    def remove(self, job: Job) -> None:
        """Remove a job; do nothing if it is not there."""
        key = job.kind, size_of(job.devices)
        jobs = self._jobs.get(key, {})
        alike = jobs.get(job.alike, {})
        if alike.pop(job.name, None) is not None and not alike:
            del jobs[job.alike]
            if not jobs:
                del self._jobs[key]

    def before(self, job: Job) -> dict[str, float]:
        """Return, by queue, how many devices are requested by jobs that come before `job`."""
        found: dict[str, float] = {}
        for (kind, _), jobs in self._jobs.items():
            if overlap(kind, job.kind):
                for (queue, priority, devices), alike in jobs.items():
                    if priority > job.priority or (
                        priority == job.priority and devices <= job.devices
                    ):
                        others = len(alike) - (job.name in alike)
                        found[queue] = found.get(queue, 0.0) + others * devices
        return found

    def oldest_s(self, job: Job) -> float | None:
        """Return when the oldest other job of this kind and size class began to wait, or None."""
        size = size_of(job.devices)
        since = (
            since_s
            for (kind, other_size), jobs in self._jobs.items()
            if other_size == size and overlap(kind, job.kind)
            for alike in jobs.values()
            for name, since_s in alike.items()
            if name != job.name
        )
        return min(since, default=None)


@lru_cache(maxsize=10_000)
def accepts(kind: Kind, model: str) -> bool:
    """Return True if a pod of this kind accepts devices of a model of its family."""
    return not kind.types or not model or any(type_matches(each, model) for each in kind.types)


@lru_cache(maxsize=10_000)
def overlap(one: Kind, other: Kind) -> bool:
    """Return True if there may be devices that pods of both kinds accept."""
    if one.family != other.family or not one.types or not other.types:
        return one.family == other.family
    return any(type_matches(a, b) or type_matches(b, a) for a in one.types for b in other.types)
