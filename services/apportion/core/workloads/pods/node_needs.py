"""Read what a pod needs of its node: amounts, selector, affinity, tolerations, ports, disks.

Amounts add up as in Kubernetes, with init containers, sidecars and overhead. Disks without a claim
follow kube-scheduler's VolumeRestrictions; other volumes restrict no node. Invariant: sums are
exact and rounded up once, and expressions that Kubernetes would refuse are refused."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from operator import add
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_type_hints

import msgspec
from msgspec import structs

from apportion.core.workloads import kube
from apportion.core.workloads.dialects import Container
from apportion.core.workloads.dialects.amounts import AMOUNT_MAX, amount_of, quantity
from apportion.core.workloads.document import ManifestError, texts, within
from apportion_schemas import (
    Disk,
    HostPort,
    NodeConstraints,
    NodeExpression,
    PreferredTerm,
    Toleration,
    quantities,
)
from apportion_schemas.quantities import CPU_MILLI_MAX, HOST_MEMORY_MIB_MAX

EXTENDED_MAX = 64
_MIB = 1 << 20
_OF_PODS = ("cpu", "memory")
NOTHING = Container("", "spec", {}, {})
_FRACTIONAL = ("cpu", "memory", "ephemeral-storage")

_Vector = dict[str, Fraction]


def node_amounts(
    containers: Sequence[Container],
    overhead: Mapping[str, object],
    *,
    field: str,
    claimed: frozenset[str],
    whole: Container = NOTHING,
) -> NodeConstraints:
    """Return how much of each resource the pod needs from its node, except devices (`claimed`).

    CPU is in milli-cores, memory in MiB, storage and huge pages in bytes, other resources in units.
    The pod's own resources (`whole`) override the sum of its containers, as in Kubernetes 1.34.
    Raises ManifestError if an amount is malformed or out of range, or a request exceeds its
    limit."""
    running: _Vector = {}
    sidecars: _Vector = {}
    peak: _Vector = {}
    for container in containers:
        needs = _requests(container, claimed)
        if container.role == "init":
            peak = _combined(max, peak, _combined(add, needs, sidecars))
        elif container.role == "sidecar":
            sidecars = _combined(add, sidecars, needs)
        else:
            running = _combined(add, running, needs)
    extra = {
        name: quantity(amount, within(f"{field}.overhead", name))
        for name, amount in overhead.items()
        if name not in claimed
    }
    kinds: tuple[Literal["limits", "requests"], ...] = ("limits", "requests")
    for kind in kinds:
        for name in getattr(whole, kind):
            if name in claimed or not (name in _OF_PODS or name.startswith("hugepages-")):
                problem = "can be requested only by containers"
                fix = "move it to the resources of a container"
                raise ManifestError(whole.at(kind, name), None, problem, fix)
    total = _combined(max, _combined(add, running, sidecars), peak) | _requests(whole, claimed)
    total = _combined(add, total, extra)
    field = f"{field}.containers"
    cpu_milli = math.ceil(total.pop("cpu", Fraction()) * 1000)
    memory_mib = math.ceil(total.pop("memory", Fraction()) / _MIB)
    if cpu_milli > CPU_MILLI_MAX or memory_mib > HOST_MEMORY_MIB_MAX:
        problem = "is more than any node has"
        fix = f"request at most {CPU_MILLI_MAX // 1000} CPUs and {HOST_MEMORY_MIB_MAX >> 10} GiB"
        raise ManifestError(field, f"{cpu_milli}m CPU, {memory_mib} MiB", problem, fix)
    extended = {name: math.ceil(amount) for name, amount in sorted(total.items()) if amount}
    if len(extended) > EXTENDED_MAX or any(n > AMOUNT_MAX for n in extended.values()):
        fix = f"request at most {EXTENDED_MAX} extended resources, each up to {AMOUNT_MAX}"
        raise ManifestError(field, extended, "requests too many or too large amounts", fix)
    return NodeConstraints(cpu_milli=cpu_milli, memory_mib=memory_mib, extended=extended)


def _requests(container: Container, claimed: frozenset[str]) -> _Vector:
    needs: _Vector = {}
    for name in {**container.limits, **container.requests}:
        if name in claimed:
            continue
        if name not in _FRACTIONAL and not name.startswith("hugepages-"):
            if "/" not in name:
                fix = "write cpu, memory, or a name with a domain such as nvidia.com/gpu"
                raise ManifestError(
                    f"{container.field}.resources", name, "is not a resource name", fix
                )
            needs[name] = Fraction(amount_of(container, name).value)
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


def _combined(
    take: Callable[[Fraction, Fraction], Fraction], left: _Vector, right: _Vector
) -> _Vector:
    zero = Fraction()
    return {name: take(left.get(name, zero), right.get(name, zero)) for name in {**left, **right}}


SELECTOR_MAX = 64
NAME_FIELD = "metadata.name"
PORTS_MAX = 256
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_OPERATORS = get_args(get_type_hints(NodeExpression)["operator"])
HIGHEST_PORT = 65535
INT64_CHARS_MAX = 19
ADDRESS_MAX = 64
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - values in manifests; nothing listens there
_PROTOCOLS = get_args(get_type_hints(HostPort)["protocol"])
_EFFECTS = get_args(get_type_hints(Toleration)["effect"])


def selector(spec: kube.PodSpec, field: str) -> dict[str, str]:
    """Return the pod's `nodeSelector`. Raises ManifestError if it is too large or not text."""
    field = f"{field}.nodeSelector"
    if len(spec.node_selector) > SELECTOR_MAX:
        problem = f"has {len(spec.node_selector)} labels"
        raise ManifestError(field, None, problem, f"use at most {SELECTOR_MAX} labels")
    return texts(spec.node_selector, field)


