"""What manifests would mean here, said without a cluster: for those who look before they begin.

Wider than what is submitted: of workloads that a controller makes pods of, the pod template is read
as a pod, or as the job that it makes. Invariant: a document that makes pods is taken or refused, or
said to be of a kind that is not known here, and what of a taken one has no effect is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from apportion.core.dialects import ManifestError
from apportion.core.dialects.errors import within
from apportion.core.manifests import harmless
from apportion.core.manifests.reading import items_of, read_document, title
from apportion.core.manifests.suspects import suspects
from apportion.core.manifests.template import ManifestConfig
from apportion.core.manifests.unsupported import places
from apportion.core.manifests.workloads import KINDS, PodDraft

PRIORITY_MAX = 1_000_000_000
"""That of a class that is not Kubernetes' own."""

TEMPLATES = {
    ("apps/v1", "StatefulSet"): "spec.template",
    ("apps/v1", "DaemonSet"): "spec.template",
    ("apps/v1", "ReplicaSet"): "spec.template",
    ("v1", "ReplicationController"): "spec.template",
    ("batch/v1", "CronJob"): "spec.jobTemplate.spec.template",
}
"""Where kinds that are not submitted here have the pod that their controllers make."""
VOLCANO_JOB = ("batch.volcano.sh/v1alpha1", "Job")
JOB_TEMPLATES = {
    ("batch.volcano.sh/v1alpha1", "CronJob"): "spec.jobTemplate",
    ("flow.volcano.sh/v1alpha1", "JobTemplate"): "",
}
"""Where Volcano's other kinds have the Job that their controllers make; JobFlows name templates."""
TEMPLATES_READ = {
    ("v1", "Pod"): "",
    ("batch/v1", "Job"): "spec.template",
    ("apps/v1", "Deployment"): "spec.template",
    VOLCANO_JOB: "spec.tasks[].template",
}
"""Where those that are have it."""


class Note(NamedTuple):
    """A field or annotation that has no effect here although one might expect it, and why."""

    field: str
    why: str


class Checked(NamedTuple):
    """One document, or one item of a List: its pods, or why it is refused, or neither where it
    makes no pods, or does but is of a kind that is not `known`.
    """

    name: str
    pods: tuple[PodDraft, ...] = ()
    notes: tuple[Note, ...] = ()
    error: ManifestError | None = None
    about_pods: bool = True
    known: bool = True


def priority_classes(documents: Iterable[object]) -> dict[str, int]:
    """The value of each PriorityClass among documents, by its name."""
    found: dict[str, int] = {}
    for document in documents:
        for _, item in items_of(document)[0]:
            if not isinstance(item, dict) or item.get("kind") != "PriorityClass":
                continue
            about, value = item.get("metadata"), item.get("value")
            name = about.get("name") if isinstance(about, dict) else None
            if isinstance(name, str) and type(value) is int and abs(value) <= PRIORITY_MAX:
                found[name] = value
    return found


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
    if about and kind not in KINDS and kind not in TEMPLATES and kind not in JOB_TEMPLATES:
        return Checked(name, about_pods=False, known=not _has_containers(about))
    try:
        made, below, at = _made(about or document, kind)
        manifest = _read(made, f"{prefix}{below}", config)
    except ManifestError as error:
        return Checked(name, error=error)
    slips = (Note(*each) for each in suspects(document, config.dialects, placed=True))
    return Checked(name, manifest.pods, (*_notes(about, at, below), *slips))


def _made(document: Any, kind: tuple[str, str]) -> tuple[object, str, str]:
    """What a controller would submit of a document, its path there, and where its pods stand."""
    if (at := TEMPLATES.get(kind)) is not None:
        return _as(("v1", "Pod"), document, at), f"{at}.", at
    if (at := JOB_TEMPLATES.get(kind)) is not None:
        below = f"{at}." if at else ""
        return _as(VOLCANO_JOB, document, at), below, below + TEMPLATES_READ[VOLCANO_JOB]
    return document, "", TEMPLATES_READ.get(kind, "")


def _has_containers(value: object) -> bool:
    """Whether there is a pod somewhere in a document."""
    if isinstance(value, dict):
        listed = value.get("containers")
        first = listed[0] if isinstance(listed, list) and listed else value.get("container")
        return (isinstance(first, dict) and "image" in first) or any(
            _has_containers(each) for each in value.values()
        )
    return isinstance(value, list) and any(_has_containers(each) for each in value)


def _read(document: object, prefix: str, config: ManifestConfig) -> Any:
    try:
        return read_document(document, config)
    except ManifestError as error:
        raise ManifestError(prefix + error.field, error.value, error.problem, error.fix) from None


def _as(kind: tuple[str, str], document: dict[str, Any], at: str) -> dict[str, Any]:
    """The pod or job that a controller would make, under the name of its owner."""
    template: Any = document
    for key in filter(None, at.split(".")):
        template = template.get(key) if isinstance(template, dict) else None
    if not isinstance(template, dict):
        raise ManifestError(at, template, "is missing or no object", "write a template")
    metadata = template.get("metadata")
    owner: Any = document.get("metadata")
    named = {
        key: owner[key] for key in ("name", "namespace") if isinstance(owner, dict) and key in owner
    }
    parts = metadata if isinstance(metadata, dict) else {}
    made = {"apiVersion": kind[0], "kind": kind[1]}
    return template | made | {"metadata": parts | named}


def _notes(document: dict[str, Any], at: str, job: str) -> Iterator[Note]:
    below = f"{at}." if at else ""
    expected = {f"{below}spec.{path}": why for path, why in harmless.EXPECTED.items()}
    if "tasks[]" in at:
        expected |= {f"{job}spec.{path}": why for path, why in harmless.JOB_FIELDS.items()}
    for path, why in expected.items():
        for field, _ in places(document, "", path.split(".")):
            yield Note(field, why)
    for holder in dict.fromkeys(("metadata.annotations", f"{below}metadata.annotations")):
        for field, found in places(document, "", holder.split(".")):
            if isinstance(found, dict):
                known = (key for key in harmless.ANNOTATIONS if key in found)
                yield from (Note(within(field, key), harmless.ANNOTATIONS[key]) for key in known)
