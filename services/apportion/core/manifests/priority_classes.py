"""PriorityClasses that stand among manifests: whoever writes a class beside its pods means it so.

Invariant: a class of the cluster's configuration is never made another one.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from apportion.core.manifests.reading import items_of
from apportion.core.manifests.template import ManifestConfig

KIND: Final = "PriorityClass"
PRIORITY_MAX: Final = 1_000_000_000
"""That of a class that is not Kubernetes' own."""


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
    if not isinstance(document, dict) or document.get("kind") != KIND:
        return None
    about, value = document.get("metadata"), document.get("value")
    name = about.get("name") if isinstance(about, dict) else None
    if isinstance(name, str) and type(value) is int and abs(value) <= PRIORITY_MAX:
        return name, value
    return None