def required(spec: kube.PodSpec, field: str) -> tuple[tuple[NodeExpression, ...], ...]:
    """Return the terms of required node affinity; one of them must match.

    An empty term matches no node. Raises ManifestError if an expression is malformed."""
    terms = spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    field = f"{field}.affinity.nodeAffinity.{_REQUIRED}"
    return tuple(
        term(each, f"{field}[{i}]")
        for i, each in enumerate(terms.node_selector_terms if terms else ())
    )


def preferred(spec: kube.PodSpec, field: str) -> tuple[PreferredTerm, ...]:
    """Return the non-empty terms of preferred node affinity, with weights. Raises ManifestError."""
    terms = spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    field = f"{field}.affinity.nodeAffinity.{_PREFERRED}"
    weighted = (
        (each.weight, term(each.preference, f"{field}[{i}].preference"))
        for i, each in enumerate(terms)
    )
    return tuple(PreferredTerm(weight=weight, term=term) for weight, term in weighted if term)


def tolerations(spec: kube.PodSpec, field: str) -> tuple[Toleration, ...]:
    """Return the pod's `tolerations`. Raises ManifestError if one is not valid."""
    found = []
    for i, each in enumerate(spec.tolerations):
        at, operator = f"{field}.tolerations[{i}]", each.operator or "Equal"
        if operator not in {"Exists", "Equal"}:
            raise _choice(f"{at}.operator", operator, ("Exists", "Equal"))
        if each.effect not in _EFFECTS:
            raise _choice(f"{at}.effect", each.effect, _EFFECTS)
        if not each.key and operator != "Exists":
            raise ManifestError(f"{at}.key", "", "is empty", "name a taint, or use operator Exists")
        if each.value and operator == "Exists":
            raise ManifestError(f"{at}.value", each.value, "has no effect with Exists", "remove it")
        found.append(
            Toleration(
                key=each.key,
                operator=cast("Any", operator),
                value=each.value,
                effect=cast("Any", each.effect),
            )
        )
    return tuple(found)


def ports(spec: kube.PodSpec, field: str) -> tuple[HostPort, ...]:
    """Return the host ports that the pod's containers and sidecars take.

    They are `ports[].hostPort`, or all ports of a pod on the host network. As in kube-scheduler, an
    init container takes none. Raises ManifestError if a port or protocol is invalid, or there are
    too many."""
    found: dict[HostPort, None] = {}
    sidecars = ((i, c) for i, c in enumerate(spec.init_containers) if c.restart_policy == "Always")
    for kind, group in (("initContainers", sidecars), ("containers", enumerate(spec.containers))):
        for i, container in group:
            for j, port in enumerate(container.ports):
                number = port.host_port or (port.container_port if spec.host_network else 0)
                if number:
                    at = f"{field}.{kind}[{i}].ports[{j}]"
                    if not 0 < number <= HIGHEST_PORT:
                        problem = "is not a port number"
                        raise ManifestError(f"{at}.hostPort", number, problem, "write 1 to 65535")
                    if port.protocol not in _PROTOCOLS:
                        raise _choice(f"{at}.protocol", port.protocol, _PROTOCOLS)
                    address = "" if port.host_ip in ANY_ADDRESS else port.host_ip
                    if len(address) > ADDRESS_MAX:
                        problem, fix = "is not an IP address", "write one"
                        raise ManifestError(f"{at}.hostIP", address, problem, fix)
                    protocol = cast("Any", port.protocol)
                    found[HostPort(port=number, protocol=protocol, ip=address)] = None
    if len(found) > PORTS_MAX:
        problem, fix = f"uses {len(found)} host ports", f"use at most {PORTS_MAX} host ports"
        raise ManifestError(f"{field}.containers", None, problem, fix)
    return tuple(found)


def term(wanted: kube.NodeTerm, field: str) -> tuple[NodeExpression, ...]:
    """Return a node selector term's expressions, which must all match. Raises ManifestError."""
    labels = [
        _expression(expression, f"{field}.matchExpressions[{i}]")
        for i, expression in enumerate(wanted.match_expressions)
    ]
    fields = []
    for i, each in enumerate(wanted.match_fields):
        # In `matchFields` Kubernetes allows one field and two operators, with one value.
        at = f"{field}.matchFields[{i}]"
        if each.key != NAME_FIELD:
            raise ManifestError(f"{at}.key", each.key, "is not supported", f"write {NAME_FIELD}")
        if each.operator not in {"In", "NotIn"}:
            raise _choice(f"{at}.operator", each.operator, ("In", "NotIn"))
        if len(each.values) != 1:
            raise ManifestError(f"{at}.values", each.values, "must be one name", "name one node")
        fields.append(structs.replace(_expression(each, at), of_field=True))
    return (*labels, *fields)


