"""What manifests would mean here, said without a cluster: for those who look before they begin.

Wider than what is submitted: of workloads that a controller makes pods of, the pod template is read
as a pod. Invariant: a document that makes pods is taken or refused, and what of a taken one has no
effect is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from apportion.core.dialects import ManifestError
from apportion.core.dialects.errors import within
from apportion.core.manifests import harmless
from apportion.core.manifests.reading import items_of, read_document, title
from apportion.core.manifests.template import ManifestConfig
from apportion.core.manifests.unsupported import places
from apportion.core.manifests.workloads import KINDS, PodDraft

TEMPLATES = {
    ("apps/v1", "StatefulSet"): "spec.template",
    ("apps/v1", "DaemonSet"): "spec.template",
    ("apps/v1", "ReplicaSet"): "spec.template",
    ("v1", "ReplicationController"): "spec.template",
    ("batch/v1", "CronJob"): "spec.jobTemplate.spec.template",
}
"""Where kinds that are not submitted here have the pod that their controllers make."""
TEMPLATES_READ = {
    ("v1", "Pod"): "",
    ("batch/v1", "Job"): "spec.template",
    ("apps/v1", "Deployment"): "spec.template",
    ("batch.volcano.sh/v1alpha1", "Job"): "spec.tasks[].template",
}
"""Where those that are have it."""


class Note(NamedTuple):
    """A field or annotation that has no effect here although one might expect it, and why."""

    field: str
    why: str


class Checked(NamedTuple):
    """One document, or one item of a List: its pods, or why it is refused, or neither where it
    makes no pods.
    """

    name: str
    pods: tuple[PodDraft, ...] = ()
    notes: tuple[Note, ...] = ()
    error: ManifestError | None = None
    about_pods: bool = True


def checked(document: object, config: ManifestConfig) -> Iterator[Checked]:
    """What becomes of a document; a List has one answer for each item."""
    items, error = items_of(document)
    for prefix, item in items:
        yield _checked(item, prefix, config)
    if error is not None:
        yield Checked(title(document), error=error)


def _checked(document: object, prefix: str, config: ManifestConfig) -> Checked:
    name = title(document)
    about: dict[str, Any] = document if isinstance(document, dict) else {}
    kind = (str(about.get("apiVersion")), str(about.get("kind")))
    at = TEMPLATES.get(kind)
    if about and kind not in KINDS and at is None:
        return Checked(name, about_pods=False)
    try:
        pod, below = (document, "") if at is None else (_as_pod(about, at), f"{at}.")
        manifest = _read(pod, f"{prefix}{below}", config)
    except ManifestError as error:
        return Checked(name, error=error)
    notes = _notes(about, TEMPLATES_READ.get(kind, "") if at is None else at)
    return Checked(name, manifest.pods, tuple(notes))


def _read(document: object, prefix: str, config: ManifestConfig) -> Any:
    try:
        return read_document(document, config)
    except ManifestError as error:
        raise ManifestError(prefix + error.field, error.value, error.problem, error.fix) from None


def _as_pod(document: dict[str, Any], at: str) -> dict[str, Any]:
    """The pod that a controller would make, under the name of its owner."""
    template: Any = document
    for key in at.split("."):
        template = template.get(key) if isinstance(template, dict) else None
    if not isinstance(template, dict):
        raise ManifestError(at, template, "is missing or no object", "write a pod template")
    metadata = template.get("metadata")
    owner: Any = document.get("metadata")
    named = {
        key: owner[key] for key in ("name", "namespace") if isinstance(owner, dict) and key in owner
    }
    parts = metadata if isinstance(metadata, dict) else {}
    return {"apiVersion": "v1", "kind": "Pod"} | template | {"metadata": parts | named}


def _notes(document: dict[str, Any], at: str) -> Iterator[Note]:
    below = f"{at}." if at else ""
    for path, why in harmless.EXPECTED.items():
        for field, _ in places(document, "", f"{below}spec.{path}".split(".")):
            yield Note(field, why)
    for holder in dict.fromkeys(("metadata.annotations", f"{below}metadata.annotations")):
        for field, found in places(document, "", holder.split(".")):
            if isinstance(found, dict):
                known = (key for key in harmless.ANNOTATIONS if key in found)
                yield from (Note(within(field, key), harmless.ANNOTATIONS[key]) for key in known)
