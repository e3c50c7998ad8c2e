"""Install our ValidatingAdmissionPolicies in a test's cluster, optionally without some validations.

Invariant: after a test the API server no longer enforces the policies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import yaml

from tests.support.control_plane import ROOT, ControlPlane
from tests.support.polling import until

MANIFESTS = ROOT / "deploy" / "kubernetes" / "policies"
LEFT_OUT = "true"
"""The expression of a disabled validation: it accepts everything."""


def without(*markers: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that edits a policy: it disables the validations whose message contains one
    of these texts."""

    def weaken(policy: dict[str, Any]) -> None:
        for validation in policy["spec"]["validations"]:
            said = validation.get("message", "") + validation.get("messageExpression", "")
            if any(marker in said for marker in markers):
                validation["expression"] = LEFT_OUT

    return weaken


@asynccontextmanager
async def holding(
    plane: ControlPlane, weaken: Callable[[dict[str, Any]], None]
) -> AsyncIterator[None]:
    """Install the policies of our manifests, and delete them when the block ends.

    `weaken` may edit each policy before it is installed."""
    documents: list[dict[str, Any]] = []
    for path in sorted(MANIFESTS.glob("[!k]*.yaml")):
        documents += yaml.safe_load_all(path.read_text("utf-8"))
    for document in documents:
        if document["kind"] == "ValidatingAdmissionPolicy":
            weaken(document)
    probe = f"probe-{uuid4()}"  # unique, because that of an earlier test may still be in force
    documents.append(_probe(probe))
    documents.append(_bound(documents[-1]))
    try:
        await plane.apply(*documents)
        await _in_force(plane, probe)
        yield
    finally:
        listed = {"apiVersion": "v1", "kind": "List", "items": documents}
        await plane.user("delete", "--ignore-not-found", "-f", "-", stdin=json.dumps(listed))
        await _in_force(plane, probe, not_any_more=True)


def _probe(name: str) -> dict[str, Any]:
    """Return a policy whose enforcement shows that the API server enforces earlier policies too."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "zz-probe"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule | {"operations": ["CREATE"]}]},
            "validations": [{"expression": f"object.metadata.name != '{name}'"}],
        },
    }


def _bound(policy: dict[str, Any]) -> dict[str, Any]:
    name = policy["metadata"]["name"]
    return {
        "apiVersion": policy["apiVersion"],
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }


async def _in_force(plane: ControlPlane, name: str, *, not_any_more: bool = False) -> None:
    """Wait until the API server enforces the policy, or no longer does (`not_any_more`)."""

    async def so() -> bool:
        said = await plane.user("create", "configmap", name, "--dry-run=server", ok=None)
        return bool(said) is not_any_more

    await until(so, "the API server to know of the policies", interval_s=0.1)
