"""Metrics of allocated devices, under our own, HAMi's or Volcano's names.

They are off by default: a large fleet has hundreds of thousands of series, and a scrape blocks the
scheduler's decisions. Sources: HAMi's `cmd/scheduler/metrics.go`, with ratios of 100; Volcano's
`vgpu/metrics.go`, with memory in MiB. Volcano's series have no namespace, so pods of one name share
a series. Invariant: a scrape shows the state at one revision."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

from apportion.core.ledger.state import NodeState, PodState, State
from apportion.runtime.process.metrics import Family, Metrics, Sample
from apportion_schemas import Device

_MIB: Final = 1 << 20
_PERCENT: Final = 100
NAMES: Final = ("apportion", "hami", "volcano")
Names = Literal["apportion", "hami", "volcano"]


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


_HAMI_CARD = "node device_uuid device_index device_type"
_HAMI = _gauges(
    "hami_", "HAMi", _HAMI_CARD,
    gpu_memory_limit_bytes="Memory of the device in bytes",
    gpu_core_limit_ratio="Compute that the device offers in percent",
    gpu_shared_count="Containers that share the device",
    gpu_core_allocated_ratio="Allocated compute in percent",
    node_gpu_memory_allocated_ratio="Allocated part of the device's memory in percent",
)  # fmt: skip
_HAMI_ALLOCATED = _gauges(
    "hami_gpu_", "HAMi", f"{_HAMI_CARD} device_cores",
    memory_allocated_bytes="Allocated memory in bytes",
)  # fmt: skip
_HAMI_PODS = _gauges(
    "hami_vgpu_", "HAMi", "namespace node pod container_index device_uuid",
    memory_allocated_bytes="Memory allocated to the container in bytes",
    core_allocated_ratio="Compute allocated to the container in percent",
)  # fmt: skip


def _hami(state: State) -> Iterator[Sample]:
    for node, of, used_mib, cores, shares in _devices(state):
        labels = (node.name, of.id, str(of.index), of.model)
        part = _PERCENT * used_mib / of.memory_mib if of.memory_mib else 0.0
        values = (of.memory_mib * _MIB, of.cores, shares, cores, part)
        yield from _each(_HAMI, labels, values)
        yield from _each(_HAMI_ALLOCATED, (*labels, str(cores)), (used_mib * _MIB,))
    for node in state.nodes.values():
        for pod, container, device_id, memory_mib, cores in _shares(node.pods.values()):
            named = pod.submitted.namespace, node.name, pod.submitted.name
            # The container's position among those that request devices.
            names = list(dict.fromkeys(ask.container for ask in pod.submitted.shape.asks))
            position = names.index(container) if container in names else 0
            where = (*named, str(position), device_id)
            yield from _each(_HAMI_PODS, where, (memory_mib * _MIB, cores))


_Row = tuple[tuple[Family, ...], Callable[[State], Iterator[Sample]]]
_TABLE: Final[dict[str, _Row]] = {
    "apportion": (_OURS, _ours),
    "hami": ((*_HAMI, *_HAMI_ALLOCATED, *_HAMI_PODS), _hami),
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
