"""Build manifests, so that a test shows only the fields that matter to it."""

from collections.abc import Mapping
from typing import Any

import pytest

from apportion.core.workloads.dialects import DialectConfig, ManifestError
from apportion.core.workloads.kinds.drafts import Manifest, PodDraft
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.core.workloads.reading import read_document
from apportion_schemas import Ask

Limits = Mapping[str, object]


def container(name: str = "main", limits: Limits | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "app", "resources": {"limits": dict(limits or {})}, **fields}


def pod(
    limits: Limits | None = None, annotations: Mapping[str, object] | None = None, **spec: Any
) -> dict[str, Any]:
    """Return a Pod with one container that has these limits, or with the containers in `spec`.

    Other fields in `spec` are added to the pod's spec."""
    spec.setdefault("containers", [container(limits=limits)])
    metadata = {"name": "pod", "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def volcano_job(*tasks: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a Volcano Job named `job` with these tasks."""
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "job"},
        "spec": {"tasks": list(tasks), **spec},
    }


def task(limits: Limits | None = None, **fields: Any) -> dict[str, Any]:
    """Return a task of a Volcano Job whose pods have one container with these limits."""
    return {"template": {"spec": {"containers": [container(limits=limits)]}}, **fields}


def read(document: object, **dialects: Any) -> Manifest:
    """Read a manifest with these settings of the dialects."""
    return read_document(document, ManifestConfig(dialects=DialectConfig(**dialects)))


def draft(document: object, **dialects: Any) -> PodDraft:
    """Return the only pod that the document describes."""
    (only,) = read(document, **dialects).pods
    return only


def asks(document: object, **dialects: Any) -> tuple[Ask, ...]:
    """Return the device requests of the only pod that the document describes."""
    return draft(document, **dialects).shape.asks


def refused(document: object, **dialects: Any) -> ManifestError:
    """Return the error with which the document is refused. Fail if the document is accepted."""
    with pytest.raises(ManifestError) as caught:
        read(document, **dialects)
    return caught.value
