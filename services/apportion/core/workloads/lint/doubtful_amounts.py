"""Amounts that count otherwise than they are written, or that no device can meet.

More than all cores of a device are cut to these, Volcano's memory to that of the card; of memory
beside a percentage of it one alone counts; and whoever takes a unit of 256 MiB for one MiB asks for
more than any device has. Invariant: of what is refused nothing is said here, and of every name what
is said is what its dialect does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.devices.models import models
from apportion.core.workloads.dialects import ManifestError, cambricon, hami, listing, volcano_vgpu
from apportion.core.workloads.dialects.amounts import AMOUNT_MAX, whole
from apportion.core.workloads.dialects.dialect import DEVICE_MEMORY, PARTIAL_MEMORY
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas.quantities import MEMORY_MIB_MAX, WHOLE

Kind = Literal["limits", "requests"]
_CLAMPED: Final = (
    "is {}, a percentage of one device, and counts as 100, a device alone, as in HAMi; "
    "write from 0 to 100"
)


class Asked(NamedTuple):
    """An amount of a resource of devices as a container asks for it; of limit and request, which
    must agree, the limit.
    """

    kind: Kind
    name: str
    value: int


def doubtful_amounts(
    resources: Mapping[Any, Any], config: DialectConfig
) -> Iterator[tuple[Asked, str]]:
    """The amounts of a container's `resources` that are probably not meant so, each with why."""
    asked = _asked(resources, config)
    for each in asked.values():
        if each.name in (config.hami.cores, cambricon.CORES) and each.value > WHOLE:
            yield each, _CLAMPED.format(each.value)
        elif why := _too_much(each, config):
            yield each, why
    yield from _beside(asked, config)


def _asked(resources: Mapping[Any, Any], config: DialectConfig) -> dict[str, Asked]:
    """What is no amount is passed over: whoever reads the pod refuses it."""
    known = listing.claimed(config)
    found: dict[str, Asked] = {}
    kinds: tuple[Kind, Kind] = ("limits", "requests")
    for kind in kinds:
        amounts = resources.get(kind)
        for name, written in (amounts if isinstance(amounts, dict) else {}).items():
            if not isinstance(name, str) or name not in known or name in found:
                continue
            try:
                found[name] = Asked(kind, name, whole(written, name, limit=AMOUNT_MAX))
            except ManifestError:
                continue
    return found


def _too_much(asked: Asked, config: DialectConfig) -> str:
    """Why memory is more than a device of its family has; empty where it is not."""
    resource = listing.resources(config)[asked.name]
    bound = resource.bound
    if bound is None or bound.counts not in (DEVICE_MEMORY, PARTIAL_MEMORY):
        return ""
    mib, most_mib = asked.value * bound.unit, max(map(_largest_mib, resource.families), default=0)
    if not most_mib < mib <= MEMORY_MIB_MAX:
        return ""
    of = f" ({asked.value:,} units of {bound.unit} MiB)" if bound.unit > 1 else ""
    said = f"is {mib:,} MiB{of}, and the largest device known here has {most_mib:,} MiB"
    if asked.name == config.volcano_vgpu.memory != config.hami.memory:
        return f"{said}: it counts as all memory of whichever card it gets, as in Volcano; {_LESS}"
    if bound.unit > 1 and asked.value <= most_mib:
        return f"{said}; write {-(-asked.value // bound.unit)} if MiB were meant"
    return f"{said}; {_LESS}"


_LESS: Final = "write what it is to have of one device"


@lru_cache(maxsize=64)
def _largest_mib(family: str) -> int:
    """The most memory that a device of this family has or is sold with."""
    of_models = [model.memory_mib for model in models().values() if model.family == family]
    return max((FAMILIES[family].printed_mib, *of_models))


def _beside(asked: Mapping[str, Asked], config: DialectConfig) -> Iterator[tuple[Asked, str]]:
    """Where memory is asked for as an amount and as a part, that of the two which says nothing."""
    for names, manner, system in (
        (config.hami, hami.MANNER, "HAMi"),
        (config.volcano_vgpu, volcano_vgpu.MANNER, "Volcano"),
    ):
        amount, part = asked.get(names.memory), asked.get(names.memory_percent)
        if not (amount and part and amount.value and part.value):
            continue
        idle, counting = (amount, part) if manner.percentage_first else (part, amount)
        yield (
            idle,
            (
                f"is {idle.value} and says nothing of memory beside {counting.name}, which counts "
                f"alone, as in {system}; keep one of the two"
            ),
        )
