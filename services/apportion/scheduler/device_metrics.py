"""Metrics of allocated devices, under our own, HAMi's or Volcano's names.

They are off by default: a large fleet has hundreds of thousands of series, and a scrape blocks the
scheduler's decisions. Sources: HAMi's `cmd/scheduler/metrics.go`, with cores in percent, and its
names up to 2.8 (later `--legacy-metrics`); Volcano's `vgpu/metrics.go`, with memory in MiB.
Volcano's series have no namespace, so pods of one name share a series. Invariant: a scrape shows
the state at one revision."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final, Literal, NamedTuple

from apportion.core.ledger.state import NodeState, PodState, State
from apportion.runtime.process.metrics import Family, Metrics, Sample
from apportion_schemas import Device

_MIB: Final = 1 << 20
_PERCENT: Final = 100
NAMES: Final = ("apportion", "hami", "hami-legacy", "volcano")
Names = Literal["apportion", "hami", "hami-legacy", "volcano"]


def _gauges(prefix: str, source: str, labels: str, **meanings: str) -> tuple[Family, ...]:
    """Build a gauge for each name in `meanings`, with the labels in the text `labels`."""
    said = f" (as named by {source}'s scheduler)." if source else "."
    return tuple(
        Family(f"{prefix}{name}", meaning + said, tuple(labels.split()))
        for name, meaning in meanings.items()
    )


_OURS = _gauges(
    "apportion_device_", "", "node device",
    memory_bytes="Memory that the device offers",
    memory_allocated_bytes="Allocated memory of the device",
    cores_allocated_ratio="Allocated fraction of the device's compute, from 0 to 1",
    shares="Containers that share the device",
)  # fmt: skip


def _ours(state: State) -> Iterator[Sample]:
    for node, of, used_mib, cores, shares in _devices(state):
        values = (of.memory_mib * _MIB, used_mib * _MIB, cores / _PERCENT, shares)
        yield from _each(_OURS, (node.name, of.id), values)


_VOLCANO = _gauges(
    "volcano_vgpu_device_", "Volcano", "devID NodeName",
    memory_limit="Memory of the device in MiB",
    allocated_memory="Allocated memory in MiB",
    allocated_cores="Allocated compute in percent",
    shared_number="Containers that share the device",
)  # fmt: skip
_VOLCANO_PODS = _gauges(
    "volcano_vgpu_device_", "Volcano", "devID NodeName podName",
    memory_allocation_for_a_certain_pod="Memory allocated to the pod in MiB",
    core_allocation_for_a_certain_pod="Compute allocated to the pod in percent",
)  # fmt: skip


def _volcano(state: State) -> Iterator[Sample]:
    for node, of, *used in _devices(state):
        yield from _each(_VOLCANO, (of.id, node.name), (of.memory_mib, *used))
    for node in state.nodes.values():
        held: dict[tuple[str, str, str], tuple[int, int]] = {}
        for pod, _, device_id, memory_mib, cores in _shares(node.pods.values()):
            key = (device_id, node.name, pod.submitted.name)
            before = held.get(key, (0, 0))
            held[key] = (before[0] + memory_mib, before[1] + cores)
        for key, amounts in held.items():
            yield from _each(_VOLCANO_PODS, key, amounts)


class _Hami(NamedTuple):
    """The metrics of HAMi's scheduler in one of its two sets of names."""

    of_card: tuple[Family, ...]
    of_allocated: tuple[Family, ...]
    overview: tuple[Family, ...]
    part: tuple[Family, ...]
    of_pod: tuple[Family, ...]
    until_2_7: tuple[Family, ...] = ()

    @property
    def every(self) -> tuple[Family, ...]:
        """Return all metrics of the set."""
        return tuple(chain.from_iterable(self))


