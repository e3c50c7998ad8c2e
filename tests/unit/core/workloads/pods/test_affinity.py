"""Tests of reading a pod's affinity, anti-affinity and topology spread as kube-scheduler does."""

from typing import Any

import pytest

from apportion.core.workloads.pods.affinity import meet
from apportion_schemas import (
    LabelExpression,
    PodConstraints,
    PodSelector,
    PodTerm,
    PreferredPodTerm,
    Shape,
    SpreadConstraint,
)
from tests.support.manifests import draft, pod, refused

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
WEB = {"matchLabels": {"app": "web"}}
IS_WEB = LabelExpression(key="app", operator="In", values=("web",))
IS_NEW = LabelExpression(key="version", operator="In", values=("2",))


def document(labels: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    made = pod(**spec)
    made["metadata"] |= {"namespace": "team", "labels": labels or {}}
    return made


def wishes(**spec: Any) -> PodConstraints:
    """Return the affinity and spread constraints read from a pod labelled `app: web` and `version:
    2`."""
    return draft(document({"app": "web", "version": "2"}, **spec)).shape.pods


def term(selector: object = WEB, key: str = HOST, **fields: Any) -> dict[str, Any]:
    return {"labelSelector": selector, "topologyKey": key, **fields}


def anti(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {REQUIRED: list(terms)}}}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED: list(terms)}}}


def web(
    *more: LabelExpression,
    namespaces: tuple[str, ...] = ("team",),
    by_label: tuple[LabelExpression, ...] = (),
) -> PodSelector:
    """Return the selector of pods with the label `app: web`, by default in namespace `team`."""
    return PodSelector(expressions=(IS_WEB, *more), namespaces=namespaces, by_label=by_label)


def test_labels_are_read() -> None:
    """A pod's labels are read, and a pod without affinity has no constraints."""
    found = draft(document({"app": "web"}))
    assert found.labels == {"app": "web"}
    assert found.shape.pods is Shape().pods


@pytest.mark.parametrize(
    ("fields", "selector"),
    [
        ({}, web()),
        ({"namespaces": ["b", "a"]}, web(namespaces=("a", "b"))),
        ({"namespaceSelector": {}}, web(namespaces=())),
        ({"namespaceSelector": WEB}, web(namespaces=(), by_label=web().expressions)),
        (
            {"namespaceSelector": WEB, "namespaces": ["b"]},
            web(namespaces=("b",), by_label=web().expressions),
        ),
        ({"matchLabelKeys": ["version", "absent"]}, web(IS_NEW)),
    ],
)
def test_who_is_meant(fields: dict[str, Any], selector: PodSelector) -> None:
    """A term selects pods of the pod's own namespace, unless it names or selects other namespaces.
    `matchLabelKeys` add the pod's own label values."""
    assert wishes(**anti(term(**fields))).anti_affinity == (
        PodTerm(pods=selector, topology_key=HOST),
    )


def test_expressions() -> None:
    """A selector's `matchLabels` come first, followed by its `matchExpressions` in their order."""
    selector = WEB | {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}
    exists = LabelExpression(key="tier", operator="Exists")
    assert wishes(**anti(term(selector))).anti_affinity[0].pods == web(exists)
    everyone = wishes(**anti(term({}))).anti_affinity[0].pods
    assert everyone == PodSelector(namespaces=("team",))


def test_affinity_takes_its_terms_together() -> None:
    """If a pod has several required affinity terms, one other pod must match the selectors of all
    of them."""
    new = {"matchLabels": {"version": "2"}}
    both = web(IS_NEW)
    assert wishes(**near(term(), term(new, ZONE))).affinity == (
        PodTerm(pods=both, topology_key=HOST),
        PodTerm(pods=both, topology_key=ZONE),
    )


def test_terms_of_affinity_mean_pods_of_namespaces_that_all_name() -> None:
    """If a pod has several required affinity terms, they apply only to namespaces that all terms
    select. An empty namespace selector selects all."""
    any_space = term(key=ZONE, namespaceSelector={})
    wanted = near(term(namespaces=["a", "b"]), term(key=ZONE, namespaces=["b", "c"]), any_space)
    assert {each.pods.namespaces for each in wishes(**wanted).affinity} == {("b",)}


def test_preferences_have_a_sign() -> None:
    """Preferred affinity is read with a positive weight, and preferred anti-affinity with a
    negative one."""
    weighted = [{"weight": 7, "podAffinityTerm": term()}]
    affinity = {"podAffinity": {PREFERRED: weighted}, "podAntiAffinity": {PREFERRED: weighted}}
    here = PodTerm(pods=web(), topology_key=HOST)
    assert wishes(affinity=affinity).preferred == (
        PreferredPodTerm(weight=7, term=here),
        PreferredPodTerm(weight=-7, term=here),
    )


def spread(**fields: Any) -> dict[str, Any]:
    whole = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term(key=ZONE), **fields}
    return {"topologySpreadConstraints": [whole]}


def test_topology_spread() -> None:
    """Hard and soft spread constraints are read, including `minDomains`."""
    hard = wishes(**spread(maxSkew=2, minDomains=3, nodeAffinityPolicy="Honor")).spread
    assert hard == (SpreadConstraint(pods=web(), topology_key=ZONE, max_skew=2, min_domains=3),)
    (soft,) = wishes(
        **spread(whenUnsatisfiable="ScheduleAnyway", matchLabelKeys=["version"])
    ).spread
    assert soft == SpreadConstraint(pods=web(IS_NEW), topology_key=ZONE, required=False)


