"""Builders of manifests, so that a test shows only what it is about."""

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
    """A container with these limits."""
    return {"name": name, "image": "app", "resources": {"limits": dict(limits or {})}, **fields}


def pod(
    limits: Limits | None = None, annotations: Mapping[str, object] | None = None, **spec: Any
) -> dict[str, Any]:
    """A Pod of one container with these limits, or of `containers`, with more fields of a spec."""
    spec.setdefault("containers", [container(limits=limits)])
    metadata = {"name": "pod", "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def volcano_job(*tasks: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A Volcano Job called `job` of these tasks."""
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "job"},
        "spec": {"tasks": list(tasks), **spec},
    }


def task(limits: Limits | None = None, **fields: Any) -> dict[str, Any]:
    """A task of a Volcano Job whose pods have one container with these limits."""
    return {"template": {"spec": {"containers": [container(limits=limits)]}}, **fields}


def read(document: object, **dialects: Any) -> Manifest:
    """What a document stands for, under a configuration of the dialects."""
    return read_document(document, ManifestConfig(dialects=DialectConfig(**dialects)))


def draft(document: object, **dialects: Any) -> PodDraft:
    """The one pod that a document stands for."""
    (only,) = read(document, **dialects).pods
    return only


def asks(document: object, **dialects: Any) -> tuple[Ask, ...]:
    """The asks of the one pod that a document stands for."""
    return draft(document, **dialects).shape.asks


def refused(document: object, **dialects: Any) -> ManifestError:
    """Why a document is refused."""
    with pytest.raises(ManifestError) as caught:
        read(document, **dialects)
    return caught.value
