"""What containers use of their shares: told to whoever scrapes, and to nobody else.

HAMi-core writes what each process of a container holds into the container's region; the ledger says
whose region it is. Numbers come and go with containers and are no facts, so none of them is an
event. Invariant: a series is of a container that is on this node now, so there are no more of them
than it has shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from apportion.agent.hands.regions import Regions
from apportion.agent.view import NodeView
from apportion.core.grants.region import Region
from apportion.runtime.process.metrics import Family, Metrics, Sample

_PERCENT = 100


class Use(NamedTuple):
    """Of one device by one container: bytes, and parts of its compute, each with its limit."""

    namespace: str
    pod: str
    container: str
    position: int
    device: str
    memory_limit: int
    memory_used: int
    cores_limit: float
    cores_used: float


def _ours(name: str, meaning: str) -> Family:
    labels = ("namespace", "pod", "container", "device")
    return Family(f"apportion_container_{name}", meaning, labels)


def _hamis(name: str, meaning: str) -> Family:
    labels = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
    return Family(f"hami_{name}", f"As HAMi's monitor tells it: {meaning}.", labels)


OURS = {
    _ours("memory_limit_bytes", "Device memory that the container may hold."): "memory_limit",
    _ours("memory_used_bytes", "Device memory that its processes hold."): "memory_used",
    _ours("cores_limit_ratio", "Part of a device's compute that it is held to."): "cores_limit",
    _ours("cores_used_ratio", "Part of a device's compute that it uses."): "cores_used",
}
HAMIS = {
    _hamis("vgpu_memory_limit_bytes", "memory of the share"): "memory_limit",
    _hamis("vgpu_memory_used_bytes", "memory in use"): "memory_used",
    _hamis("container_device_memory_bytes", "memory in use"): "memory_used",
    _hamis("container_device_utilization_ratio", "compute in use"): "cores_used",
}
"""Series of HAMi's vGPUmonitor (`cmd/vGPUmonitor/metrics.go`) that a region can tell."""


class Usage:
    """The use of one node's containers, read anew for every scrape."""

    def __init__(self, regions: Regions, view: NodeView, *, hami: bool = False) -> None:
        """`hami`: it is told under the names of HAMi's monitor as well."""
        self._regions = regions
        self._view = view
        self._hami = hami

    def expose(self, metrics: Metrics) -> None:
        """Tell it to whoever scrapes this process."""
        metrics.looked_up([*OURS, *(HAMIS if self._hami else ())], self.samples)

    def samples(self) -> Iterator[Sample]:
        """One look at all regions, for all series."""
        for use in self.uses():
            named = (use.namespace, use.pod, use.container)
            for family, field in OURS.items():
                yield family, (*named, use.device), getattr(use, field)
            for family, field in HAMIS.items() if self._hami else ():
                yield family, (*named, str(use.position), use.device), getattr(use, field)

    def uses(self) -> Iterator[Use]:
        """Of every container whose pod the ledger knows."""
        for pod, container, region in self._regions.read():
            claim = self._view.held.get(pod)
            if claim is not None:
                placed = claim.placed
                yield from _uses((placed.namespace, placed.name, container), region)


def _uses(name: tuple[str, str, str], region: Region) -> Iterator[Use]:
    devices, memory, cores = region.devices, region.memory, region.cores
    processes = list(region.processes())
    for at, device in enumerate(devices):
        yield Use(
            *name,
            at,
            device,
            memory[at],
            sum(process.memory[at] for process in processes),
            cores[at] / _PERCENT,
            sum(process.cores[at] for process in processes) / _PERCENT,
        )
