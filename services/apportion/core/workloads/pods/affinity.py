"""Read a pod's affinity, anti-affinity and topology spread into constraints on other pods.

A term without namespaces selects the pod's own namespace, which is added to the term, so that
events are self-contained. Invariant: a constraint that Kubernetes refuses is refused here. So is a
term that needs facts about the cluster that the ledger lacks."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, cast, get_args, get_type_hints

from apportion.core.workloads import kube
from apportion.core.workloads.document import ManifestError, dns_label, texts
from apportion.core.workloads.pods.node_needs import check_expression
from apportion_schemas import (
    LabelExpression,
    NodeExpression,
    PodConstraints,
    PodSelector,
    PodTerm,
    PreferredPodTerm,
    Shape,
    SpreadConstraint,
)

LABELS_MAX = 256
EXPRESSIONS_MAX = 64
NAMESPACES_MAX = 64
NO_WISHES = Shape().pods  # the default itself, which an event omits
_OPERATORS = get_args(get_type_hints(LabelExpression)["operator"])
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_SPREAD = "topologySpreadConstraints"
# an expression without values, which no pod matches: a missing `labelSelector`
NO_POD = LabelExpression(key="app", operator="In")


class Own(NamedTuple):
    """The namespace and labels of the pod that is being read."""

    namespace: str
    labels: dict[str, str]


def labels_of(metadata: kube.Metadata, field: str) -> dict[str, str]:
    """Return a pod's labels. Raises ManifestError if there are too many, or one is not text."""
    if len(metadata.labels) > LABELS_MAX:
        problem, fix = f"has {len(metadata.labels)} labels", f"use at most {LABELS_MAX} labels"
        raise ManifestError(field, None, problem, fix)
    return texts(metadata.labels, field)


def wishes(spec: kube.PodSpec, field: str, own: Own) -> PodConstraints:
    """Return the pod's affinity, anti-affinity and topology spread. Raises ManifestError."""
    near, apart = spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity
    affinity, anti = f"{field}.affinity.podAffinity", f"{field}.affinity.podAntiAffinity"
    found = PodConstraints(
        affinity=_together(tuple(_required(near, affinity, own)), f"{affinity}.{_REQUIRED}"),
        anti_affinity=tuple(_required(apart, anti, own)),
        preferred=(*_preferred(near, affinity, own, 1), *_preferred(apart, anti, own, -1)),
        spread=tuple(
            _spread(each, f"{field}.{_SPREAD}[{i}]", own)
            for i, each in enumerate(spec.topology_spread_constraints)
        ),
    )
    return NO_WISHES if found == NO_WISHES else found


def _required(part: kube.PodAffinity, field: str, own: Own) -> Iterator[PodTerm]:
    for i, term in enumerate(part.required_during_scheduling_ignored_during_execution):
        yield _term(term, f"{field}.{_REQUIRED}[{i}]", own)


def _preferred(
    part: kube.PodAffinity, field: str, own: Own, sign: int
) -> Iterator[PreferredPodTerm]:
    for i, each in enumerate(part.preferred_during_scheduling_ignored_during_execution):
        term = _term(each.pod_affinity_term, f"{field}.{_PREFERRED}[{i}].podAffinityTerm", own)
        yield PreferredPodTerm(weight=sign * each.weight, term=term)


# In Kubernetes a pod counts for required affinity only if it matches the selectors of all terms.
def _together(terms: tuple[PodTerm, ...], field: str) -> tuple[PodTerm, ...]:
    if len({term.pods for term in terms}) <= 1:
        return terms
    by_label = {(term.pods.namespaces, term.pods.by_label) for term in terms}
    if len(by_label) > 1 and any(labels for _, labels in by_label):
        problem = "has terms that select different namespaces by their labels"
        fix = "use the same namespaces and namespaceSelector in all terms"
        raise ManifestError(field, None, problem, fix)
    # A term without namespaces selects all of them.
    named = [set(term.pods.namespaces) for term in terms if term.pods.namespaces]
    namespaces = tuple(sorted(set.intersection(*named))) if named else ()
    if named and not namespaces:
        problem = "has terms without a common namespace, so no pod can match all of them"
        raise ManifestError(field, None, problem, "list a common namespace in all terms")
    expressions = tuple(
        dict.fromkeys(expression for term in terms for expression in term.pods.expressions)
    )
    if len(expressions) > EXPRESSIONS_MAX:
        raise _too_many(len(expressions), field)
    chosen = terms[0].pods.by_label
    pods = PodSelector(expressions=expressions, namespaces=namespaces, by_label=chosen)
    return tuple(PodTerm(pods=pods, topology_key=term.topology_key) for term in terms)


