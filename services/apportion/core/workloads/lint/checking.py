"""Check how Apportion would read manifests, without a cluster.

Suspended workloads and templates are read as if they created pods now. Invariant: a document with
pods is accepted, refused, or reported as an unknown kind. For an accepted document, settings
without effect are reported."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.document import errors_below, items_of, part
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.kinds.limits import limit_of
from apportion.core.workloads.lint.typo_checks import (
    Suspect,
    ignored,
    left_elsewhere,
    of_no_device,
    suspects,
)
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.core.workloads.reading import (
    TAKEN,
    called,
    class_of,
    holds_pods,
    is_other,
    note_of,
    read_document,
    title,
)
from apportion_schemas import PodGroupObserved


class Checked(NamedTuple):
    """The result of checking one document, or one item of a List.

    It has neither pods nor an error if the document is a queue or quota, or was skipped."""

    name: str
    pods: tuple[PodDraft, ...] = ()
    groups: tuple[PodGroupObserved, ...] = ()
    note: str = ""  # what only the controller knows about the pods
    notes: tuple[Suspect, ...] = ()
    error: ManifestError | None = None
    passed_over: bool = False  # skipped
    known: bool = True  # whether the kind of its pods is known


def checked(document: object, config: ManifestConfig) -> Iterator[Checked]:
    """Yield the result for a document, or for each item of a List. PriorityClasses are left out."""
    items, error = items_of(document)
    for prefix, item in items:
        if class_of(item) is None:
            yield _checked(item, prefix, config)
    if error is not None:
        yield Checked(title(document), error=error)


def _checked(document: Any, prefix: str, config: ManifestConfig) -> Checked:
    if is_other(document):
        return Checked(called(document), passed_over=True)
    name = title(document)
    about = part(document)
    kind = (str(about.get("apiVersion")), str(about.get("kind")))
    if kind not in TAKEN and holds_pods(about):
        return Checked(name, known=False)
    try:
        with errors_below(prefix):
            if limit_of(document, config.dialects) is not None:
                slips = suspects(document, config.dialects, placed=True)
                return Checked(name, notes=_below(prefix, slips))
            manifest = read_document(document, msgspec.structs.replace(config, potential=True))
    except ManifestError as error:
        return Checked(name, error=error)
    notes = (
        *ignored(about),
        *of_no_device(document, config.dialects),
        *left_elsewhere(about, config.schedulers),
        *suspects(document, config.dialects, placed=True),
    )
    return Checked(
        name, manifest.pods, manifest.groups, note_of(document), notes=_below(prefix, notes)
    )


def _below(prefix: str, notes: Iterable[Suspect]) -> tuple[Suspect, ...]:
    return tuple(note._replace(field=prefix + note.field) for note in notes)
