"""NVIDIA: what the dialects of its cards have in common, amounts and annotations.

Amounts are count, memory and cores, by the rules of HAMi's admission webhook and of Volcano's
request parser: a count is a number of different cards; memory and cores are per card; where nothing
is said of memory the card is wanted whole, and where nothing is said of cores either it is wanted
alone. Of zero cards nothing is wanted, whatever else is written (`GenerateResourceRequests`,
`ExtractResourceRequest`).

HAMi and Volcano spell several annotations differently for the same thing, so both spellings are
read in every NVIDIA dialect. Invariant: two spellings of one thing agree, or the pod is refused.
"""

from typing import Final, NamedTuple, get_args

from apportion.core.devices.geometries import NVIDIA
from apportion.core.workloads.dialects.amounts import Amount, Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    Notes,
    Resource,
    flag,
    indexes,
    name_list,
    of_family,
    one,
    some_left,
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
USE_TYPES = ("nvidia.com/use-gputype",)
NOUSE_TYPES = ("nvidia.com/nouse-gputype",)
USE_IDS = ("nvidia.com/use-gpuuuid", "volcano.sh/vgpu-use-gpuuuid")
NOUSE_IDS = ("nvidia.com/nouse-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid")
INDEXES = ("volcano.sh/gpu-index",)
NUMA_BIND = ("nvidia.com/numa-bind",)
RESERVED = dict.fromkeys(
    (*MODE, *USE_TYPES, *NOUSE_TYPES, *USE_IDS, *NOUSE_IDS, *INDEXES, *NUMA_BIND),
    "selects GPUs in a pod that asks for {devices}",
)
"""The annotations that only pods which ask for GPUs may have."""


def choose(notes: Notes) -> DeviceConstraints:
    """Among which cards a pod chooses.

    Raises:
        ManifestError: a value is malformed, or two contradict.
    """
    use_types = one(notes, USE_TYPES, name_list) or ()
    nouse_types = one(notes, NOUSE_TYPES, name_list) or ()
    use_ids = one(notes, USE_IDS, name_list) or ()
    nouse_ids = one(notes, NOUSE_IDS, name_list) or ()
    some_left(notes, NOUSE_TYPES, use_types, nouse_types)
    some_left(notes, NOUSE_IDS, use_ids, nouse_ids)
    return DeviceConstraints(
        modes=one(notes, MODE, _modes) or (),
        use_types=use_types,
        nouse_types=nouse_types,
        use_ids=use_ids,
        nouse_ids=nouse_ids,
        indexes=one(notes, INDEXES, indexes) or (),
        numa_bind=one(notes, NUMA_BIND, flag) or False,
    )


def _modes(notes: Notes, key: str) -> tuple[Mode, ...]:
    found = name_list(notes, key)
    if not set(found) <= set(MODES):
        raise notes.refusal(key, "is no sharing mode", f"write one of {', '.join(MODES)}")
    return tuple(mode for mode in MODES if mode in found)


class Manner(NamedTuple):
    """Where the two systems read the same amounts differently.

    `cap_memory`: an amount above the card's size means the whole card.
    `percentage_first`: of an amount and a percentage of memory the percentage counts, else the
    amount does.
    `zero_is_unset`: a percentage of zero is none; elsewhere it is refused.
    `clamp_cores`: more than all cores are all; elsewhere no card has them, and they are refused.
    `full_percentage_is_alone`: 100 percent of the memory and no word on cores is a card alone, and
    so is a card without a word on memory; one whose memory is written as 0 is not.
    """

    cap_memory: bool
    percentage_first: bool
    zero_is_unset: bool
    clamp_cores: bool
    full_percentage_is_alone: bool


def read(
    container: Container,
    amounts: Amounts,
    names: VgpuNames,
    config: DialectConfig,
    manner: Manner,
) -> Ask | None:
    """What the container wants of GPUs.

    Raises:
        ManifestError: an amount is out of bounds, or has no effect.
    """
    _check_priority(amounts, names)
    if not _wanted(amounts, names):
        return None
    memory_mib, percent = _memory(amounts, names, config, manner)
    if cores := amounts.get(names.cores):
        cores_percent = cores.cores_percent(clamp=manner.clamp_cores)
    else:
        alone = _alone(amounts, names, memory_mib, percent, manner)
        cores_percent = WHOLE if alone else config.default_cores
    count = amounts.get(names.count)
    return Ask(
        container=container.name,
        family=FAMILY,
        count=count.devices() if count else config.default_gpu_count,
        memory_mib=memory_mib,
        memory_percent=None if percent == WHOLE else percent,
        cores=cores_percent,
        cap_memory=manner.cap_memory and memory_mib is not None,
        init=container.role == "init",
    )


def resources(names: VgpuNames, config: DialectConfig, manner: Manner) -> dict[str, Resource]:
    """What each of the names means; a part of a card and a priority mean nothing in a limit."""
    return dict.fromkeys(names.every, Resource((FAMILY,))) | of_family(
        FAMILY,
        (names.count, names.memory, names.cores),
        unit_mib=config.memory_factor,
        clamps=manner.clamp_cores,
        caps=manner.cap_memory,
    )


def idle_memory(names: VgpuNames, manner: Manner) -> tuple[str, str]:
    """Of memory as an amount and as a part, the one that says nothing, and the one that counts."""
    both = (names.memory, names.memory_percent)
    return both if manner.percentage_first else (both[1], both[0])


def _wanted(amounts: Amounts, names: VgpuNames) -> bool:
    if names.count in amounts:
        return amounts[names.count].value > 0
    return any(name in amounts for name in (names.memory, names.memory_percent, names.cores))


def _memory(
    amounts: Amounts, names: VgpuNames, config: DialectConfig, manner: Manner
) -> tuple[int | None, int | None]:
    """Memory as an amount and as a part; at most one of them is set."""
    memory, percent = amounts.get(names.memory), amounts.get(names.memory_percent)
    memory_mib = memory.memory_mib(config.memory_factor) if memory else None
    part = None
    if percent and (percent.value or not manner.zero_is_unset):
        part = percent.memory_percent()
    if memory_mib is not None and part is not None:
        return (None, part) if manner.percentage_first else (memory_mib, None)
    if part is not None:
        return None, part
    return memory_mib or config.default_memory_mib or None, None


def _alone(
    amounts: Amounts,
    names: VgpuNames,
    memory_mib: int | None,
    percent: int | None,
    manner: Manner,
) -> bool:
    """Whether a container that says nothing of cores wants its cards alone.

    HAMi's webhook (`defaultExclusiveCoreIfNeeded`) minds what is written: the percentage where
    there is one, else whether an amount is there at all.
    """
    if not manner.full_percentage_is_alone:
        return memory_mib is None and percent is None
    if written := amounts.get(names.memory_percent):
        return written.value == WHOLE
    return names.memory not in amounts and memory_mib is None


def _check_priority(amounts: Amounts, names: VgpuNames) -> None:
    """Refuse a priority of nothing. Any number is one: HAMi's webhook hands it to the container as
    `CUDA_TASK_PRIORITY`, where 0 goes first.
    """
    priority: Amount | None = amounts.get(names.priority or "")
    if priority is None:
        return
    if not (names.count in amounts or _wanted(amounts, names)):
        raise priority.refusal(
            "has no effect in a container without a device", f"add {names.count}, or remove it"
        )
