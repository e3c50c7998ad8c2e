"""The series of a scrape: our own names, and by a switch those of the systems that we replace.

Each row of a table is a gauge and how it reads a use, so that a dashboard written for HAMi's
vGPUmonitor (`cmd/vGPUmonitor/metrics.go`), for the monitor of volcano-vgpu-device-plugin
(`cmd/vgpu-monitor/metrics.go`) or for gpu-manager (its display of metrics) finds what it asks for,
in its units: their ratios are of a hundred. Invariant: a series is of something that is on the node
now, and there are no more of them than it has shares, cards and programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from apportion.agent.backend import Load
from apportion.agent.usage.uses import Look, Use
from apportion.core.grants.mig import named
from apportion.runtime.process.metrics import Family, Sample
from apportion_schemas import Device

_MIB: Final = 1 << 20
_PERCENT: Final = 100
NAMES: Final = ("hami", "volcano", "gpu-manager")
"""Whose names there are beside our own."""
Names = Literal["hami", "volcano", "gpu-manager"]


class Seen(NamedTuple):
    """A look at a node, and its devices by id."""

    node: str
    devices: Mapping[str, Device]
    look: Look


def _percent(value: int | None) -> float | None:
    return None if value is None else value / _PERCENT


def _gauge(name: str, meaning: str, *labels: str) -> Family:
    return Family(name, meaning, labels)


_Read = Callable[[Use], float | None]
_OWN = ("namespace", "pod", "container", "device", "instance")
_OURS: Final[dict[Family, _Read]] = {
    _gauge(f"apportion_container_{name}", meaning, *_OWN): read
    for name, meaning, read in (
        (
            "memory_limit_bytes",
            "Device memory that the container may hold.",
            lambda use: use.memory_limit,
        ),
        (
            "memory_used_bytes",
            "Device memory that its processes hold.",
            lambda use: use.memory_used,
        ),
        (
            "cores_limit_ratio",
            "Part of a device's compute that it is held to.",
            lambda use: use.cores_limit / _PERCENT,
        ),
        (
            "cores_used_ratio",
            "Part of a device's compute that it uses.",
            lambda use: _percent(use.cores_used),
        ),
    )
}
_CARD_MEMORY = _gauge("apportion_device_memory_used_bytes", "Memory in use on a device.", "device")
_CARD_CORES = _gauge("apportion_device_cores_used_ratio", "Compute in use of a device.", "device")
_UNSHARED = _gauge(
    "apportion_unshared_memory_bytes",
    "Device memory of a process that has no share of the device.",
    "device",
    "pid",
    "command",
    "pod",
)


def ours(seen: Seen) -> Iterator[Sample]:
    """Our own series: containers, devices, and who has no share."""
    for use in seen.look.uses:
        cut = named(use.instance) if use.instance else ""
        yield from _read(_OURS, use, use.namespace, use.name, use.container, use.device, cut)
    for load in _cards(seen):
        yield _CARD_MEMORY, (load.device,), load.memory
        if load.cores is not None:
            yield _CARD_CORES, (load.device,), load.cores / _PERCENT
    for each in seen.look.unshared:
        labels = (each.device, str(each.pid), each.owner.command, each.owner.pod)
        yield _UNSHARED, labels, each.memory


_HAMI = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_HAMIS: Final[dict[Family, _Read]] = {
    _gauge(f"hami_{name}", f"As HAMi's monitor: {meaning}.", *_HAMI): read
    for name, meaning, read in (
        ("vgpu_memory_limit_bytes", "memory of the share", lambda use: use.memory_limit),
        ("vgpu_memory_used_bytes", "memory in use", lambda use: use.memory_used),
        ("container_device_memory_bytes", "memory in use", lambda use: use.memory_used),
        (
            "container_device_utilization_ratio",
            "percent of compute in use",
            lambda use: use.cores_used,
        ),
        (
            "container_last_kernel_elapsed_seconds",
            "since a kernel was launched",
            lambda use: use.idle_s,
        ),
        ("vgpu_memory_context_bytes", "memory of contexts", lambda use: _kind(use, 0)),
        ("vgpu_memory_module_bytes", "memory of modules", lambda use: _kind(use, 1)),
        ("vgpu_memory_buffer_bytes", "memory of data", lambda use: _kind(use, 2)),
    )
}
_HAMI_CARD = ("node", "device_index", "device_uuid", "device_type")
_HAMI_MEMORY = _gauge(
    "hami_host_gpu_memory_used_bytes", "As HAMi's monitor: memory in use on a card.", *_HAMI_CARD
)
_HAMI_CORES = _gauge(
    "hami_host_gpu_utilization_ratio", "As HAMi's monitor: percent of compute.", *_HAMI_CARD
)


def hami(seen: Seen) -> Iterator[Sample]:
    """Under the names of HAMi's vGPUmonitor."""
    for use in seen.look.uses:
        labels = (use.namespace, use.name, use.container, str(use.position), use.device)
        yield from _read(_HAMIS, use, *labels)
    for load in _cards(seen):
        card = seen.devices[load.device]
        where = (seen.node, str(card.index), card.id, card.model)
        yield _HAMI_MEMORY, where, load.memory
        if load.cores is not None:
            yield _HAMI_CORES, where, load.cores