def test_which_nodes_count_for_a_spread() -> None:
    """By default, a spread constraint considers the nodes that match the pod's node selector,
    whatever taints they have."""
    (found,) = wishes(**spread(nodeAffinityPolicy="Ignore", nodeTaintsPolicy="Honor")).spread
    assert (found.any_node, found.untainted) == (True, True)
    (found,) = wishes(**spread(nodeAffinityPolicy="Honor", nodeTaintsPolicy="Ignore")).spread
    assert (found.any_node, found.untainted) == (False, False)


def test_other_values_than_the_pods_own() -> None:
    """A term's `mismatchLabelKeys` exclude pods with the same values of those labels as this pod.

    If the API server has already merged `matchLabelKeys` into the selector, they count once."""
    both = term(matchLabelKeys=["version"], mismatchLabelKeys=["version", "absent"])
    (found,) = wishes(**anti(both)).anti_affinity
    other = LabelExpression(key="version", operator="NotIn", values=IS_NEW.values)
    assert found.pods.expressions[-2:] == (IS_NEW, other)
    merged = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [{"key": "version", "operator": "In", "values": list(IS_NEW.values)}],
    }
    (found,) = wishes(**anti(term(merged, matchLabelKeys=["version"]))).anti_affinity
    assert found.pods.expressions.count(IS_NEW) == 1


ANTI = f"spec.affinity.podAntiAffinity.{REQUIRED}[0]"
SPREAD = "spec.topologySpreadConstraints[0]"
TWO_SPACES = near(term(), term(key=ZONE, selector={"matchLabels": {"b": "c"}}, namespaces=["x"]))
MANY = [{"key": f"key-{number}", "operator": "Exists"} for number in range(64)]
TOO_MANY = {"matchExpressions": MANY, "matchLabels": {"app": "web"}}
TOO_MANY_TOGETHER = near(term({"matchExpressions": MANY}), term(key=ZONE))
GREATER = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        (
            near(term(namespaceSelector=WEB), term(key=ZONE)),
            f"spec.affinity.podAffinity.{REQUIRED}",
            "select different namespaces",
        ),
        (anti(term(key="")), f"{ANTI}.topologyKey", "too short"),
        (anti(term(GREATER)), f"{ANTI}.labelSelector.matchExpressions[0].operator", "In, NotIn"),
        (anti(term({"matchLabels": {"a": 1}})), f'{ANTI}.labelSelector.matchLabels["a"]', "quotes"),
        (anti(term(namespaces=["A"])), f"{ANTI}.namespaces[0]", "DNS label"),
        (anti(term(TOO_MANY)), f"{ANTI}.labelSelector", "at most 64"),
        (TOO_MANY_TOGETHER, f"spec.affinity.podAffinity.{REQUIRED}", "at most 64"),
        (TWO_SPACES, f"spec.affinity.podAffinity.{REQUIRED}", "without a common namespace"),
        (spread(nodeTaintsPolicy="Never"), f"{SPREAD}.nodeTaintsPolicy", "write Honor or Ignore"),
        (spread(nodeAffinityPolicy=""), f"{SPREAD}.nodeAffinityPolicy", "write Honor or Ignore"),
        (spread(whenUnsatisfiable="Never"), f"{SPREAD}.whenUnsatisfiable", "ScheduleAnyway"),
        (spread(maxSkew=0), f"{SPREAD}.maxSkew", "out of range"),
    ],
)
def test_refusals(spec: dict[str, Any], field: str, says: str) -> None:
    """Malformed and unsupported terms are refused with their path."""
    error = refused(document(**spec))
    assert error.field == field
    assert says in str(error)


def test_a_missing_selector_means_no_pod() -> None:
    """In an affinity term, a missing selector selects no pods. An empty one selects all pods of the
    term's namespaces, as in kube-scheduler."""
    missing = {"topologyKey": HOST}
    preferred = {PREFERRED: [{"weight": 1, "podAffinityTerm": missing}]}
    for found in (
        *wishes(**near(missing)).affinity,
        *wishes(**anti(missing)).anti_affinity,
        *(each.term for each in wishes(affinity={"podAffinity": preferred}).preferred),
    ):
        assert found.pods.expressions
        assert not meet({"app": "web"}, found.pods.expressions)
        assert not meet({}, found.pods.expressions)
    (empty,) = wishes(**anti(term({}))).anti_affinity
    assert meet({"app": "web"}, empty.pods.expressions)


@pytest.mark.parametrize("selector", [None, {}])
def test_a_spread_without_a_selector_counts_no_pod(selector: object) -> None:
    """A spread constraint without a selector, or with an empty one, counts no pods, as in
    kube-scheduler."""
    (found,) = wishes(**spread(labelSelector=selector)).spread
    assert not meet({"app": "web"}, found.pods.expressions)
    (keyed,) = wishes(**spread(labelSelector={}, matchLabelKeys=["app"])).spread
    assert meet({"app": "web"}, keyed.pods.expressions)
    assert not meet({"app": "db"}, keyed.pods.expressions)


def test_labels_out_of_bounds() -> None:
    """A pod with labels that are not strings, or with too many labels, is refused."""
    assert "is not text" in str(refused(document({"a": 1})))
    assert "at most 256" in str(refused(document({f"l{n}": "" for n in range(257)})))
