"""Metrics of use under our own names and, on request, under the names of replaced systems.

Sources of the names and units: HAMi's vGPUmonitor (`cmd/vGPUmonitor/metrics.go`), the monitor of
volcano-vgpu-device-plugin (`cmd/vgpu-monitor/metrics.go`), and gpu-manager. Ratios are in percent.
Invariant: every series is about a pod or device that is on the node now."""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from apportion.agent.backend import Load
from apportion.agent.usage.uses import Look, Use
from apportion.core.grants.mig import named
from apportion.runtime.process.metrics import Family, Sample
from apportion_schemas import Device

_MIB: Final = 1 << 20
_PERCENT: Final = 100
# systems whose names are available in addition to our own
NAMES: Final = ("hami", "volcano", "gpu-manager")
Names = Literal["hami", "volcano", "gpu-manager"]


class Seen(NamedTuple):
    """A node's latest sample of use, and the node's devices by id."""

    node: str
    devices: Mapping[str, Device]
    look: Look


class _Monitor(NamedTuple):
    """The gauges of a monitoring system, each with the field of `Use` or `Load` that it exports."""

    of_use: Mapping[Family, str]
    of_card: Mapping[Family, str]
    use_labels: Callable[[Use], tuple[str, ...]]
    card_labels: Callable[[str, Device], tuple[str, ...]]
    whole: int = 1  # divisor of fields of cores, which are percent

    def samples(self, seen: Seen) -> Iterator[Sample]:
        """Yield a sample of each gauge whose field has a value."""
        for use in seen.look.uses:
            yield from self._read(self.of_use, use, self.use_labels(use))
        for load in seen.look.loads:
            if load.instance is None and load.device in seen.devices:
                labels = self.card_labels(seen.node, seen.devices[load.device])
                yield from self._read(self.of_card, load, labels)

    def _read(
        self, gauges: Mapping[Family, str], measured: Use | Load, labels: tuple[str, ...]
    ) -> Iterator[Sample]:
        for family, field in gauges.items():
            name, _, at = field.partition(".")
            value = getattr(measured, name)
            if value is not None:
                value = value[int(at)] if at else value
                yield family, labels, value / self.whole if name.startswith("cores") else value


def _gauges(
    prefix: str, text: str, labels: tuple[str, ...], *rows: tuple[str, str, str]
) -> dict[Family, str]:
    return {
        Family(prefix + name, text.format(meaning), labels): field for name, meaning, field in rows
    }


_POD = attrgetter("namespace", "name", "container")
_OURS = _Monitor(
    _gauges(
        "apportion_container_", "{}", ("namespace", "pod", "container", "device", "instance"),
        ("memory_limit_bytes", "Device memory limit of the container.", "memory_limit"),
        ("memory_used_bytes", "Device memory in use by the container's processes.", "memory_used"),
        (
            "cores_limit_ratio",
            "Fraction of the device's compute that the container may use, from 0 to 1.",
            "cores_limit",
        ),
        (
            "cores_used_ratio",
            "Fraction of the device's compute that the container uses, from 0 to 1.",
            "cores_used",
        ),
    ),
    _gauges(
        "apportion_device_", "{}", ("device",),
        ("memory_used_bytes", "Memory in use on the device.", "memory"),
        ("cores_used_ratio", "Fraction of the device's compute in use, from 0 to 1.", "cores"),
    ),
    lambda use: (*_POD(use), use.device, named(use.instance) if use.instance else ""),
    lambda _node, card: (card.id,),
    whole=_PERCENT,
)  # fmt: skip
_UNSHARED = Family(
    "apportion_unshared_memory_bytes",
    "Device memory that a process uses without a share of the device.",
    ("device", "pid", "command", "pod"),
)


def _ours(seen: Seen) -> Iterator[Sample]:
    yield from _OURS.samples(seen)
    for each in seen.look.unshared:
        labels = (each.device, str(each.pid), each.owner.command, each.owner.pod)
        yield _UNSHARED, labels, each.memory


