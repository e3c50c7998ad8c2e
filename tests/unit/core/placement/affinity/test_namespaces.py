"""Tests of affinity terms that select namespaces by label (`namespaceSelector`)."""

from typing import Any

from apportion_schemas import (
    LabelExpression,
    NamespaceGone,
    NamespaceObserved,
    PodConstraints,
    PodSelector,
    PodSubmitted,
    PodTerm,
)
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod, shape

HOST = "kubernetes.io/hostname"


def by(key: str, *values: str) -> tuple[LabelExpression, ...]:
    """Return a namespace selector that requires label `key` to have one of these values, or any
    value if none is given."""
    if not values:
        return (LabelExpression(key=key, operator="Exists"),)
    return (LabelExpression(key=key, operator="In", values=values),)


def away(uid: str, selector: PodSelector, **fields: Any) -> PodSubmitted:
    """Return a pod that has anti-affinity to the selected pods."""
    terms = (PodTerm(pods=selector, topology_key=HOST),)
    return pod(uid, shape=shape(ask(100), pods=PodConstraints(anti_affinity=terms)), **fields)


def one_node() -> Ledger:
    return Ledger(rack("n1", 1)).submit(pod("there", ask(100), namespace="a")).settle()


def labels(name: str, version: int = 1, **found: str) -> NamespaceObserved:
    """Return the event in which the watcher reports a namespace with these labels."""
    return NamespaceObserved(namespace=name, labels=found, version=version)


def test_H12_pods_of_namespaces_are_meant_by_the_labels_of_those() -> None:
    """An affinity term may select namespaces by label and by name. A namespace may match either."""
    ledger = one_node().play(labels("a", team="one"))
    ledger.submit(away("p", PodSelector(by_label=by("team", "one")))).settle()
    ledger.submit(away("q", PodSelector(by_label=by("team", "two")))).settle()
    ledger.submit(away("r", PodSelector(by_label=by("team", "two"), namespaces=("a",)))).settle()
    assert [ledger.where(uid) for uid in "pqr"] == ["", "n1", ""]


def test_a_namespace_has_its_name_as_a_label() -> None:
    """A selector can select a namespace by name, even before the watcher has reported that
    namespace."""
    ledger = one_node()
    name = by("kubernetes.io/metadata.name", "a")
    ledger.submit(away("p", PodSelector(by_label=name))).settle()
    assert ledger.where("p") == ""


def test_labels_that_change_count_from_then_on() -> None:
    """If a namespace's labels change, the new labels apply at once: to pending pods, and to the
    anti-affinity of placed pods."""
    ledger = one_node().play(labels("a", team="one"))
    ledger.submit(away("p", PodSelector(by_label=by("team", "one")))).settle()
    assert ledger.where("p") == ""
    ledger.play(labels("a", 2, team="two")).settle()
    assert ledger.where("p") == "n1"
    ledger.submit(pod("late", ask(100), namespace="b")).settle()
    assert ledger.where("late") == "n1"
    ledger.play(labels("c", 3, team="one"))
    ledger.submit(pod("kept", ask(100), namespace="c")).settle()
    assert ledger.where("kept") == ""
    ledger.play(NamespaceGone(namespace="c")).settle()
    assert ledger.where("kept") == "n1"
