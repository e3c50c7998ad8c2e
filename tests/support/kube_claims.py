"""Build ResourceClaims, and pods that use them."""

from __future__ import annotations

from typing import Any

from apportion.core.dra.names import CLASS

LOOKS = {"image": "test:1", "imagePullPolicy": "Never", "command": ["sleep", "600"]}


def resource_claim(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    """Return a ResourceClaim with these device requests (see `request`)."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests)}},
    }


def request(name: str = "gpu", cel: str = "", **fields: Any) -> dict[str, Any]:
    """Return a device request for our DeviceClass.

    `memory` and `cores` set the requested capacity. Other fields are copied into the request."""
    amounts = {key: fields.pop(key) for key in ("memory", "cores") if key in fields}
    exactly: dict[str, Any] = {"deviceClassName": CLASS, **fields}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    return {"name": name, "exactly": exactly}


def claiming_pod(name: str, claim: str, *, template: bool = False) -> dict[str, Any]:
    """Return a pod whose one container uses the ResourceClaim named `claim`.

    With `template`, `claim` names a ResourceClaimTemplate from which the pod gets its own claim."""
    of = "resourceClaimTemplateName" if template else "resourceClaimName"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "apportion",
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "card", of: claim}],
            "containers": [{"name": "main", **LOOKS, "resources": {"claims": [{"name": "card"}]}}],
        },
    }
