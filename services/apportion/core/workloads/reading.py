"""Documents in, one outcome each out: which kinds are read, by what, and which are passed over.

Kinds whose controllers make pods or jobs are looked at and not taken: without their controllers
nothing makes these pods. A PriorityClass counts for the pods that are given with it, and a class of
the cluster's configuration is never made another one. Documents that stand beside workloads, as a
Service does, are passed over, by every verb the same ones.

Invariant: nothing but a `ManifestError` comes of a bad document, and it ends with that document.
Nothing is passed over that holds a pod, or is of a kind of ours in another version."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from apportion.core.workloads.document import ROOT, ManifestError, cleaned, items_of, part
from apportion.core.workloads.kinds.drafts import KINDS, Manifest
from apportion.core.workloads.kinds.limits import QUEUE, QUOTA
from apportion.core.workloads.pods.template import DEFAULT_CONFIG, ManifestConfig

TAKEN: Final = (*KINDS, QUEUE, QUOTA)
"""Every kind that people may hand in, workloads and limits."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one document, or of one item of a List; `document` counts from 1.

    Exactly one of `manifest` and `error` is set. `name` is what the document calls itself, as in
    `Pod default/trainer`, as far as that can be told."""

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
    """The outcome of every document, in order, but of those that it `leaves`; a List has one per
    item."""
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
    """What a single document (not a List) stands for.

    Raises ManifestError: it cannot be used."""
    clean = cleaned(document)
    if not isinstance(clean, dict):
        raise ManifestError(ROOT, document, "is not an object", "start with apiVersion, kind")
    api_version, kind = (clean.get(field) for field in ("apiVersion", "kind"))
    for field, value in (("apiVersion", api_version), ("kind", kind)):
        if not isinstance(value, str):
            fix = "say what the document is"
            raise ManifestError(field, value, "is missing or not text", fix)
    require_class(clean)
    read = KINDS.get((str(api_version), str(kind)))
    if read is None:
        raise ManifestError(
            "kind", f"{kind} ({api_version})", "is not read", f"submit one of {known_kinds()}"
        )
    return read(clean, config)


def known_kinds() -> str:
    """The kinds that are taken, as an error names them."""
    return ", ".join(f"{kind} ({api_version})" for api_version, kind in TAKEN)


def title(document: object) -> str:
    """What a document calls itself; empty where it does not."""
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
    """What goes wrong inside is told by its whole path, where a document stands in another."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(prefix + error.field, error.value, error.problem, error.fix) from None


TEMPLATES: Final = {
    ("apps/v1", "StatefulSet"): "spec.template",
    ("apps/v1", "DaemonSet"): "spec.template",
    ("apps/v1", "ReplicaSet"): "spec.template",
    ("v1", "ReplicationController"): "spec.template",
    ("batch/v1", "CronJob"): "spec.jobTemplate.spec.template",
}
"""Where they have the pod that their controllers make."""
JOB_TEMPLATES: Final = {
    ("batch.volcano.sh/v1alpha1", "CronJob"): "spec.jobTemplate",
    ("flow.volcano.sh/v1alpha1", "JobTemplate"): "",
}
"""Where Volcano's other kinds have the Job that their controllers make; JobFlows name templates."""


PRIORITY_CLASS: Final = "PriorityClass"
PRIORITY_MAX: Final = 1_000_000_000
"""That of a class that is not Kubernetes' own."""
KUBERNETES_CLASSES: Final = "system-"
"""How its own are called, whose values are greater: pods find these in the configuration."""


def with_classes(config: ManifestConfig, documents: Iterable[object]) -> ManifestConfig:
    """The configuration with the priority classes that the documents make."""
    made = dict(
        found
        for document in documents
        for _, item in items_of(document)[0]
        if (found := class_of(item)) is not None
    )
    return msgspec.structs.replace(config, priority_classes=made | config.priority_classes)


