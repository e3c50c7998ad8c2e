"""Measure a simulation: devices in use and pending pods, integrated over time.

Invariant: the figures depend only on the observed events, so equal simulations have equal figures.
A node or pod is evaluated only when an event concerns it."""

from array import array
from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
from msgspec import Struct

from apportion.core.answers.replays import Measured, Slice
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.pricing.sizes import NEVER, size_percent
from apportion_schemas import Device, PodEvicted
from apportion_schemas.quantities import WHOLE

SLICES: Final = 60
HOUR_S: Final = 3600.0


class _Held(Struct):
    """How many devices a node has and how many are in use, with their used and unused fractions."""

    devices: int = 0
    touched: int = 0
    used: float = 0.0
    left: float = 0.0


class Meter:
    """Measures a simulation between two times. It must observe every change of `state`.

    The waiting time of a pod begins at its submission, also if that is before `begin_s`. To count
    the devices that a pod requests, the meter ignores the nodes in `more`, so that replays with and
    without these nodes can be compared."""

    def __init__(
        self, state: State, begin_s: float, end_s: float, *, more: Collection[str] = ()
    ) -> None:
        self._state = state
        self._more = more
        self._begin_s = begin_s
        self._elapsed_s = 0.0  # from begin_s, because seconds since 1970 are too coarse as floats
        self._end_s = max(end_s, begin_s)
        self._nodes: dict[str, _Held] = {}
        self._sum = _Held()
        self._totals = np.zeros((SLICES, 4))
        self._waiting: dict[str, tuple[float, float]] = {}
        self._wanted = 0.0
        self._sizes: dict[bytes, float] = {}
        self._kinds: list[Device] | None = None
        self._waits = array("d")
        self._seen: set[str] = set()
        self._placed: set[str] = set()
        self.evicted = 0
        self.peak = 0
        for node in state.nodes.values():
            self._look(node)
        for pod in state.pods.values():
            self._note(pod)
            if (entry := self._waiting.get(pod.uid)) is not None:
                self._waiting[pod.uid] = (offset_s(pod.submitted_time, begin_s), entry[1])

    def advance(self, now_s: float) -> None:
        """Add up the figures until `now_s`, in seconds since 1970."""
        target = min(now_s, self._end_s) - self._begin_s
        width, last = (self._end_s - self._begin_s) / SLICES, SLICES - 1
        amounts = np.array((self._sum.used, self._wanted, self._sum.devices, self._sum.left))
        while (elapsed := self._elapsed_s) < target:
            at = min(int(elapsed / width), last)
            if (at + 1) * width <= elapsed:  # on the edge, within rounding
                at = min(at + 1, last)
            until = target if at == last else min(target, (at + 1) * width)
            self._totals[at] += amounts * (until - elapsed)
            self._elapsed_s = until

    def observe(self, change: Change) -> None:
        """Update the figures after a change of the state."""
        if change.node is not None:
            self._look(change.node)
            self.peak = max(self.peak, self._sum.touched)
        if change.pod is not None:
            self._note(change.pod)
        self.evicted += isinstance(change.data, PodEvicted)

    def measured(self) -> Measured:
        """Return the figures for the whole time span."""
        self.advance(self._end_s)
        unplaced = [self._elapsed_s - since for since, _ in self._waiting.values()]
        waits = np.array([*self._waits, *unplaced])
        seconds = max(self._end_s - self._begin_s, 1e-9)
        used, wanted, devices, left = self._totals.sum(axis=0).tolist()
        share = 100 / devices if devices else 0.0
        width = seconds / SLICES
        return Measured(
            arrived=len(self._seen),
            placed=len(self._placed),
            unplaced=len(self._waiting),
            evicted=self.evicted,
            gpu_hours=rounded(devices / HOUR_S),
            gpu_hours_used=rounded(used / HOUR_S),
            gpu_hours_waited=rounded(wanted / HOUR_S),
            wait_mean_s=rounded(float(waits.mean()) if len(waits) else 0.0),
            wait_median_s=quantile(waits, 0.5),
            wait_p95_s=quantile(waits, 0.95),
            wait_max_s=quantile(waits, 1.0),
            used_percent=rounded(used * share),
            fragmented_percent=rounded(left * share),
            devices=self._sum.devices,
            devices_peak=self.peak,
            slices=tuple(
                Slice(
                    seconds=rounded(width * at), used=rounded(row[0] / width),
                    waiting=rounded(row[1] / width), devices=rounded(row[2] / width),
                )
                for at, row in enumerate(self._totals.tolist())
            ),
        )  # fmt: skip

    def _look(self, node: NodeState) -> None:
        before = self._nodes.get(node.name) or _Held()
        now = _held(node.devices) if node.present else _Held()
        self._nodes[node.name] = now
        self._sum = _Held(
            *(
                getattr(self._sum, name) + getattr(now, name) - getattr(before, name)
                for name in _Held.__struct_fields__
            )
        )
        if before.devices != now.devices:
            self._kinds = None
        self.peak = max(self.peak, self._sum.touched)

    def _note(self, pod: PodState) -> None:
        uid, live = pod.uid, self._state.pods.get(pod.uid) is pod
        waits = live and pod.placement is None and not pod.submitted.gates
        entry = self._waiting.get(uid)
        if waits and entry is None:
            wanted = self.requested(pod)
            self._waiting[uid] = (self._elapsed_s, wanted)
            self._wanted += wanted
            self._seen.add(uid)
        elif not waits and entry is not None:
            del self._waiting[uid]
            self._wanted = self._wanted - entry[1] if self._waiting else 0.0
            self._waits.append(self._elapsed_s - entry[0])
            if live and pod.placement is not None:
                self._placed.add(uid)

    def requested(self, pod: PodState) -> float:
        """Return how many devices the pod requests, counting part of a device as a fraction.

        If the fraction depends on the type of device, the smallest one counts."""
        if self._kinds is None:
            found: dict[tuple[object, ...], Device] = {}
            for node in self._state.nodes.values():
                counts = node.present and node.name not in self._more
                for each in node.devices if counts else ():
                    device = each.device
                    kind = (
                        device.family,
                        device.model,
                        device.mode,
                        device.memory_mib,
                        device.cores,
                    )
                    found.setdefault(kind, device)
            self._kinds = list(found.values())
            self._sizes.clear()
        key = pod.shape_key
        if key not in self._sizes:
            total = 0.0
            for ask in pod.submitted.shape.asks:
                sizes = [size for each in self._kinds if (size := size_percent(ask, each)) != NEVER]
                total += ask.count * min(sizes, default=WHOLE) / WHOLE
            self._sizes[key] = total
        return self._sizes[key]


def _held(devices: Iterable[DeviceState]) -> _Held:
    found = _Held()
    for each in devices:
        if not each.present:
            continue
        found.devices += 1
        if each.idle:
            continue
        device = each.device
        memory = 1 - each.memory_free_mib / device.memory_mib if device.memory_mib else 1.0
        cores = 1 - each.cores_free / device.cores if device.cores else 0.0
        used = min(max(memory, cores, 0.0), 1.0)
        found.touched += 1
        found.used += used
        found.left += 1 - used
    return found


def offset_s(time: str, begin_s: float) -> float:
    """Return an event's time in seconds relative to `begin_s`; 0 if it is later or unreadable."""
    micros = micros_of(time)
    return 0.0 if micros is None else min(micros / SECOND - begin_s, 0.0)


def quantile(waits: np.ndarray, part: float) -> float:
    """Return the rounded quantile, such as the median for 0.5; 0 without any waits."""
    return rounded(float(np.quantile(waits, part))) if len(waits) else 0.0


def rounded(value: float) -> float:
    """Round a figure to six decimals, and -0.0 to 0.0."""
    return round(value, 6) + 0.0
