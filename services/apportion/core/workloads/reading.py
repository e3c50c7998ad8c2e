"""Read documents with the function for each kind, and report one outcome each.

Some kinds have controllers that create pods, such as CronJob. They are refused, because nothing
here would create these pods. A PriorityClass applies to the pods in the same files, but does not
override the configuration. Invariant: a bad document only raises a `ManifestError`. A document with
a pod, or of one of our kinds in another version, is never skipped."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from apportion.core.workloads.document import ROOT, ManifestError, cleaned, items_of, part
from apportion.core.workloads.kinds.drafts import KINDS, Manifest
from apportion.core.workloads.kinds.limits import LIMITS
from apportion.core.workloads.pods.template import DEFAULT_CONFIG, ManifestConfig

TAKEN: Final = (*KINDS, *LIMITS)  # every kind that can be submitted: workloads and limits


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one document, or one item of a List: its manifest or its error.

    `document` is its number in the file, from 1; `name`, if read, is like `Pod default/trainer`."""

    document: int
    name: str
    manifest: Manifest | None = None
    error: ManifestError | None = None


def read_documents(
    documents: Iterable[object],
    config: ManifestConfig = DEFAULT_CONFIG,
    *,
    leaves: Callable[[object], bool] = lambda _: False,
) -> Iterator[Outcome]:
    """Yield an outcome for each document or List item, except those for which `leaves` is True."""
    for number, document in enumerate(documents, 1):
        items, error = items_of(document)
        for field, item in items:
            if leaves(item):
                continue
            name = title(item)
            try:
                with errors_below(field):
                    outcome = Outcome(number, name, manifest=read_document(item, config))
            except ManifestError as wrong:
                outcome = Outcome(number, name, error=wrong)
            yield outcome
        if error is not None:
            yield Outcome(number, title(document), error=error)


def read_document(document: object, config: ManifestConfig = DEFAULT_CONFIG) -> Manifest:
    """Read a single document that is not a List. Raises ManifestError if it is unusable."""
    clean = cleaned(document)
    if not isinstance(clean, dict):
        raise ManifestError(ROOT, document, "is not an object", "start it with apiVersion and kind")
    api_version, kind = (clean.get(field) for field in ("apiVersion", "kind"))
    for field, value in (("apiVersion", api_version), ("kind", kind)):
        if not isinstance(value, str):
            fix = "set apiVersion and kind"
            raise ManifestError(field, value, "is missing or not text", fix)
    if unusable(clean):  # its pods would report the class as missing instead
        name, value = part(clean, "metadata").get("name"), clean.get("value")
        if not isinstance(name, str):
            fix = f"name the {PRIORITY_CLASS}"
            raise ManifestError("metadata.name", name, "is missing or not text", fix)
        fix = f"write a whole number from {-PRIORITY_MAX} to {PRIORITY_MAX}, without quotes"
        raise ManifestError("value", value, "is not a valid priority", fix)
    read = KINDS.get((str(api_version), str(kind)))
    if read is None:
        fix = f"use one of {known_kinds()}"
        raise ManifestError("kind", f"{kind} ({api_version})", "is not supported", fix)
    return read(clean, config)


def known_kinds() -> str:
    """Return the kinds that can be submitted, as a text for errors."""
    return ", ".join(f"{kind} ({api_version})" for api_version, kind in TAKEN)


def title(document: object) -> str:
    """Return the document's own name, as in `Pod default/trainer`; empty without a name."""
    if not isinstance(document, dict):
        return ""
    parts = part(document, "metadata")
    kind, namespace, name = (
        value if isinstance(value, str) else other
        for value, other in (
            (document.get("kind"), "document"),
            (parts.get("namespace"), "default"),
            (parts.get("name"), ""),
        )
    )
    return f"{kind} {namespace}/{name}"[:512] if name else kind[:512]


