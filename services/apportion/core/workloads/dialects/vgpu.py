"""What HAMi, Volcano vGPU and the plain name have in common: count, memory, cores.

The rules are those of HAMi's admission webhook and of Volcano's request parser: a count is a number
of different cards; memory and cores are per card; where nothing is said of memory the card is
wanted whole, and where nothing is said of cores either it is wanted alone. Of zero cards nothing is
wanted, whatever else is written (`GenerateResourceRequests`, `ExtractResourceRequest`).
"""

from typing import NamedTuple

from apportion.core.workloads.dialects import measures, nvidia
from apportion.core.workloads.dialects.container import Amount, Amounts, Container
from apportion.core.workloads.dialects.names import DialectConfig, VgpuNames
from apportion.core.workloads.dialects.resource import Resource, of_family
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE


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
        cores_percent = measures.cores_percent(cores, clamp=manner.clamp_cores)
    else:
        alone = _alone(amounts, names, memory_mib, percent, manner)
        cores_percent = WHOLE if alone else config.default_cores
    count = amounts.get(names.count)
    return Ask(
        container=container.name,
        family=nvidia.FAMILY,
        count=measures.count(count) if count else config.default_gpu_count,
        memory_mib=memory_mib,
        memory_percent=None if percent == WHOLE else percent,
        cores=cores_percent,
        cap_memory=manner.cap_memory and memory_mib is not None,
        init=container.role == "init",
    )


def resources(names: VgpuNames, config: DialectConfig) -> dict[str, Resource]:
    """What each of the names means; a part of a card and a priority mean nothing in a limit."""
    return dict.fromkeys(names.every, Resource((nvidia.FAMILY,))) | of_family(
        nvidia.FAMILY,
        count=names.count,
        memory=names.memory,
        cores=names.cores,
        unit_mib=config.memory_factor,
    )


def _wanted(amounts: Amounts, names: VgpuNames) -> bool:
    if names.count in amounts:
        return amounts[names.count].value > 0
    return any(name in amounts for name in (names.memory, names.memory_percent, names.cores))


def _memory(
    amounts: Amounts, names: VgpuNames, config: DialectConfig, manner: Manner
) -> tuple[int | None, int | None]:
    """Memory as an amount and as a part; at most one of them is set."""
    memory, percent = amounts.get(names.memory), amounts.get(names.memory_percent)
    memory_mib = measures.memory_mib(memory, config.memory_factor) if memory else None
    part = None
    if percent and (percent.value or not manner.zero_is_unset):
        part = measures.memory_percent(percent)
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
