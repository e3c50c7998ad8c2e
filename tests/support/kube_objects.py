"""Build Kubernetes objects, so that a test shows only the fields that matter to it."""

from __future__ import annotations

from typing import Any


def kube_node(name: str = "n1", **fields: Any) -> dict[str, Any]:
    """Return a ready Node with ample resources.

    `fields` can set the node's allocatable resources, labels, taints and readiness."""
    allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110"} | fields.get("allocatable", {})
    ready = "True" if fields.get("ready", True) else "False"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": fields.get("labels", {})},
        "spec": {"taints": fields.get("taints", [])},
        "status": {
            "allocatable": allocatable,
            "capacity": allocatable,
            "conditions": [
                {
                    "type": "Ready",
                    "status": ready,
                    "reason": "Test",
                    "message": "as told",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        },
    }


def kube_pod(name: str, limits: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a Pod with one container that has these resource limits.

    `annotations` and `labels` go into the pod's metadata; all other fields go into its spec."""
    metadata = {key: fields.pop(key) for key in ("annotations", "labels") if key in fields}
    container = {"name": "main", "image": "app", "resources": {"limits": limits or {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"schedulerName": "apportion", "containers": [container], **fields},
    }


def share(memory_mib: int = 1000, cores: int = 0) -> dict[str, str]:
    """Return limits for a share of one GPU, with HAMi's resource names."""
    cored = {"nvidia.com/gpucores": str(cores)} if cores else {}
    return {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib), **cored}


def managed_fields(document: dict[str, Any], manager: str = "kubectl") -> list[dict[str, Any]]:
    """Return managedFields in which `manager` owns every field that our code checks."""
    notes = document["metadata"].get("annotations") or {}
    fields = {
        "f:metadata": {"f:annotations": {".": {}, **{f"f:{key}": {} for key in notes}}},
        "f:spec": {f"f:{key}": {} for key in document["spec"]},
    }
    return [
        {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1"} | {"fieldsV1": fields}
    ]