def _expression(expression: kube.Expression, field: str) -> NodeExpression:
    operator, values = expression.operator, expression.values
    check_expression(expression, field, _OPERATORS)
    if operator in {"Gt", "Lt"}:
        (number,) = values if len(values) == 1 else ("",)
        digits = number.isascii() and number.removeprefix("-").isdecimal()
        if not digits or len(number) > INT64_CHARS_MAX:
            raise ManifestError(f"{field}.values", values, "must be one number", "write one number")
    return NodeExpression(key=expression.key, operator=cast("Any", operator), values=tuple(values))


def check_expression(expression: kube.Expression, field: str, operators: tuple[str, ...]) -> None:
    """Raise ManifestError for a label expression that Kubernetes would refuse.

    The expression must have one of the `operators`, and as many values as that operator takes."""
    operator, values = expression.operator, expression.values
    if operator not in operators:
        raise _choice(f"{field}.operator", operator, operators)
    if operator in {"In", "NotIn"} and not values:
        raise ManifestError(f"{field}.values", values, "is empty", "write at least one value")
    if operator in {"Exists", "DoesNotExist"} and values:
        raise ManifestError(
            f"{field}.values", values, f"has no effect with {operator}", "remove it"
        )


def _choice(field: str, value: str, choices: tuple[str, ...]) -> ManifestError:
    fix = f"write one of {', '.join(filter(None, choices))}"
    return ManifestError(field, value, "is not valid", fix)


CLAIMS_MAX, DISKS_MAX = 256, 256
DISK_NAME_MAX = 1024
CLAIM_NAME_MAX: Final = quantities.NAME_MAX
# prefix of a generic ephemeral volume's claim; the pod's name is put before it
OWN_CLAIM: Final = "-"


def claims(volumes: Iterable[kube.Volume]) -> tuple[str, ...]:
    """Return the sorted names of the claims in `volumes`.

    For a generic ephemeral volume, the pod's name at the beginning of the claim's name is left out.
    """
    found: set[str] = set()
    for volume in volumes:
        if volume.persistent_volume_claim is not None:
            found.add(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            found.add(f"{OWN_CLAIM}{volume.name}")
    return tuple(sorted(found))


def whole_names(pod: str, found: Iterable[str]) -> tuple[str, ...]:
    """Return the full names of the claims of a pod named `pod`, without names that are too long."""
    names = (pod + claim if claim.startswith(OWN_CLAIM) else claim for claim in found)
    return tuple(name for name in names if len(name) <= CLAIM_NAME_MAX)


class Mounted(NamedTuple):
    """The claims and disks that a pod mounts."""

    claims: tuple[str, ...] = ()
    disks: tuple[Disk, ...] = ()


def mounted(volumes: Any) -> Mounted:
    """Return the claims and disks that a running pod mounts, as far as they can be read."""
    try:
        found = msgspec.convert(volumes or [], list[kube.Volume])
    except msgspec.ValidationError:
        return Mounted()
    names = claims(found)[:CLAIMS_MAX]
    try:
        return Mounted(names, disks(found, "spec"))
    except ManifestError:
        return Mounted(names)


def disks(volumes: list[kube.Volume], field: str) -> tuple[Disk, ...]:
    """Return the disks in `volumes` that have no claim. A Ceph image counts once per monitor.

    Raises ManifestError if a name is too long, or there are too many."""
    found: dict[Disk, None] = {}
    for i, volume in enumerate(volumes):
        for disk in _disks_of(volume):
            if len(disk.name) > DISK_NAME_MAX:
                at = f"{field}.volumes[{i}]"
                fix = f"use at most {DISK_NAME_MAX} characters"
                raise ManifestError(at, disk.name, "is too long", fix)
            found[disk] = None
    if len(found) > DISKS_MAX:
        raise ManifestError(f"{field}.volumes", None, "has too many disks", f"use {DISKS_MAX}")
    return tuple(found)


def _disks_of(volume: kube.Volume) -> Iterator[Disk]:
    if (google := volume.gce_persistent_disk) is not None:
        yield Disk(name=f"gce/{google.pd_name}", read_only=google.read_only)
    if (amazon := volume.aws_elastic_block_store) is not None:
        yield Disk(name=f"aws/{amazon.volume_id}")  # never shared, not even read-only
    if (target := volume.iscsi) is not None:
        yield Disk(name=f"iscsi/{target.iqn}", read_only=target.read_only)
    if (ceph := volume.rbd) is not None:
        for monitor in ceph.monitors:
            name = f"rbd/{monitor}/{ceph.pool}/{ceph.image}"
            yield Disk(name=name, read_only=ceph.read_only)
