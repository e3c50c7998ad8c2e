"""The list of dialects, and tables derived from all of them.

To add a dialect, write a module with a `DIALECT` in `vendors`, and add its row here. Invariant:
if two dialects claim a name under a configuration, the first one in the list is preferred."""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Final

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.workloads.dialects import hami, plain, vcuda, volcano_share, volcano_vgpu
from apportion.core.workloads.dialects.dialect import (
    ENTIRE,
    SHARES,
    SLOT,
    Dialect,
    PlacedPod,
    Recover,
    Resource,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.vendors import (
    amd,
    ascend,
    biren,
    cambricon,
    enflame,
    enflame_drs,
    hygon,
    iluvatar,
    kunlun,
    metax,
    mthreads,
    neuron,
    vastai,
)

# in order of preference for shared names, and in which bound pods' annotations are tried
DIALECTS: tuple[Dialect, ...] = (
    plain.DIALECT,
    hami.DIALECT,
    ascend.DIALECT,
    cambricon.DIALECT,
    hygon.DIALECT,
    biren.DIALECT,
    vastai.DIALECT,
    *metax.DIALECTS,
    *enflame.DIALECTS,
    *iluvatar.DIALECTS,
    *amd.DIALECTS,
    mthreads.DIALECT,
    *kunlun.DIALECTS,
    neuron.DIALECT,
    volcano_vgpu.DIALECT,
    volcano_share.DIALECT,
    *vcuda.DIALECTS,
)
# annotations reserved for the pods of some dialect, with the error for other pods
RESERVED: Mapping[str, str] = {
    key: problem for dialect in DIALECTS for key, problem in dialect.reserved.items()
}
# how a bound pod's devices are read, by annotation, in the order in which they are tried
RECOVERS: Mapping[str, Recover] = {
    key: read for dialect in DIALECTS for key, read in dialect.recover.items()
}
# annotations that these readers consult as well
CONSULTED: tuple[str, ...] = (hami.MIG_ALLOCATIONS, enflame_drs.ASSIGNED)
# resources that are useless without another one: that one, and why
NEEDS: Mapping[str, tuple[str, str]] = {
    name: need for dialect in DIALECTS for name, need in dialect.needs.items()
}
# prefixes of the annotations that some system's scheduler and plugin write on pods
WRITES: tuple[str, ...] = tuple(prefix for dialect in DIALECTS for prefix in dialect.writes)
# checks of sections of HAMi's and Volcano's configuration files
SECTIONS: Mapping[str, Callable[[object, str], str]] = {
    name: check for dialect in DIALECTS for name, check in dialect.sections.items()
}


AND: Final = "+"  # between the names of dialects, in the name of a pod that uses several


def parts(name: str) -> tuple[Dialect, ...]:
    """Return the dialects that a pod uses, given their names as in events; empty if unknown."""
    names = name.split(AND)
    return tuple(dialect for dialect in DIALECTS if dialect.name in names)


def render(it: PlacedPod, *, served: bool = False) -> dict[str, str]:
    """Return the annotations that the pod's original scheduler would write; empty if none.

    With `served`, they are as its device plugin leaves them once the pod has its devices."""
    found = parts(it.pod.dialect) if it.placed.shares else ()
    if len(found) > 1:
        held = {it.devices[share.device].family for share in it.placed.shares}
        found = tuple(each for each in found if serves(each, held, it.config))
    notes = {key: value for dialect in found for key, value in dialect.render(it).items()}
    return notes | {k: v for each in found if served for k, v in each.served.items() if k in notes}


def serves(dialect: Dialect, families: Collection[str], config: DialectConfig) -> bool:
    """Return True if the dialect has resource names for devices of one of these families."""
    return any(not set(families).isdisjoint(r.families) for r in dialect.resources(config).values())


@lru_cache(maxsize=8)
def claims(config: DialectConfig) -> Mapping[str, tuple[Dialect, ...]]:
    """Return for each device resource name the dialects that have it, in order of preference."""
    found: dict[str, tuple[Dialect, ...]] = {}
    for dialect in DIALECTS:
        for name in dialect.resources(config):
            found[name] = (*found.get(name, ()), dialect)
    return found


@lru_cache(maxsize=8)
def claimed(config: DialectConfig) -> frozenset[str]:
    """Return all device resource names, and the name of the slot resource."""
    return frozenset(claims(config)) | {SLOT}


@lru_cache(maxsize=8)
def resources(config: DialectConfig) -> Mapping[str, Resource]:
    """Return what each device resource name means; if several dialects have it, the last counts."""
    return {name: several[-1] for name, several in meanings(config).items()}


@lru_cache(maxsize=8)
def meanings(config: DialectConfig) -> Mapping[str, tuple[Resource, ...]]:
    """Map each device resource name to its meaning in every dialect that has it.

    The meanings are in the dialects' order of preference."""
    return {
        name: tuple(dialect.resources(config)[name] for dialect in dialects)
        for name, dialects in claims(config).items()
    }


@lru_cache(maxsize=8)
def domains(config: DialectConfig) -> tuple[str, ...]:
    """Return the domains of all device resource names, each with the slash after it."""
    return tuple(sorted({f"{name.partition('/')[0]}/" for name in claims(config)}))


@lru_cache(maxsize=8)
def count_names(config: DialectConfig) -> Mapping[str, tuple[str, ...]]:
    """Return the resource names that count devices, and for each name the device families."""
    return {SLOT: tuple(FAMILIES)} | {
        name: resource.families
        for name, resource in resources(config).items()
        if resource.bound is not None and resource.bound.counts in (SHARES, ENTIRE)
    }


def families_of(names: Collection[str], config: DialectConfig) -> tuple[str, ...]:
    """Return the device families that these resource names request, sorted."""
    known = resources(config)
    return tuple(
        sorted({family for name in names if name in known for family in known[name].families})
    )
