"""What a pod needs of a node beside amounts: selector, affinity and tolerations.

Invariant: an expression that Kubernetes would refuse is refused here, so that a filter only ever
meets well-formed ones.
"""

from typing import Any, cast, get_args, get_type_hints

from apportion.core.dialects.errors import ManifestError
from apportion.core.manifests import kube
from apportion.core.manifests.document import texts
from apportion_schemas import NodeExpression, PreferredTerm, Toleration

SELECTOR_MAX = 64
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_OPERATORS = get_args(get_type_hints(NodeExpression)["operator"])
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
    """Terms of required node affinity, one of which must hold.

    Raises:
        ManifestError: a term is empty, or an expression is malformed.
    """
    terms = spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    field = f"{field}.affinity.nodeAffinity.{_REQUIRED}"
    found = [
        _term(term, f"{field}[{i}]")
        for i, term in enumerate(terms.node_selector_terms if terms else ())
    ]
    if () in found:
        raise ManifestError(
            f"{field}[{found.index(())}]", None, "is empty and matches no node", "remove it"
        )
    return tuple(found)


def preferred(spec: kube.PodSpec, field: str) -> tuple[PreferredTerm, ...]:
    """Terms of preferred node affinity with their weights; an empty one prefers nothing.

    Raises:
        ManifestError: an expression is malformed.
    """
    terms = spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    field = f"{field}.affinity.nodeAffinity.{_PREFERRED}"
    weighted = (
        (term.weight, _term(term.preference, f"{field}[{i}].preference"))
        for i, term in enumerate(terms)
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


def _term(term: kube.NodeTerm, field: str) -> tuple[NodeExpression, ...]:
    return tuple(
        _expression(expression, f"{field}.matchExpressions[{i}]")
        for i, expression in enumerate(term.match_expressions)
    )


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
