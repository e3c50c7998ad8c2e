"""What a pod needs of a node beside amounts: selector, affinity and tolerations.

Invariant: an expression that Kubernetes would refuse is refused here, so that a filter only ever
meets well-formed ones.
"""

from typing import Any, cast, get_args, get_type_hints

from msgspec import structs

from apportion.core.workloads import kube
from apportion.core.workloads.dialects.errors import ManifestError
from apportion.core.workloads.document import texts
from apportion_schemas import HostPort, NodeExpression, PreferredTerm, Toleration

SELECTOR_MAX = 64
NAME_FIELD = "metadata.name"
PORTS_MAX = 256
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_OPERATORS = get_args(get_type_hints(NodeExpression)["operator"])
HIGHEST_PORT = 65535
ADDRESS_MAX = 64
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - what manifests say, nobody listens there
_PROTOCOLS = get_args(get_type_hints(HostPort)["protocol"])
_EFFECTS = get_args(get_type_hints(Toleration)["effect"])


def selector(spec: kube.PodSpec, field: str) -> dict[str, str]:
    """`nodeSelector`.

    Raises:
        ManifestError: too long, or a value is not text.
    """
    field = f"{field}.nodeSelector"
    if len(spec.node_selector) > SELECTOR_MAX:
        raise ManifestError(field, spec.node_selector, "is too long", f"at most {SELECTOR_MAX}")
    return texts(spec.node_selector, field)


def required(spec: kube.PodSpec, field: str) -> tuple[tuple[NodeExpression, ...], ...]:
    """Terms of required node affinity, one of which must hold; an empty one matches no node.

    Raises:
        ManifestError: an expression is malformed.
    """
    terms = spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    field = f"{field}.affinity.nodeAffinity.{_REQUIRED}"
    return tuple(
        term(each, f"{field}[{i}]")
        for i, each in enumerate(terms.node_selector_terms if terms else ())
    )


def preferred(spec: kube.PodSpec, field: str) -> tuple[PreferredTerm, ...]:
    """Terms of preferred node affinity with their weights; an empty one prefers nothing.

    Raises:
        ManifestError: an expression is malformed.
    """
    terms = spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    field = f"{field}.affinity.nodeAffinity.{_PREFERRED}"
    weighted = (
        (each.weight, term(each.preference, f"{field}[{i}].preference"))
        for i, each in enumerate(terms)
    )
    return tuple(PreferredTerm(weight=weight, term=term) for weight, term in weighted if term)


def tolerations(spec: kube.PodSpec, field: str) -> tuple[Toleration, ...]:
    """`tolerations`.

    Raises:
        ManifestError: an operator or effect is unknown, or a key is missing.
    """
    return tuple(
        _toleration(toleration, f"{field}.tolerations[{i}]")
        for i, toleration in enumerate(spec.tolerations)
    )


def ports(spec: kube.PodSpec, field: str) -> tuple[HostPort, ...]:
    """`ports[].hostPort` of containers and sidecars, and all ports of a pod on the host's network.

    As kube-scheduler counts them: an init container that ends takes none.

    Raises:
        ManifestError: a port or protocol is unknown, or there are too many.
    """
    found: dict[HostPort, None] = {}
    sidecars = ((i, c) for i, c in enumerate(spec.init_containers) if c.restart_policy == "Always")
    for kind, group in (("initContainers", sidecars), ("containers", enumerate(spec.containers))):
        for i, container in group:
            for j, port in enumerate(container.ports):
                number = port.host_port or (port.container_port if spec.host_network else 0)
                if number:
                    at = f"{field}.{kind}[{i}].ports[{j}]"
                    found[_port(port, number, at)] = None
    if len(found) > PORTS_MAX:
        raise ManifestError(
            f"{field}.containers", None, "takes too many host ports", f"{PORTS_MAX}"
        )
    return tuple(found)


def _port(port: kube.Port, number: int, field: str) -> HostPort:
    if not 0 < number <= HIGHEST_PORT:
        raise ManifestError(f"{field}.hostPort", number, "is no port", "write 1 to 65535")
    if port.protocol not in _PROTOCOLS:
        raise _choice(f"{field}.protocol", port.protocol, _PROTOCOLS)
    address = "" if port.host_ip in ANY_ADDRESS else port.host_ip
    if len(address) > ADDRESS_MAX:
        raise ManifestError(f"{field}.hostIP", address, "is no address", "write an IP address")
    return HostPort(port=number, protocol=cast("Any", port.protocol), ip=address)


def term(wanted: kube.NodeTerm, field: str) -> tuple[NodeExpression, ...]:
    """One term of a node selector, all of which must hold.

    Raises:
        ManifestError: an expression is malformed.
    """
    labels = [
        _expression(expression, f"{field}.matchExpressions[{i}]")
        for i, expression in enumerate(wanted.match_expressions)
    ]
    fields = [
        _of_field(expression, f"{field}.matchFields[{i}]")
        for i, expression in enumerate(wanted.match_fields)
    ]
    return (*labels, *fields)


def _of_field(expression: kube.Expression, field: str) -> NodeExpression:
    """`matchFields`, of which Kubernetes knows one field and two operators, with one value."""
    if expression.key != NAME_FIELD:
        raise ManifestError(f"{field}.key", expression.key, "is unknown", f"write {NAME_FIELD}")
    if expression.operator not in {"In", "NotIn"}:
        raise _choice(f"{field}.operator", expression.operator, ("In", "NotIn"))
    if len(expression.values) != 1:
        raise ManifestError(f"{field}.values", expression.values, "is not one name", "name one")
    return structs.replace(_expression(expression, field), of_field=True)


def _expression(expression: kube.Expression, field: str) -> NodeExpression:
    operator, values = expression.operator, expression.values
    if operator not in _OPERATORS:
        raise _choice(f"{field}.operator", operator, _OPERATORS)
    if operator in {"In", "NotIn"} and not values:
        raise ManifestError(f"{field}.values", values, "is empty", "name at least one value")
    if operator in {"Exists", "DoesNotExist"} and values:
        raise ManifestError(f"{field}.values", values, f"means nothing to {operator}", "remove it")
    if operator in {"Gt", "Lt"} and not (len(values) == 1 and _is_integer(values[0])):
        raise ManifestError(f"{field}.values", values, "is not one number", "write one number")
    return NodeExpression(key=expression.key, operator=cast("Any", operator), values=tuple(values))


def _is_integer(value: str) -> bool:
    return value.isascii() and value.removeprefix("-").isdecimal() and len(value) <= 19  # noqa: PLR2004  int64


def _toleration(toleration: kube.TolerationSpec, field: str) -> Toleration:
    operator = toleration.operator or "Equal"
    if operator not in {"Exists", "Equal"}:
        raise _choice(f"{field}.operator", operator, ("Exists", "Equal"))
    if toleration.effect not in _EFFECTS:
        raise _choice(f"{field}.effect", toleration.effect, _EFFECTS)
    if not toleration.key and operator != "Exists":
        raise ManifestError(f"{field}.key", "", "is empty", "name a taint, or use Exists")
    if toleration.value and operator == "Exists":
        raise ManifestError(
            f"{field}.value", toleration.value, "means nothing to Exists", "remove it"
        )
    return Toleration(
        key=toleration.key,
        operator=cast("Any", operator),
        value=toleration.value,
        effect=cast("Any", toleration.effect),
    )


def _choice(field: str, value: str, choices: tuple[str, ...]) -> ManifestError:
    return ManifestError(
        field, value, "is unknown", f"write one of {', '.join(filter(None, choices))}"
    )