def _term(term: kube.PodAffinityTerm, field: str, own: Own) -> PodTerm:
    found = _selector(term.label_selector, field, own, term.match_label_keys)
    found += _own_labels("NotIn", term.mismatch_label_keys, own)
    _bounded(found, f"{field}.labelSelector")
    selector = term.namespace_selector
    by_label: tuple[LabelExpression, ...] = ()
    namespaces: tuple[str, ...] = ()  # an empty selector: all namespaces
    if selector is None or selector.match_labels or selector.match_expressions:
        if len(term.namespaces) > NAMESPACES_MAX:
            problem = f"has {len(term.namespaces)} names"
            fix = f"use at most {NAMESPACES_MAX} names"
            raise ManifestError(f"{field}.namespaces", None, problem, fix)
        named = {dns_label(n, f"{field}.namespaces[{i}]") for i, n in enumerate(term.namespaces)}
        namespaces = tuple(sorted(named)) or (() if selector is not None else (own.namespace,))
    if selector is not None:
        by_label = expressions(selector, f"{field}.namespaceSelector")
    pods = PodSelector(expressions=found, namespaces=namespaces, by_label=by_label)
    return PodTerm(pods=pods, topology_key=term.topology_key)


def _spread(each: kube.TopologySpread, field: str, own: Own) -> SpreadConstraint:
    for name, value in (
        ("nodeAffinityPolicy", each.node_affinity_policy),
        ("nodeTaintsPolicy", each.node_taints_policy),
    ):
        if value not in {"Honor", "Ignore"}:
            raise ManifestError(f"{field}.{name}", value, "is not valid", "write Honor or Ignore")
    if each.when_unsatisfiable not in {"DoNotSchedule", "ScheduleAnyway"}:
        problem, fix = "is not valid", "write one of DoNotSchedule, ScheduleAnyway"
        raise ManifestError(f"{field}.whenUnsatisfiable", each.when_unsatisfiable, problem, fix)
    # For kube-scheduler an empty selector matches no pod (`selector.Empty()`), like a missing one.
    found = _selector(each.label_selector, field, own, each.match_label_keys) or (NO_POD,)
    return SpreadConstraint(
        pods=PodSelector(expressions=found, namespaces=(own.namespace,)),
        topology_key=each.topology_key,
        max_skew=each.max_skew,
        required=each.when_unsatisfiable == "DoNotSchedule",
        min_domains=each.min_domains,
        any_node=each.node_affinity_policy == "Ignore",
        untainted=each.node_taints_policy == "Honor",
    )


def _selector(
    selector: kube.LabelSelector | None, field: str, own: Own, keys: list[str]
) -> tuple[LabelExpression, ...]:
    at = f"{field}.labelSelector"
    if selector is None:
        return (NO_POD,)
    return _bounded((*expressions(selector, at), *_own_labels("In", keys, own)), at)


def expressions(selector: kube.LabelSelector, field: str) -> tuple[LabelExpression, ...]:
    """Return the expressions of a label selector, in a fixed order.

    Raises ManifestError if an operator is unknown or has the wrong number of values."""
    labels = texts(selector.match_labels, f"{field}.matchLabels")
    found = [
        LabelExpression(key=key, operator="In", values=(labels[key],)) for key in sorted(labels)
    ]
    for i, each in enumerate(selector.match_expressions):
        check_expression(each, f"{field}.matchExpressions[{i}]", _OPERATORS)
        operator, values = cast("Any", each.operator), tuple(each.values)
        found.append(LabelExpression(key=each.key, operator=operator, values=values))
    return _bounded(tuple(found), field)


def _own_labels(
    operator: Literal["In", "NotIn"], keys: list[str], own: Own
) -> tuple[LabelExpression, ...]:
    # `matchLabelKeys` and `mismatchLabelKeys`: keys that the pod lacks are skipped. Newer API
    # servers write the same expressions into the selector.
    return tuple(
        LabelExpression(key=key, operator=operator, values=(own.labels[key],))
        for key in sorted(set(keys))
        if key in own.labels
    )


def _bounded(found: tuple[LabelExpression, ...], field: str) -> tuple[LabelExpression, ...]:
    once = tuple(dict.fromkeys(found))
    if len(once) > EXPRESSIONS_MAX:
        raise _too_many(len(once), field)
    return once


def _too_many(count: int, field: str) -> ManifestError:
    problem, fix = f"has {count} expressions", f"use at most {EXPRESSIONS_MAX} expressions"
    return ManifestError(field, None, problem, fix)


def meet(labels: Mapping[str, str], expressions: Iterable[LabelExpression]) -> bool:
    """Return True if the labels match every expression; no expression matches all.

    Source: Kubernetes' `LabelSelector`."""
    return all(holds(each, labels.get(each.key)) for each in expressions)


def holds(expression: LabelExpression | NodeExpression, value: str | None) -> bool:
    """Return True if the expression matches the value; pass None if the label is missing."""
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":  # they compare integers; any other value does not match
            try:
                left, right = int(value or ""), int(expression.values[0])
            except (ValueError, IndexError):
                return False
            return left > right if expression.operator == "Gt" else left < right
