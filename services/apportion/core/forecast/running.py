"""Tracks running pods, the devices in use by queue, and when these devices will be released.

Invariant: the runtime of an evicted pod is not learned as a duration."""

import operator
from itertools import chain, islice
from typing import Final

import numpy as np

from apportion.core.bounded import remember
from apportion.core.forecast.durations import Durations
from apportion.core.forecast.pending import Kind, Pod, accepts
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.feasibility.nodes import FACT_FILTERS
from apportion_schemas import (
    Ask,
    DevicesRegistered,
    NodeReported,
    PodBound,
    PodChanged,
    PodEvicted,
    PodGone,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    SharesAllocated,
    UsageRecorded,
)
from apportion_schemas.quantities import WHOLE, Payload

MAX: Final = 500  # running pods that a forecast looks at; each represents several beyond
LEAST_DEVICES: Final = 0.001
SHAPES_MAX: Final = 10_000
# Frequent events that close no node to a pod, and open none.
_OF_PODS: Final = frozenset((
    PodSubmitted, PodChanged, PodPlaced, PodRefused, PodEvicted, PodBound, SharesAllocated,
    UsageRecorded, PodGone,
))  # fmt: skip


class Running:
    """The pods that run, and past durations."""

    def __init__(self, durations: Durations) -> None:
        """Begin without pods. `durations` learns how long pods run."""
        self._durations = durations
        # By uid, and by the family and the models of their devices.
        self._pods: dict[tuple[str, ...], dict[str, Pod]] = {}
        self._used: dict[tuple[str, str, str], float] = {}  # devices by queue, family and model

    def start(self, uid: str, pod: Pod, models: list[str], at_s: float) -> None:
        """Note that a pod is placed on devices of these models."""
        each = pod.devices / len(models)
        pod.models = {model: each * models.count(model) for model in models}
        pod.since_s, pod.evicted = at_s, False
        self._pods.setdefault((pod.kind.family, *pod.models), {})[uid] = pod
        self._use(pod, 1)

    def stop(self, uid: str, pod: Pod, at_s: float, *, learns: bool) -> None:
        """Record the end of a pod, if it runs; with `learns`, record its duration as well."""
        if not pod.models:
            return
        self._use(pod, -1)
        where = (pod.kind.family, *pod.models)
        del self._pods[where][uid]
        if not self._pods[where]:
            del self._pods[where]
        pod.models = {}
        if learns and not pod.evicted:
            self._durations.add(pod.keys, at_s - pod.since_s)

    def _use(self, pod: Pod, times: int) -> None:
        for model, devices in pod.models.items():
            key = (pod.queue, pod.kind.family, model)
            used = self._used.pop(key, 0.0) + times * devices
            if used > LEAST_DEVICES / 2:
                self._used[key] = used

    def used(self, kind: Kind) -> dict[str, float]:
        """Return how many devices that a kind accepts are in use, by queue."""
        found: dict[str, float] = {}
        for (queue, family, model), devices in self._used.items():
            if family == kind.family and accepts(kind, model):
                found[queue] = found.get(queue, 0.0) + devices
        return found

    def fitting(self, kind: Kind) -> frozenset[tuple[str, str]]:
        """Return family and model of each device in use that pods of this kind accept."""
        return frozenset(
            (family, model)
            for family, *models in self._pods
            if family == kind.family
            for model in models
            if accepts(kind, model)
        )

    def released(self, fitting: frozenset[tuple[str, str]], now_s: float) -> np.ndarray:
        """Return how many devices of the models `fitting` are released by each time of `GRID`."""
        found = [
            pods.values()
            for (family, *models), pods in self._pods.items()
            if any((family, model) in fitting for model in models)
        ]
        step = sum(map(len, found)) // MAX + 1
        return step * self._durations.released(
            (
                pod.keys,
                max(now_s - pod.since_s, 0.0),
                sum(n for model, n in pod.models.items() if (pod.kind.family, model) in fitting),
                pod.most_s,
            )
            for pod in islice(chain.from_iterable(found), 0, None, step)
        )


class Fleet:
    """The nodes of a state. Pass each event to `observe`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._size_of: dict[str, int] = {}  # MiB of a device, by family; 0 if none is found
        self._open: dict[bytes, bool] = {}  # by shapes of pods, until an event may change it

    def observe(self, data: Payload) -> None:
        """Drop the cached facts about nodes that this event may change."""
        if type(data) not in _OF_PODS:
            self._open.clear()
        if isinstance(data, NodeReported | DevicesRegistered):
            self._size_of = {family: size for family, size in self._size_of.items() if size}

    def part(self, ask: Ask) -> float:
        """Return the fraction of a device that the ask requests, from 0 to 1.

        An amount of memory is compared with the first device of the family that is found."""
        if ask.memory_percent is not None:
            return max(float(ask.memory_percent), ask.cores) / WHOLE
        if ask.memory_mib is None:
            return 1.0
        size = self._size_of.get(ask.family)
        if size is None:
            devices = (each.device for node in self._state.nodes.values() for each in node.devices)
            found = (each.memory_mib for each in devices if each.family == ask.family)
            size = self._size_of[ask.family] = next(found, 0)
        if not size:
            return 1.0
        return min(max(ask.memory_mib / size, ask.cores / WHOLE, LEAST_DEVICES), 1.0)

    def accepts(self, pod: PodState) -> bool:
        """Return True if some node is open to pods of this shape, or there are no nodes."""
        found = self._open.get(pod.shape_key)
        if found is None:
            shape, nodes = pod.submitted.shape, self._state.nodes.values()
            opened = (
                all(operator.le(*check(shape, node)) for _, check in FACT_FILTERS) for node in nodes
            )
            found = not nodes or any(opened)
            remember(self._open, pod.shape_key, found, most=SHAPES_MAX)
        return found
