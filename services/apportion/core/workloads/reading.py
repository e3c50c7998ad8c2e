"""Documents in, one outcome each out: what kind it is, and who reads that kind.

Invariant: nothing but a `ManifestError` comes of a bad document, and it ends with that document.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.document import ROOT, cleaned, items_of
from apportion.core.workloads.kinds.drafts import KINDS, Manifest
from apportion.core.workloads.kinds.limits import QUEUE, QUOTA
from apportion.core.workloads.kinds.priority_classes import require_class
from apportion.core.workloads.pods.template import DEFAULT_CONFIG, ManifestConfig

TAKEN: Final = (*KINDS, QUEUE, QUOTA)
"""Every kind that people may hand in, workloads and limits."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one document, or of one item of a List; `document` counts from 1.

    Exactly one of `manifest` and `error` is set. `name` is what the document calls itself, as in
    `Pod default/trainer`, as far as that can be told.
    """

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
    item.
    """
    for number, document in enumerate(documents, 1):
        items, error = items_of(document)
        for field, item in items:
            if not leaves(item):
                yield _outcome(number, item, field, config)
        if error is not None:
            yield Outcome(number, title(document), error=error)


def read_document(document: object, config: ManifestConfig = DEFAULT_CONFIG) -> Manifest:
    """What a single document (not a List) stands for.

    Raises:
        ManifestError: it cannot be used.
    """
    clean = cleaned(document)
    if not isinstance(clean, dict):
        raise ManifestError(ROOT, document, "is not an object", "start with apiVersion, kind")
    api_version, kind = (_text(clean, field) for field in ("apiVersion", "kind"))
    require_class(clean)
    read = KINDS.get((api_version, kind))
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
    metadata = document.get("metadata")
    parts = metadata if isinstance(metadata, dict) else {}
    kind, namespace, name = (
        value if isinstance(value, str) else other
        for value, other in (
            (document.get("kind"), "document"),
            (parts.get("namespace"), "default"),
            (parts.get("name"), ""),
        )
    )
    return f"{kind} {namespace}/{name}"[:512] if name else kind[:512]


def _text(document: dict[str, Any], field: str) -> str:
    value = document.get(field)
    if not isinstance(value, str):
        raise ManifestError(field, value, "is missing or not text", "say what the document is")
    return value


@contextmanager
def errors_below(prefix: str) -> Iterator[None]:
    """What goes wrong inside is told by its whole path, where a document stands in another."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(prefix + error.field, error.value, error.problem, error.fix) from None


def _outcome(number: int, document: object, prefix: str, config: ManifestConfig) -> Outcome:
    name = title(document)
    try:
        with errors_below(prefix):
            return Outcome(number, name, manifest=read_document(document, config))
    except ManifestError as error:
        return Outcome(number, name, error=error)