_MEMORY, _CORES = "Memory of the device in bytes", "Compute that the device offers in percent"
_SHARED, _USED_CORES = "Containers that share the device", "Allocated compute in percent"
_USED, _PART = "Allocated memory in bytes", "Allocated part of the device's memory, from 0 to 1"
_POD_MEMORY = "Memory allocated to the container in bytes"
_POD_PART = "Part of the device's memory that is allocated to the container, from 0 to 1"
_POD_CORES = "Compute allocated to the container in percent"
_CARD = "node device_uuid device_index device_type"
_POD = "namespace node pod container_index device_uuid"
_HAMI = _Hami(
    _gauges("hami_gpu_", "HAMi", _CARD, memory_limit_bytes=_MEMORY, core_limit_ratio=_CORES,
            shared_count=_SHARED, core_allocated_ratio=_USED_CORES),
    _gauges("hami_gpu_", "HAMi", f"{_CARD} device_cores", memory_allocated_bytes=_USED),
    _gauges("hami_", "HAMi", f"{_CARD} device_cores device_memory_limit", node_gpu_overview=_USED),
    _gauges("hami_", "HAMi", _CARD, node_gpu_memory_allocated_ratio=_PART),
    _gauges("hami_vgpu_", "HAMi", _POD, memory_allocated_bytes=_POD_MEMORY,
            core_allocated_ratio=_POD_CORES),
)  # fmt: skip
_OLD_CARD = "nodeid deviceuuid deviceidx devicetype"
_OLD_POD = "podnamespace nodename podname containeridx deviceuuid"
_HAMI_LEGACY = _Hami(
    _gauges("GPUDevice", "HAMi", _OLD_CARD, MemoryLimit=_MEMORY, CoreLimit=_CORES,
            SharedNum=_SHARED, CoreAllocated=_USED_CORES),
    _gauges("GPUDevice", "HAMi", f"{_OLD_CARD} devicecores", MemoryAllocated=_USED),
    _gauges("node", "HAMi", f"{_OLD_CARD} devicecores devicememorylimit", GPUOverview=_USED),
    _gauges("node", "HAMi", _OLD_CARD, GPUMemoryPercentage=_PART),
    _gauges("vGPU", "HAMi", _OLD_POD, MemoryAllocated=_POD_MEMORY, CoreAllocated=_POD_CORES),
    _gauges("vGPU", "HAMi", _OLD_POD, MemoryPercentage=_POD_PART, CorePercentage=_POD_CORES)
    + _gauges("vGPUPods", "HAMi", f"{_OLD_POD} deviceusedcore", DeviceAllocated=_POD_MEMORY),
)  # fmt: skip


def _hami(names: _Hami, state: State) -> Iterator[Sample]:
    for node, of, used_mib, cores, shares in _devices(state):
        labels = (node.name, of.id, str(of.index), of.model)
        used = used_mib * _MIB
        values = (of.memory_mib * _MIB, of.cores, shares, cores)
        said = str(cores if names is _HAMI_LEGACY else of.cores)  # HAMi has changed the label
        yield from _each(names.of_card, labels, values)
        yield from _each(names.of_allocated, (*labels, said), (used,))
        yield from _each(names.overview, (*labels, said, str(of.memory_mib)), (used,))
        yield from _each(names.part, labels, (used_mib / (of.memory_mib or 1),))
    for node in state.nodes.values():
        for pod, container, device_id, memory_mib, cores in _shares(node.pods.values()):
            named = pod.submitted.namespace, node.name, pod.submitted.name
            # The container's position among those that request devices.
            listed = list(dict.fromkeys(ask.container for ask in pod.submitted.shape.asks))
            position = listed.index(container) if container in listed else 0
            where = (*named, str(position), device_id)
            yield from _each(names.of_pod, where, (memory_mib * _MIB, cores))
            if names.until_2_7:
                part = memory_mib / (node.by_id[device_id].device.memory_mib or 1)
                yield from _each(names.until_2_7[:2], where, (part, cores))
                last = (*where, str(cores))
                yield from _each(names.until_2_7[2:], last, (memory_mib * _MIB,))


_Row = tuple[tuple[Family, ...], Callable[[State], Iterator[Sample]]]
_TABLE: Final[dict[str, _Row]] = {
    "apportion": (_OURS, _ours),
    "hami": (_HAMI.every, partial(_hami, _HAMI)),
    "hami-legacy": (_HAMI_LEGACY.every, partial(_hami, _HAMI_LEGACY)),
    "volcano": ((*_VOLCANO, *_VOLCANO_PODS), _volcano),
}


def expose(metrics: Metrics, state: State, names: tuple[Names, ...]) -> None:
    """Register the metrics of allocated devices under the names of the systems in `names`."""

    def found() -> Iterator[Sample]:
        for each in names:
            yield from _TABLE[each][1](state)

    if names:
        metrics.looked_up([family for each in names for family in _TABLE[each][0]], found)


def _devices(state: State) -> Iterator[tuple[NodeState, Device, int, int, int]]:
    """Yield each node and device, with its allocated memory in MiB, percent of cores and shares."""
    for node in state.nodes.values():
        for held in node.devices:
            if held.present:
                of, used_mib = held.device, held.device.memory_mib - held.memory_free_mib
                yield node, of, used_mib, of.cores - held.cores_free, of.slots - held.slots_free


def _shares(pods: Iterable[PodState]) -> Iterator[tuple[PodState, str, str, int, int]]:
    """Yield each pod, container and device, with allocated memory in MiB and percent of cores."""
    for pod in pods:
        if pod.placement is None:
            continue
        held: dict[tuple[str, str], tuple[int, int]] = {}
        for share in pod.placement.shares:
            key = (share.container, share.device)
            memory, cores = held.get(key, (0, 0))
            held[key] = (memory + share.memory_mib, cores + share.cores)
        for (container, device), (memory, cores) in held.items():
            yield pod, container, device, memory, cores


def _each(
    families: tuple[Family, ...], labels: tuple[str, ...], values: tuple[float, ...]
) -> Iterator[Sample]:
    return ((family, labels, value) for family, value in zip(families, values, strict=True))
