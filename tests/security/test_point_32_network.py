"""Our pods receive and send only the network traffic that they need.

The tests check the applied policies, because no network that enforces them runs here."""

from typing import Any

import pytest

from tests.support import applied
from tests.support.applied import objects

API = [{"port": 443}, {"port": 6443}]
OPEN = {"gateway": [8470], "extender": [3456], "admission": [8443]}
"""Clients outside Apportion, and the pods that they call."""


def policies() -> dict[str, dict[str, Any]]:
    """Return the specs of the network policies, by name."""
    found = (each for each in objects() if each["kind"] == "NetworkPolicy")
    return {each["metadata"]["name"]: each["spec"] for each in found}


def pods() -> dict[str, dict[str, Any]]:
    """Return the specs of the pods, by their `app` label."""
    templates = (template for _, template in applied.pods())
    return {each["metadata"]["labels"]["app"]: each["spec"] for each in templates}


def ports(rules: list[dict[str, Any]]) -> list[int]:
    """Return every port that these rules allow."""
    return [port["port"] for rule in rules for port in rule["ports"]]


def selecting(app: str) -> dict[str, Any]:
    """Return the selector of a pod of this release, and of no other app in the namespace."""
    return {"matchLabels": {"app": app, "app.kubernetes.io/instance": "apportion"}}


def wide(spec: dict[str, Any]) -> list[str]:
    """Return the rules of a network policy that allow traffic on any port."""
    rules = [*spec.get("ingress", ()), *spec.get("egress", ())]
    return [str(rule) for rule in rules if not rule.get("ports")]


def test_what_is_not_named_is_denied() -> None:
    """By default, network policies deny all traffic of every pod in the namespace."""
    deny = policies()["default-deny"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert [rule for spec in policies().values() for rule in wide(spec)] == []


@pytest.mark.parametrize("app", sorted(pods()))
def test_every_pod_has_its_flows_and_no_more(app: str) -> None:
    """Each pod's network policy permits exactly the connections that the pod needs."""
    spec, pod = policies()[app], pods()[app]
    assert spec["podSelector"] == selecting(app)
    if app == "nats":
        assert ports(spec["ingress"]) == [4222, 6222]
        assert ports(spec["egress"]) == [6222]
        return
    names = {each["name"] for each in pod["containers"][0]["env"]}
    ledger, *more = spec["egress"]
    assert ledger["ports"] == [{"port": 4222}]
    assert ledger["to"] == [{"podSelector": selecting("nats")}]
    asks = "APPORTION_KUBERNETES" in names or app == "gateway"
    gateway = [[{"port": 8470}]] if "APPORTION_GATEWAY" in names else []
    assert [each["ports"] for each in more] == gateway + ([API] if asks else [])
    health = [8480] if app not in {"ledger", "receipts", "defrag"} else []
    assert ports(spec.get("ingress", [])) == [*OPEN.get(app, []), *health]


def test_the_ledger_is_reached_by_those_who_know_it() -> None:
    """Exactly the pods that are configured with the ledger's URL can reach the ledger.

    The network policies keep out all other pods."""
    first, *_ = policies()["nats"]["ingress"]
    (peer,) = first["from"]
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/instance": "apportion"}
    (expression,) = peer["podSelector"]["matchExpressions"]
    missing = pods().keys() - {"nats"} - set(expression["values"])
    assert not missing


def test_a_rule_without_a_port_is_found() -> None:
    """The check finds a policy rule without a port. The real policies have no such rule."""
    assert wide({"egress": [{"to": [{"podSelector": {}}]}]})
