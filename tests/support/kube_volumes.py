"""Build PersistentVolumeClaims, volumes and storage classes, as the API server stores them."""

from __future__ import annotations

from typing import Any

HOST = "kubernetes.io/hostname"


def kube_claim(name: str = "data", **spec: Any) -> dict[str, Any]:
    """Return a PersistentVolumeClaim for 1Gi of the storage class `disks`."""
    wanted = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "disks",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": wanted | spec,
    }


def kube_volume(name: str, node: str, **spec: Any) -> dict[str, Any]:
    """Return a PersistentVolume of 1Gi on one node."""
    here = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}
    held = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "disks",
        "local": {"path": "/disk"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": held | spec,
    }


def kube_class(provisioner: str, **fields: Any) -> dict[str, Any]:
    """Return the storage class `disks`. It binds a claim to a volume only once a pod uses the
    claim."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "disks"},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
        **fields,
    }
