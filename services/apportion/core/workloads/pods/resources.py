"""What a pod needs of a node's CPU, memory and extended resources, all containers together.

The sum is the one Kubernetes makes: the containers and sidecars that run at once, or the neediest
init container with the sidecars started before it, whichever is more, plus the overhead. Invariant:
sums are exact, and rounded up once, at the end.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from apportion.core.workloads.dialects import Container
from apportion.core.workloads.dialects.amounts import AMOUNT_MAX, amount_of, quantity
from apportion.core.workloads.dialects.errors import ManifestError, within
from apportion_schemas.quantities import CPU_MILLI_MAX, HOST_MEMORY_MIB_MAX

EXTENDED_MAX = 64
_MIB = 1 << 20
_OF_PODS = ("cpu", "memory")
NOTHING = Container("", "spec", {}, {})
_FRACTIONAL = ("cpu", "memory", "ephemeral-storage")

_Vector = dict[str, Fraction]


class NodeAmounts(NamedTuple):
    """What is needed of the node; `extended` counts units, and bytes of storage and huge pages."""

    cpu_milli: int
    memory_mib: int
    extended: dict[str, int]


def node_amounts(
    containers: Sequence[Container],
    overhead: Mapping[str, object],
    *,
    field: str,
    claimed: frozenset[str],
    whole: Container = NOTHING,
) -> NodeAmounts:
    """What the pod whose spec stands at `field` needs; resources in `claimed` are about devices.

    `whole` has the resources of the pod itself (`spec.resources`), which go before the sum over its
    containers, as in Kubernetes 1.34.

    Raises:
        ManifestError: an amount is malformed, a request is above its limit, or the sum is absurd.
    """
    running: _Vector = {}
    sidecars: _Vector = {}
    peak: _Vector = {}
    for container in containers:
        needs = _requests(container, claimed)
        if container.role == "init":
            peak = _most(peak, _sum(needs, sidecars))
        elif container.role == "sidecar":
            sidecars = _sum(sidecars, needs)
        else:
            running = _sum(running, needs)
    extra = {
        name: quantity(amount, within(f"{field}.overhead", name))
        for name, amount in overhead.items()
        if name not in claimed
    }
    total = _most(_sum(running, sidecars), peak) | _of_pod(whole, claimed)
    return _rounded(_sum(total, extra), f"{field}.containers")


def _of_pod(whole: Container, claimed: frozenset[str]) -> _Vector:
    for kind in ("limits", "requests"):
        for name in getattr(whole, kind):
            if name in claimed or not (name in _OF_PODS or name.startswith("hugepages-")):
                raise ManifestError(
                    whole.at("limits" if kind == "limits" else "requests", name),
                    None,
                    "is asked for by containers only",
                    "write it in the resources of a container",
                )
    return _requests(whole, claimed)


def _requests(container: Container, claimed: frozenset[str]) -> _Vector:
    """A container's requests; a limit without a request is the request."""
    needs: _Vector = {}
    for name in {**container.limits, **container.requests}:
        if name in claimed:
            continue
        if name not in _FRACTIONAL and not name.startswith("hugepages-"):
            needs[name] = Fraction(_extended(container, name))
            continue
        limit = name in container.limits and quantity(
            container.limits[name], container.at("limits", name)
        )
        if name not in container.requests:
            needs[name] = Fraction(limit)
            continue
        written, field = container.requests[name], container.at("requests", name)
        needs[name] = quantity(written, field)
        if name in container.limits and needs[name] > limit:
            raise ManifestError(field, written, "is more than the limit", "lower it")
    return needs


def _extended(container: Container, name: str) -> int:
    if "/" not in name:
        raise ManifestError(
            f"{container.field}.resources",
            name,
            "is no resource",
            "write cpu, memory, or a name with its domain, as in nvidia.com/gpu",
        )
    return amount_of(container, name).value


def _sum(left: _Vector, right: _Vector) -> _Vector:
    return {
        name: left.get(name, Fraction()) + right.get(name, Fraction()) for name in {**left, **right}
    }


def _most(left: _Vector, right: _Vector) -> _Vector:
    return {
        name: max(left.get(name, Fraction()), right.get(name, Fraction()))
        for name in {**left, **right}
    }


def _rounded(total: _Vector, field: str) -> NodeAmounts:
    cpu_milli = math.ceil(total.pop("cpu", Fraction()) * 1000)
    memory_mib = math.ceil(total.pop("memory", Fraction()) / _MIB)
    if cpu_milli > CPU_MILLI_MAX or memory_mib > HOST_MEMORY_MIB_MAX:
        raise ManifestError(
            field,
            f"{cpu_milli}m CPU, {memory_mib} MiB",
            "is more than any node has",
            f"ask for at most {CPU_MILLI_MAX // 1000} CPUs and {HOST_MEMORY_MIB_MAX >> 10} GiB",
        )
    extended = {name: math.ceil(amount) for name, amount in sorted(total.items()) if amount}
    if len(extended) > EXTENDED_MAX or any(n > AMOUNT_MAX for n in extended.values()):
        raise ManifestError(
            field, extended, "has too many or too large amounts", f"name at most {EXTENDED_MAX}"
        )
    return NodeAmounts(cpu_milli, memory_mib, extended)