@contextmanager
def errors_below(prefix: str) -> Iterator[None]:
    """Put `prefix` before the field of each ManifestError, for a document inside another."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(prefix + error.field, error.value, error.problem, error.fix) from None


# the path of the pod template in kinds whose controllers create pods
TEMPLATES: Final = {
    ("apps/v1", "StatefulSet"): "spec.template",
    ("apps/v1", "DaemonSet"): "spec.template",
    ("apps/v1", "ReplicaSet"): "spec.template",
    ("v1", "ReplicationController"): "spec.template",
    ("batch/v1", "CronJob"): "spec.jobTemplate.spec.template",
}
# the path of the Job in Volcano's kinds whose controllers create Jobs (JobFlows name JobTemplates)
JOB_TEMPLATES: Final = {
    ("batch.volcano.sh/v1alpha1", "CronJob"): "spec.jobTemplate",
    ("flow.volcano.sh/v1alpha1", "JobTemplate"): "",
}


PRIORITY_CLASS: Final = "PriorityClass"
PRIORITY_MAX: Final = 1_000_000_000  # of a class that is not Kubernetes' own
# prefix of Kubernetes' own classes, which are in the configuration and have greater values
KUBERNETES_CLASSES: Final = "system-"


def with_classes(config: ManifestConfig, documents: Iterable[object]) -> ManifestConfig:
    """Return the configuration plus the PriorityClasses among these documents."""
    made = dict(
        found
        for document in documents
        for _, item in items_of(document)[0]
        if (found := class_of(item)) is not None
    )
    return msgspec.structs.replace(config, priority_classes=made | config.priority_classes)


def class_of(document: object) -> tuple[str, int] | None:
    """Return the name and value of a PriorityClass; None for any other or invalid document."""
    if not isinstance(document, dict) or document.get("kind") != PRIORITY_CLASS:
        return None
    name, value = part(document, "metadata").get("name"), document.get("value")
    if isinstance(name, str) and type(value) is int and abs(value) <= PRIORITY_MAX:
        return name, value
    return None


def unusable(document: dict[Any, Any]) -> bool:
    """Return True for a PriorityClass that is invalid and not one of Kubernetes' own."""
    if document.get("kind") != PRIORITY_CLASS or class_of(document) is not None:
        return False
    return not str(part(document, "metadata").get("name")).startswith(KUBERNETES_CLASSES)


LISTED: Final = 8
_LIST: Final = ("", "List")
_OURS: Final = {
    (version.rpartition("/")[0], kind) for version, kind in (*TAKEN, *TEMPLATES, *JOB_TEMPLATES)
} | {_LIST}
_NAMELESS: Final = "a document without a kind"


def others_in(document: object) -> Iterator[str]:
    """Yield the names of the documents to skip: this document, or items of it if it is a List.

    A PriorityClass is not skipped, because it applies to the pods in the same files."""
    for _, item in items_of(document)[0]:
        if is_other(item) and class_of(item) is None:
            yield called(item)


def is_other(document: object) -> bool:
    """Return True for a document to skip: neither a workload nor a queue or quota."""
    if not isinstance(document, dict) or not document:
        return False
    if holds_pods(document) or unusable(document):
        return False
    version, kind = document.get("apiVersion"), document.get("kind")
    if version is None and kind is None:
        return True
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    return (version.rpartition("/")[0], kind) not in _OURS


def holds_pods(value: object) -> bool:
    """Return True if the value contains a pod spec at any depth."""
    if isinstance(value, dict):
        listed = value.get("containers")
        first = listed[0] if isinstance(listed, list) and listed else value.get("container")
        return (isinstance(first, dict) and "image" in first) or any(
            holds_pods(each) for each in value.values()
        )
    return isinstance(value, list) and any(holds_pods(each) for each in value)


def called(document: object) -> str:
    """Return a short name for a document, as in `Service web`.

    The namespace is included if the document sets it."""
    parts = part(document, "metadata")
    named = [str(parts[key]) for key in ("namespace", "name") if parts.get(key)]
    kind = str(part(document).get("kind") or _NAMELESS)
    return f"{kind} {'/'.join(named)}".strip()[:512]


def found_as(name: str, where: str) -> str:
    """Return the name to show for a skipped document; without a kind, add its file's name."""
    return f"{name} in {where}" if name == _NAMELESS else name


def passed_over_words(names: Collection[str]) -> str:
    """Return a message that lists the skipped documents."""
    first = list(names)[:LISTED]
    more = len(names) - len(first)
    return f"skipped: {', '.join(first)}" + (f" and {more:,} more" if more > 0 else "")


def nothing_taken_words(contents: Iterable[object]) -> str:
    """Return the error message for files without a document that can be submitted."""
    items = (item for document in contents for _, item in items_of(document)[0])
    if any(class_of(item) is not None for item in items):
        return (
            f"contains no workload; a {PRIORITY_CLASS} applies only to pods in the same command, "
            "as in -f class.yaml -f pods.yaml"
        )
    return f"contains no workload, queue or quota; use one of {known_kinds()}"