_BY_HAMI = "{} (as named by HAMi's monitor)."
_HAMI = _Monitor(
    _gauges(
        "hami_", _BY_HAMI, ("namespace", "pod", "container", "vdevice_index", "device_uuid"),
        ("vgpu_memory_limit_bytes", "Memory limit of the share in bytes", "memory_limit"),
        ("vgpu_memory_used_bytes", "Memory in use in bytes", "memory_used"),
        ("container_device_memory_bytes", "Memory in use in bytes", "memory_used"),
        ("container_device_utilization_ratio", "Compute in use in percent", "cores_used"),
        ("container_last_kernel_elapsed_seconds", "Seconds since the last kernel launch", "idle_s"),
        ("vgpu_memory_context_bytes", "GPU memory used by CUDA contexts, in bytes", "kinds.0"),
        ("vgpu_memory_module_bytes", "GPU memory used by CUDA modules, in bytes", "kinds.1"),
        ("vgpu_memory_buffer_bytes", "GPU memory used by data, in bytes", "kinds.2"),
    ),
    _gauges(
        "hami_", _BY_HAMI, ("node", "device_index", "device_uuid", "device_type"),
        ("host_gpu_memory_used_bytes", "Memory in use on the device in bytes", "memory"),
        ("host_gpu_utilization_ratio", "Compute in use on the device in percent", "cores"),
    ),
    lambda use: (*_POD(use), str(use.position), use.device),
    lambda node, card: (node, str(card.index), card.id, card.model),
)  # fmt: skip
_ZONE = "vGPU"  # a label that the plugin's monitor puts on all its series
_VOLCANO_LABELS = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "zone")
_BY_VOLCANO = "{} (as named by Volcano's vGPU plugin)."
_VOLCANO = _Monitor(
    _gauges(
        "", _BY_VOLCANO, _VOLCANO_LABELS,
        ("vGPU_device_memory_limit_in_bytes", "Memory limit of the share in bytes", "memory_limit"),
        ("vGPU_device_memory_usage_in_bytes", "Memory in use in bytes", "memory_used"),
        ("Device_utilization_desc_of_container", "Compute in use in percent", "cores_used"),
        ("Device_last_kernel_of_container", "Seconds since the last kernel launch", "idle_s"),
    ),
    _gauges(
        "", _BY_VOLCANO, ("deviceidx", "deviceuuid", "zone"),
        ("HostGPUMemoryUsage", "Memory in use on the device in bytes", "memory"),
        ("HostCoreUtilization", "Compute in use on the device in percent", "cores"),
    ),
    lambda use: (*_HAMI.use_labels(use), _ZONE),
    lambda _node, card: (str(card.index), card.id, _ZONE),
)  # fmt: skip
_DESCRIBED = Family(
    "Device_memory_desc_of_container",
    "Memory in use in bytes (as named by Volcano's vGPU plugin). Labels have the amount of each "
    "kind of memory.",
    (*_VOLCANO_LABELS[:-1], "context", "module", "data", "offset", "zone"),
)


def _volcano(seen: Seen) -> Iterator[Sample]:
    # These are HAMi's older names as well.
    yield from _VOLCANO.samples(seen)
    for use in seen.look.uses:
        if use.kinds is not None:
            kinds = (str(kind) for kind in use.kinds)
            yield _DESCRIBED, (*_HAMI.use_labels(use), *kinds, "0", _ZONE), use.memory_used


_MANAGED = ("container_name", "namespace", "node", "pod_name")
_USED_MEMORY, _USED_CORES, _ASKED_MEMORY, _ASKED_CORES = _MANAGERS = tuple(
    Family(name, f"{meaning} (as named by gpu-manager).", (*_MANAGED, label))
    for name, meaning, label in (
        ("container_gpu_memory_total", "Memory in use in MiB", "gpu_memory"),
        ("container_gpu_utilization", "Compute in use in percent", "gpu"),
        ("container_request_gpu_memory", "Memory limit in MiB", "req_of_gpu_memory"),
        ("container_request_gpu_utilization", "Compute limit in GPUs", "req_of_gpu"),
    )
)
_TOTAL = "total"


def _gpu_manager(seen: Seen) -> Iterator[Sample]:
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
    "": ((*_OURS.of_use, *_OURS.of_card, _UNSHARED), _ours),
    "hami": ((*_HAMI.of_use, *_HAMI.of_card), _HAMI.samples),
    "volcano": ((*_VOLCANO.of_use, _DESCRIBED, *_VOLCANO.of_card), _volcano),
    "gpu-manager": (_MANAGERS, _gpu_manager),
}


def families(also: tuple[Names, ...]) -> list[Family]:
    """Return our gauges and the gauges of the systems in `also`."""
    return [family for names in ("", *also) for family in _TABLE[names][0]]


def samples(seen: Seen, also: tuple[Names, ...]) -> Iterator[Sample]:
    """Yield the values of our gauges and of the gauges of the systems in `also`."""
    for names in ("", *also):
        yield from _TABLE[names][1](seen)