def class_of(document: object) -> tuple[str, int] | None:
    """The name and value of a PriorityClass; None of what is none, or cannot be used."""
    if not isinstance(document, dict) or document.get("kind") != PRIORITY_CLASS:
        return None
    name, value = part(document, "metadata").get("name"), document.get("value")
    if isinstance(name, str) and type(value) is int and abs(value) <= PRIORITY_MAX:
        return name, value
    return None


def unusable(document: dict[Any, Any]) -> bool:
    """Whether it is a PriorityClass that nobody can use, and not Kubernetes' own."""
    if document.get("kind") != PRIORITY_CLASS or class_of(document) is not None:
        return False
    return not str(part(document, "metadata").get("name")).startswith(KUBERNETES_CLASSES)


def require_class(document: dict[Any, Any]) -> None:
    """Of one that cannot be used its pods would be told that there is none.

    Raises ManifestError: it is one, and has no name or no priority."""
    if not unusable(document):
        return
    name, value = part(document, "metadata").get("name"), document.get("value")
    if not isinstance(name, str):
        raise ManifestError("metadata.name", name, "is no name", f"name the {PRIORITY_CLASS}")
    most = PRIORITY_MAX
    fix = f"write a whole number from {-most} to {most}, without quotes"
    raise ManifestError("value", value, "is no priority", fix)


LISTED: Final = 8
_LIST: Final = ("", "List")
_OURS: Final = {
    (version.rpartition("/")[0], kind) for version, kind in (*TAKEN, *TEMPLATES, *JOB_TEMPLATES)
} | {_LIST}
_NAMELESS: Final = "a document without a kind"


def others_in(document: object) -> Iterator[str]:
    """What is passed over of a document, or of the items of a List, by its name.

    A priority class is used for the pods beside it, so it is not passed over."""
    for _, item in items_of(document)[0]:
        if is_other(item) and class_of(item) is None:
            yield called(item)


def is_other(document: object) -> bool:
    """Whether a document is neither a workload nor a limit, and so none of our concern."""
    if not isinstance(document, dict) or not document or holds_pods(document):
        return False
    if unusable(document):
        return False
    version, kind = document.get("apiVersion"), document.get("kind")
    if version is None and kind is None:
        return True
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    return (version.rpartition("/")[0], kind) not in _OURS


def holds_pods(value: object) -> bool:
    """Whether there is a pod somewhere in a document."""
    if isinstance(value, dict):
        listed = value.get("containers")
        first = listed[0] if isinstance(listed, list) and listed else value.get("container")
        return (isinstance(first, dict) and "image" in first) or any(
            holds_pods(each) for each in value.values()
        )
    return isinstance(value, list) and any(holds_pods(each) for each in value)


def called(document: object) -> str:
    """A document in a list of such, as in `Service web`: most have a namespace only by default."""
    parts = part(document, "metadata")
    named = [str(parts[key]) for key in ("namespace", "name") if parts.get(key)]
    kind = str(part(document).get("kind") or _NAMELESS)
    return f"{kind} {'/'.join(named)}".strip()[:512]


def found_as(name: str, where: str) -> str:
    """What is passed over so that it is found: by its name, or else by where it stands."""
    return f"{name} in {where}" if name == _NAMELESS else name


def passed_over_words(names: Collection[str]) -> str:
    """The line that tells of them."""
    first = list(names)[:LISTED]
    more = len(names) - len(first)
    return f"passed over: {', '.join(first)}" + (f" and {more:,} more" if more > 0 else "")


def nothing_taken_words(contents: Iterable[object]) -> str:
    """What is wrong with files where all that there is was passed over, or is a priority class."""
    items = (item for document in contents for _, item in items_of(document)[0])
    if any(class_of(item) is not None for item in items):
        return (
            f"holds no workload, and a {PRIORITY_CLASS} counts for the pods that are given with it "
            "alone: give both at once, as in -f class.yaml -f pods.yaml"
        )
    return f"holds neither a workload nor a limit: write one of {known_kinds()}"