_ZONE = "vGPU"
"""A label that the plugin's monitor puts on all its series."""
_VOLCANO = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "zone")
_VOLCANOS: Final[dict[Family, _Read]] = {
    _gauge(name, f"As the vGPU plugin's monitor: {meaning}.", *_VOLCANO): read
    for name, meaning, read in (
        ("vGPU_device_memory_limit_in_bytes", "memory of a share", lambda use: use.memory_limit),
        ("vGPU_device_memory_usage_in_bytes", "memory in use", lambda use: use.memory_used),
        (
            "Device_utilization_desc_of_container",
            "percent of compute in use",
            lambda use: use.cores_used,
        ),
        (
            "Device_last_kernel_of_container",
            "seconds since a kernel was launched",
            lambda use: use.idle_s,
        ),
    )
}
_DESCRIBED = _gauge(
    "Device_memory_desc_of_container",
    "As the vGPU plugin's monitor: memory in use, and its kinds as labels.",
    *(*_VOLCANO[:-1], "context", "module", "data", "offset", "zone"),
)
_VOLCANO_CARD = ("deviceidx", "deviceuuid", "zone")
_VOLCANO_MEMORY = _gauge(
    "HostGPUMemoryUsage", "As the vGPU plugin's monitor: bytes in use on a card.", *_VOLCANO_CARD
)
_VOLCANO_CORES = _gauge(
    "HostCoreUtilization", "As the vGPU plugin's monitor: percent of compute.", *_VOLCANO_CARD
)


def volcano(seen: Seen) -> Iterator[Sample]:
    """Under the names of volcano-vgpu-device-plugin's monitor, which are HAMi's older ones, too."""
    for use in seen.look.uses:
        labels = (use.namespace, use.name, use.container, str(use.position), use.device)
        yield from _read(_VOLCANOS, use, *labels, _ZONE)
        if use.kinds is not None:
            kinds = (str(kind) for kind in use.kinds)
            yield _DESCRIBED, (*labels, *kinds, "0", _ZONE), use.memory_used
    for load in _cards(seen):
        where = (str(seen.devices[load.device].index), load.device, _ZONE)
        yield _VOLCANO_MEMORY, where, load.memory
        if load.cores is not None:
            yield _VOLCANO_CORES, where, load.cores


_MANAGED = ("container_name", "namespace", "node", "pod_name")
_USED_MEMORY = _gauge(
    "container_gpu_memory_total", "gpu memory usage in MiB", *_MANAGED, "gpu_memory"
)
_USED_CORES = _gauge("container_gpu_utilization", "gpu utilization", *_MANAGED, "gpu")
_ASKED_MEMORY = _gauge(
    "container_request_gpu_memory", "request of gpu memory in MiB", *_MANAGED, "req_of_gpu_memory"
)
_ASKED_CORES = _gauge(
    "container_request_gpu_utilization", "request of gpu utilization", *_MANAGED, "req_of_gpu"
)
_TOTAL = "total"


def gpu_manager(seen: Seen) -> Iterator[Sample]:
    """Under the names of gpu-manager: each card, and the sum of a container's cards."""
    containers: dict[tuple[str, str, str, str], list[Use]] = {}
    for use in seen.look.uses:
        labels = (use.container, use.namespace, seen.node, use.name)
        containers.setdefault(labels, []).append(use)
    for labels, uses in containers.items():
        for use in uses:
            card = f"gpu{seen.devices[use.device].index}"
            yield _USED_MEMORY, (*labels, card), use.memory_used // _MIB
            yield _USED_CORES, (*labels, card), use.cores_used or 0
        total = (*labels, _TOTAL)
        yield _USED_MEMORY, total, sum(use.memory_used for use in uses) // _MIB
        yield _USED_CORES, total, sum(use.cores_used or 0 for use in uses)
        yield _ASKED_MEMORY, total, sum(use.memory_limit for use in uses) // _MIB
        yield _ASKED_CORES, total, sum(use.cores_limit for use in uses) / _PERCENT


_Row = tuple[tuple[Family, ...], Callable[[Seen], Iterator[Sample]]]
_TABLE: Final[dict[str, _Row]] = {
    "": ((*_OURS, _CARD_MEMORY, _CARD_CORES, _UNSHARED), ours),
    "hami": ((*_HAMIS, _HAMI_MEMORY, _HAMI_CORES), hami),
    "volcano": ((*_VOLCANOS, _DESCRIBED, _VOLCANO_MEMORY, _VOLCANO_CORES), volcano),
    "gpu-manager": ((_USED_MEMORY, _USED_CORES, _ASKED_MEMORY, _ASKED_CORES), gpu_manager),
}


def families(also: tuple[Names, ...]) -> list[Family]:
    """Our gauges, and those under other names."""
    return [family for names in ("", *also) for family in _TABLE[names][0]]


def samples(seen: Seen, also: tuple[Names, ...]) -> Iterator[Sample]:
    """What these gauges are of what was seen."""
    for names in ("", *also):
        yield from _TABLE[names][1](seen)


def _cards(seen: Seen) -> Iterator[Load]:
    return (
        load for load in seen.look.loads if load.instance is None and load.device in seen.devices
    )


def _read(table: Mapping[Family, _Read], use: Use, *labels: str) -> Iterator[Sample]:
    """Each gauge of the table that has a value for this use."""
    for family, read in table.items():
        value = read(use)
        if value is not None:
            yield family, labels, value


def _kind(use: Use, at: int) -> int | None:
    return None if use.kinds is None else use.kinds[at]
