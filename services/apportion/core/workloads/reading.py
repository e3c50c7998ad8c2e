"""Read documents with the function for each kind, and report one outcome each.

A document of a kind whose controller creates pods yields the pods that the controller would create.
PriorityClasses, training runtimes and workflow templates apply to the pods in the same files; a
PriorityClass does not override the configuration. Invariant: a bad document only raises a
`ManifestError`. A document with a pod, or of one of our kinds in another version, is never
skipped."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from apportion.core.workloads import kube
from apportion.core.workloads.document import (
    ROOT,
    ManifestError,
    cleaned,
    dns_label,
    dns_subdomain,
    errors_below,
    items_of,
    part,
    typed,
)
from apportion.core.workloads.kinds import controllers, nested
from apportion.core.workloads.kinds.drafts import KINDS, Manifest
from apportion.core.workloads.kinds.limits import LIMITS
from apportion.core.workloads.pods.template import DEFAULT_CONFIG, ManifestConfig

CONTROLLED: Final = frozenset(
    (version, kind) for kind, row in controllers.TABLE.items() for version in row.versions
)
# every kind that can be submitted: workloads and limits
TAKEN: Final = (*KINDS, *sorted(CONTROLLED), *nested.TABLE, *LIMITS)


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
    key = (str(api_version), str(kind))
    about = part(clean, "metadata")
    if not about.get("name") and isinstance(prefix := about.get("generateName"), str):
        clean["metadata"] = about | {"name": prefix.rstrip("-.")}
    if key in nested.TABLE:
        return _read_nested(clean, config)
    if key in CONTROLLED:
        return controllers.read_controlled(clean, config)
    if key in KINDS:
        return KINDS[key](clean, config)
    fix = f"use {known_kinds(str(kind))}"
    problem = WITHOUT_TEMPLATES.get((_group(api_version), str(kind)), "is not supported")
    raise ManifestError("kind", f"{kind} ({api_version})", problem, fix)


def known_kinds(like: str = "") -> str:
    """Return the versions of this kind that can be submitted, or else the most common kinds."""
    versions = [f"{kind} ({version})" for version, kind in TAKEN if kind == like]
    return " or ".join(versions) or KINDS_TO_USE


# Kubernetes makes a name of `generateName`, and a client may choose a similar one.


def _read_nested(document: dict[str, Any], config: ManifestConfig) -> Manifest:
    found: list[Manifest] = []
    pods = 0
    for inner in nested.inner_documents(document, config):
        if is_other(inner.document):
            continue  # such as a Service in an AppWrapper
        try:
            found.append(read_document(inner.document, config))
        except ManifestError as error:
            field = inner.field(error.field)
            raise ManifestError(field, error.value, error.problem, error.fix) from None
        pods += len(found[-1].pods)
        if pods > kube.REPLICAS_MAX:
            fix = f"use at most {kube.REPLICAS_MAX}"
            raise ManifestError("spec", None, f"has {pods} pods", fix)
    owner = typed({"metadata": part(document, "metadata")}, kube.Named).metadata
    return Manifest(
        kind=document["kind"],
        namespace=dns_label(owner.namespace, "metadata.namespace"),
        name=dns_subdomain(owner.name, "metadata.name"),
        groups=tuple(group for each in found for group in each.groups),
        pods=tuple(pod for each in found for pod in each.pods),
    )


def note_of(document: object) -> str:
    """Return what only the controller of this document knows about its pods; empty for nothing."""
    about = part(document)
    key = (str(about.get("apiVersion")), str(about.get("kind")))
    if key in CONTROLLED:
        return controllers.TABLE[key[1]].note
    return nested.TABLE[key].note if key in nested.TABLE else ""


def _group(version: object) -> str:
    return str(version).rpartition("/")[0]


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
            (parts.get("name", parts.get("generateName")), ""),
        )
    )
    return f"{kind} {namespace}/{name}"[:512] if name else kind[:512]


KINDS_TO_USE: Final = "Pod, Job, Deployment or another kind of docs/tasks/controllers.md"
_MADE: Final = "is not supported, because it does not define its pods with pod templates"
WITHOUT_TEMPLATES: Final = {
    ("sparkoperator.k8s.io", "SparkApplication"): _MADE,
    ("sparkoperator.k8s.io", "ScheduledSparkApplication"): _MADE,
    **{("tekton.dev", kind): _MADE for kind in ("Task", "TaskRun", "Pipeline", "PipelineRun")},
}


PRIORITY_CLASS: Final = "PriorityClass"
PRIORITY_MAX: Final = 1_000_000_000  # of a class that is not Kubernetes' own
# prefix of Kubernetes' own classes, which are in the configuration and have greater values
KUBERNETES_CLASSES: Final = "system-"


def with_named(config: ManifestConfig, documents: Iterable[object]) -> ManifestConfig:
    """Return the configuration plus PriorityClasses and documents that other documents name."""
    items = [item for document in documents for _, item in items_of(document)[0]]
    made = dict(found for item in items if (found := class_of(item)) is not None)
    named = {
        nested.named_key(kind, nested.namespace_of(item), name): item
        for item in items
        if (kind := part(item).get("kind")) in nested.NAMED
        and isinstance(name := part(item, "metadata").get("name"), str)
    }
    return msgspec.structs.replace(
        config, priority_classes=made | config.priority_classes, named=config.named | named
    )


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
_OURS: Final = {*((_group(version), kind) for version, kind in TAKEN), *WITHOUT_TEMPLATES, _LIST}
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
    return (_group(version), kind) not in _OURS


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
    return f"contains no workload, queue or quota; use {known_kinds()}"
