"""What the dialects of NVIDIA GPUs have in common: amounts and annotations.

The rules are those of HAMi's admission webhook (`GenerateResourceRequests`) and of Volcano's
request parser (`ExtractResourceRequest`). Memory and cores are per GPU. A request without memory
gets all memory of the GPU. A request without memory and cores gets the GPU exclusively. Zero GPUs
request nothing. Invariant: two spellings of one annotation agree, or the pod is refused."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple, get_args

from msgspec import structs

from apportion.core.devices.catalogue import NVIDIA
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    Dialect,
    Notes,
    Resource,
    Resources,
    Selecting,
    flag,
    indexes,
    name_list,
    of_family,
    one,
    selected,
)
from apportion.core.workloads.dialects.inventory import Entry, Unread
from apportion.core.workloads.dialects.names import DialectConfig, VgpuNames
from apportion_schemas import Ask, DeviceConstraints, Mode
from apportion_schemas.quantities import NAME_MAX, WHOLE

FAMILY: Final = NVIDIA
DEVICES: Final = "GPUs"
MODES: tuple[Mode, ...] = tuple(
    mode for mode in get_args(Mode) if mode in {"hami-core", "mig", "mps"}
)
MODE = ("volcano.sh/vgpu-mode", "nvidia.com/vgpu-mode")
SELECTING = Selecting(
    use_types=("nvidia.com/use-gputype",),
    nouse_types=("nvidia.com/nouse-gputype",),
    use_ids=("nvidia.com/use-gpuuuid", "volcano.sh/vgpu-use-gpuuuid"),
    nouse_ids=("nvidia.com/nouse-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"),
)
INDEXES = ("volcano.sh/gpu-index",)
NUMA_BIND = ("nvidia.com/numa-bind",)
# annotations that only pods requesting GPUs may have
RESERVED = dict.fromkeys(
    (*MODE, *chain(*SELECTING), *INDEXES, *NUMA_BIND),
    "selects GPUs, but the pod requests {devices}",
)


def choose(notes: Notes) -> DeviceConstraints:
    """Return the constraints that annotations set on a pod's GPUs. Raises ManifestError."""
    return structs.replace(
        selected(notes, SELECTING),
        modes=one(notes, MODE, _modes) or (),
        indexes=one(notes, INDEXES, indexes) or (),
        numa_bind=one(notes, NUMA_BIND, flag) or False,
    )


NO_GROUPS: Final = (
    "HAMi's plugin up to 2.9 divides it by knownMigGeometries, but the configuration has none for "
    "this model name; see apportion config import, and write the whole name"
)
VOLCANOS_MIG: Final = "a GPU that Volcano's plugin divides by MIG is not supported"
_PREFIX: Final = "NVIDIA-"
_REGISTERED_MODES: Final[Mapping[str, Mode]] = {
    "": "hami-core", "hami-core": "hami-core", "mps": "mps", "mig": "mig"
}  # fmt: skip


def registered(entry: Entry, mig: Callable[[str, Entry], dict[str, Any]]) -> dict[str, Any]:
    """Return the fields that HAMi's and Volcano's plugins register for a GPU in their own way.

    `mig` returns the fields of a healthy GPU in MIG mode, given its model. Raises Unread if the
    mode is unknown."""
    mode = _REGISTERED_MODES.get(entry.mode)
    if mode is None:
        raise Unread(f"device {entry.id[:40]!r} has the unknown mode {entry.mode[:40]!r}")
    model = entry.type.removeprefix(_PREFIX)[:NAME_MAX] or NVIDIA
    fields = {"model": model, "mode": mode}
    return fields | (mig(model, entry) if mode == "mig" and entry.health else {})


def unhealthy(reason: str) -> dict[str, Any]:
    """Return the fields of a GPU that is not offered for this reason."""
    return {"healthy": False, "health_reason": reason}


def _modes(notes: Notes, key: str) -> tuple[Mode, ...]:
    found = name_list(notes, key)
    if not set(found) <= set(MODES):
        raise notes.refusal(key, "is not a sharing mode", f"write one of {', '.join(MODES)}")
    return tuple(mode for mode in MODES if mode in found)


