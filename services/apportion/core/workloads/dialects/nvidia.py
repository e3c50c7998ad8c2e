"""NVIDIA: what the dialects of its cards have in common, amounts and annotations.

Amounts are count, memory and cores, by the rules of HAMi's admission webhook and of Volcano's
request parser: a count is a number of different cards; memory and cores are per card; where nothing
is said of memory the card is wanted whole, and where nothing is said of cores either it is wanted
alone. Of zero cards nothing is wanted, whatever else is written (`GenerateResourceRequests`,
`ExtractResourceRequest`). HAMi and Volcano spell several annotations differently for the same
thing, so both spellings are read in every NVIDIA dialect. Invariant: two spellings of one thing
agree, or the pod is refused."""

from collections.abc import Callable
from itertools import chain
from typing import Any, Final, NamedTuple, get_args

from msgspec import structs

from apportion.core.devices.geometries import NVIDIA
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
from apportion.core.workloads.dialects.names import DialectConfig, VgpuNames
from apportion_schemas import Ask, DeviceConstraints, Mode
from apportion_schemas.quantities import WHOLE

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
RESERVED = dict.fromkeys(
    (*MODE, *chain(*SELECTING), *INDEXES, *NUMA_BIND),
    "selects GPUs in a pod that asks for {devices}",
)
"""The annotations that only pods which ask for GPUs may have."""


def choose(notes: Notes) -> DeviceConstraints:
    """Among which cards a pod chooses.

    Raises ManifestError: a value is malformed, or two contradict."""
    return structs.replace(
        selected(notes, SELECTING),
        modes=one(notes, MODE, _modes) or (),
        indexes=one(notes, INDEXES, indexes) or (),
        numa_bind=one(notes, NUMA_BIND, flag) or False,
    )


def _modes(notes: Notes, key: str) -> tuple[Mode, ...]:
    found = name_list(notes, key)
    if not set(found) <= set(MODES):
        raise notes.refusal(key, "is no sharing mode", f"write one of {', '.join(MODES)}")
    return tuple(mode for mode in MODES if mode in found)


def dialect(name: str, **others: Any) -> Dialect:
    """A dialect of GPUs; `others` are the fields that such dialects differ in."""
    fields: dict[str, Any] = {"devices": DEVICES, "choose": choose, "reserved": RESERVED} | others
    return Dialect(name=name, **fields)


class Manner(NamedTuple):
    """How one system calls the amounts of GPUs, and where it reads the same amounts differently.

    `names` are its own under a configuration, and `system` is what people call it. `cap_memory`: an
    amount above the card's size means the whole card. `percentage_first`: of an amount and a
    percentage of memory the percentage counts, else the amount does. `zero_is_unset`: a percentage
    of zero is none; elsewhere it is refused. `clamp_cores`: more than all cores are all; elsewhere
    no card has them, and they are refused. `full_percentage_is_alone`: 100 percent of the memory
    and no word on cores is a card alone, and so is a card without a word on memory; one whose
    memory is written as 0 is not."""

    names: Callable[[DialectConfig], VgpuNames]
    system: str
    cap_memory: bool
    percentage_first: bool
    zero_is_unset: bool
    clamp_cores: bool
    full_percentage_is_alone: bool

    def resources(self, config: DialectConfig) -> Resources:
        """What each of the names means; a part of a card and a priority mean nothing in a limit."""
        names = self.names(config)
        return dict.fromkeys(names.every, Resource((FAMILY,))) | of_family(
            FAMILY,
            (names.count, names.memory, names.cores),
            unit_mib=config.memory_factor,
            clamps=self.clamp_cores,
            caps=self.cap_memory,
        )

    def idle(self, config: DialectConfig) -> tuple[str, str, str]:
        """Of memory as an amount and as a part, the one that says nothing, and the other."""
        amount, part = self.names(config).memory, self.names(config).memory_percent
        idle, counting = (amount, part) if self.percentage_first else (part, amount)
        return idle, counting, self.system

    def priority(self, config: DialectConfig) -> str:
        """The resource of a container's priority; empty where there is none."""
        return self.names(config).priority or ""

    def read(self, container: Container, amounts: Amounts, config: DialectConfig) -> Ask | None:
        """What the container wants of GPUs.

        Raises ManifestError: an amount is out of bounds, or has no effect."""
        names = self.names(config)
        count, memory, percent, cores = (
            amounts.get(name)
            for name in (names.count, names.memory, names.memory_percent, names.cores)
        )
        wanted = count.value > 0 if count else bool(memory or percent or cores)
        # Any number is a priority: HAMi's webhook hands it to the container as
        # `CUDA_TASK_PRIORITY`, where 0 goes first. One of nothing is refused.
        priority = amounts.get(names.priority or "")
        if priority and not (count or wanted):
            raise priority.refusal(
                "has no effect in a container without a device", f"add {names.count}, or remove it"
            )
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
            # HAMi's webhook (`defaultExclusiveCoreIfNeeded`) minds what is written: the percentage
            # where there is one, else whether an amount is there at all.
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
        """The dialect of this system; `others` are the fields that the manner does not say."""
        return dialect(
            name,
            resources=self.resources,
            read=self.read,
            priority=self.priority,
            idle=self.idle,
            **others,
        )
