"""The list of dialects, and what follows from all of them together.

To add one: a module beside this one that makes a `DIALECT`, and its row here. Invariant: of two
dialects that claim one name under a configuration, the one that is listed first is preferred."""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.workloads.dialects import (
    ascend,
    cambricon,
    hami,
    plain,
    vcuda,
    volcano_share,
    volcano_vgpu,
)
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

DIALECTS: tuple[Dialect, ...] = (
    plain.DIALECT,
    hami.DIALECT,
    ascend.DIALECT,
    cambricon.DIALECT,
    volcano_vgpu.DIALECT,
    volcano_share.DIALECT,
    *vcuda.DIALECTS,
)
"""In the order in which names that several of them have are given away, and in which annotations of
bound pods are looked at.
"""
RESERVED: Mapping[str, str] = {
    key: problem for dialect in DIALECTS for key, problem in dialect.reserved.items()
}
"""The annotations that are for the pods of some dialect alone, with what is wrong elsewhere."""
RECOVERS: Mapping[str, Recover] = {
    key: read for dialect in DIALECTS for key, read in dialect.recover.items()
}
"""How what a bound pod holds is read, by annotation, in the order in which they are tried."""
NEEDS: Mapping[str, tuple[str, str]] = {
    name: need for dialect in DIALECTS for name, need in dialect.needs.items()
}
"""Resources that are of use only beside another: that one, and why."""
WRITES: tuple[str, ...] = tuple(prefix for dialect in DIALECTS for prefix in dialect.writes)
"""How annotations begin that some system's scheduler and plugin write on pods."""
SECTIONS: Mapping[str, Callable[[object, str], str]] = {
    name: check for dialect in DIALECTS for name, check in dialect.sections.items()
}
"""The sections of HAMi's and Volcano's configuration files that dialects check."""


def named(name: str) -> Dialect | None:
    """The dialect that the ledger calls so."""
    return next((dialect for dialect in DIALECTS if dialect.name == name), None)


def render(it: PlacedPod) -> dict[str, str]:
    """The annotations that the pod's own system would have written; none for a foreign dialect."""
    dialect = named(it.pod.dialect) if it.placed.shares else None
    return dialect.render(it) if dialect else {}


@lru_cache(maxsize=8)
def claims(config: DialectConfig) -> Mapping[str, tuple[Dialect, ...]]:
    """Every resource name that is about devices, with the dialects that claim it, in order."""
    found: dict[str, tuple[Dialect, ...]] = {}
    for dialect in DIALECTS:
        for name in dialect.resources(config):
            found[name] = (*found.get(name, ()), dialect)
    return found


@lru_cache(maxsize=8)
def claimed(config: DialectConfig) -> frozenset[str]:
    """Every resource name that is about devices, that of a slot among them."""
    return frozenset(claims(config)) | {SLOT}


@lru_cache(maxsize=8)
def resources(config: DialectConfig) -> Mapping[str, Resource]:
    """What every resource name that is about devices means; where several claim one, the last."""
    return {name: several[-1] for name, several in meanings(config).items()}


@lru_cache(maxsize=8)
def meanings(config: DialectConfig) -> Mapping[str, tuple[Resource, ...]]:
    """What every resource name means to each dialect that claims it, in order."""
    return {
        name: tuple(dialect.resources(config)[name] for dialect in dialects)
        for name, dialects in claims(config).items()
    }


@lru_cache(maxsize=8)
def domains(config: DialectConfig) -> tuple[str, ...]:
    """How the names of extended resources begin by which a node of Kubernetes offers devices."""
    return tuple(sorted({f"{name.partition('/')[0]}/" for name in claims(config)}))


@lru_cache(maxsize=8)
def count_names(config: DialectConfig) -> Mapping[str, tuple[str, ...]]:
    """The names that count devices, each with its families, and that of a slot, which is of all: a
    device plugin registers these."""
    return {SLOT: tuple(FAMILIES)} | {
        name: resource.families
        for name, resource in resources(config).items()
        if resource.bound is not None and resource.bound.counts in (SHARES, ENTIRE)
    }


def families_of(names: Collection[str], config: DialectConfig) -> tuple[str, ...]:
    """The families of devices that these of the claimed names are about, in order."""
    known = resources(config)
    return tuple(
        sorted({family for name in names if name in known for family in known[name].families})
    )