def dialect(name: str, **others: Any) -> Dialect:
    """Create a dialect for GPUs; `others` are the fields that differ between GPU dialects."""
    fields: dict[str, Any] = {"devices": DEVICES, "choose": choose, "reserved": RESERVED} | others
    return Dialect(name=name, **fields)


class Manner(NamedTuple):
    """The names with which one system requests GPUs, and the rules by which it reads amounts.

    If `full_percentage_is_alone`, 100 % of memory without cores requests the whole GPU."""

    names: Callable[[DialectConfig], VgpuNames]
    system: str  # what users call it
    cap_memory: bool  # more than the GPU has means a whole GPU
    percentage_first: bool  # a memory percentage overrides an amount
    zero_is_unset: bool  # else 0 % is refused
    clamp_cores: bool  # else more than 100 % is refused
    full_percentage_is_alone: bool

    def resources(self, config: DialectConfig) -> Resources:
        """Return what each resource name requests, and what a limit on that name counts."""
        names = self.names(config)
        return dict.fromkeys(names.every, Resource((FAMILY,))) | of_family(
            FAMILY,
            (names.count, names.memory, names.cores),
            unit_mib=config.memory_factor,
            clamps=self.clamp_cores,
            caps=self.cap_memory,
        )

    def idle(self, config: DialectConfig) -> tuple[str, str, str]:
        """Return the memory resource that is ignored, the one that overrides it, and `system`.

        They are the amount and the percentage of memory; `percentage_first` decides which is
        ignored."""
        amount, part = self.names(config).memory, self.names(config).memory_percent
        idle, counting = (amount, part) if self.percentage_first else (part, amount)
        return idle, counting, self.system

    def priority(self, config: DialectConfig) -> str:
        """Return the name of the resource for a container's priority; empty if none."""
        return self.names(config).priority or ""

    def read(self, container: Container, amounts: Amounts, config: DialectConfig) -> Ask | None:
        """Return the container's ask for GPUs; None if it requests none. Raises ManifestError."""
        names = self.names(config)
        count, memory, percent, cores = (
            amounts.get(name)
            for name in (names.count, names.memory, names.memory_percent, names.cores)
        )
        wanted = count.value > 0 if count else bool(memory or percent or cores)
        # Any number is a priority: HAMi's webhook passes it to the container as
        # `CUDA_TASK_PRIORITY`, where 0 goes first. A priority without a device is refused.
        priority = amounts.get(names.priority or "")
        if priority and not (count or wanted):
            fix = f"add {names.count}, or remove it"
            raise priority.refusal("has no effect in a container without a GPU", fix)
        if not wanted:
            return None
        memory_mib = memory.memory_mib(config.memory_factor) if memory else None
        part = None
        if percent and (percent.value or not self.zero_is_unset):
            part = percent.memory_percent()
        if memory_mib is not None and part is not None:
            memory_mib, part = (None, part) if self.percentage_first else (memory_mib, None)
        elif part is None:
            memory_mib = memory_mib or config.default_memory_mib or None
        if cores:
            cores_percent = cores.cores_percent(clamp=self.clamp_cores)
        else:
            if not self.full_percentage_is_alone:
                alone = memory_mib is None and part is None
            # HAMi's webhook (`defaultExclusiveCoreIfNeeded`) goes by what is written: the
            # percentage if there is one, else whether an amount is written at all.
            elif percent:
                alone = percent.value == WHOLE
            else:
                alone = memory is None and memory_mib is None
            cores_percent = WHOLE if alone else config.default_cores
        return container.ask(
            FAMILY,
            count=count.devices() if count else config.default_gpu_count,
            memory_mib=memory_mib,
            memory_percent=None if part == WHOLE else part,
            cores=cores_percent,
            cap_memory=self.cap_memory and memory_mib is not None,
        )

    def dialect(self, name: str, **others: Any) -> Dialect:
        """Create the dialect of this system, with the fields in `others`."""
        return dialect(
            name,
            resources=self.resources,
            read=self.read,
            priority=self.priority,
            idle=self.idle,
            **others,
        )
