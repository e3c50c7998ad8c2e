"""What HAMi, Volcano vGPU and the plain name have in common: count, memory, cores.

The rules are those of HAMi's admission webhook and of Volcano's request parser: a count is a number
of different cards; memory and cores are per card; where nothing is said of memory the card is
wanted whole, and where nothing is said of cores either it is wanted alone.
"""

from apportion.core.dialects import measures, nvidia
from apportion.core.dialects.container import Amount, Amounts, Container
from apportion.core.dialects.names import DialectConfig, VgpuNames
from apportion.core.dialects.resource import Resource, of_family
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE


def read(
    container: Container,
    amounts: Amounts,
    names: VgpuNames,
    config: DialectConfig,
    *,
    cap_memory: bool = False,
    full_percentage_is_alone: bool = True,
) -> Ask | None:
    """What the container wants of GPUs.

    `cap_memory`: an amount above the card's size means the whole card.
    `full_percentage_is_alone`: 100 percent of the memory and no word on cores is a card alone.

    Raises:
        ManifestError: an amount is out of bounds, or two contradict one another.
    """
    _check_priority(amounts, names)
    if not _wanted(amounts, names):
        return None
    memory_mib, percent = _memory(amounts, names, config)
    whole = memory_mib is None and (
        percent is None or (percent == WHOLE and full_percentage_is_alone)
    )
    if cores := amounts.get(names.cores):
        cores_percent = measures.cores_percent(cores)
    else:
        cores_percent = WHOLE if whole else config.default_cores
    count = amounts.get(names.count)
    return Ask(
        container=container.name,
        family=nvidia.FAMILY,
        count=measures.count(count) if count else config.default_gpu_count,
        memory_mib=memory_mib,
        memory_percent=None if percent == WHOLE else percent,
        cores=cores_percent,
        cap_memory=cap_memory and memory_mib is not None,
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
    parts = [amounts[n] for n in (names.memory, names.memory_percent, names.cores) if n in amounts]
    count = amounts.get(names.count)
    if count is not None and count.value == 0:
        if given := next((part for part in parts if part.value), None):
            raise given.refusal(
                f"is asked of no device, since {names.count} is 0",
                f"set {names.count} to 1 or more, or leave both out",
            )
        return False
    return count is not None or bool(parts)


def _memory(
    amounts: Amounts, names: VgpuNames, config: DialectConfig
) -> tuple[int | None, int | None]:
    """Memory as an amount and as a part; at most one of them is set."""
    memory, percent = amounts.get(names.memory), amounts.get(names.memory_percent)
    memory_mib = measures.memory_mib(memory, config.memory_factor) if memory else None
    if percent is None:
        return memory_mib or config.default_memory_mib or None, None
    if memory_mib is not None:
        raise percent.refusal(
            f"contradicts {names.memory}, which says how much as well", "keep one of the two"
        )
    return None, measures.memory_percent(percent)


def _check_priority(amounts: Amounts, names: VgpuNames) -> None:
    priority: Amount | None = amounts.get(names.priority or "")
    if priority is None:
        return
    if priority.value > 1:
        raise priority.refusal("is no priority", "write 0 (high) or 1 (low)")
    if not (names.count in amounts or _wanted(amounts, names)):
        raise priority.refusal(
            "has no effect in a container without a device", f"add {names.count}, or remove it"
        )
