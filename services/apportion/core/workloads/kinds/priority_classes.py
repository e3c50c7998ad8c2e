"""PriorityClasses that stand among manifests: whoever writes a class beside its pods means it so.

Invariant: a class of the cluster's configuration is never made another one.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from apportion.core.workloads.dialects.errors import ManifestError
from apportion.core.workloads.document import items_of
from apportion.core.workloads.pods.template import ManifestConfig

KIND: Final = "PriorityClass"
PRIORITY_MAX: Final = 1_000_000_000
"""That of a class that is not Kubernetes' own."""
OF_KUBERNETES: Final = "system-"
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
    if not isinstance(document, dict) or document.get("kind") != KIND:
        return None
    name, value = _name(document), document.get("value")
    if isinstance(name, str) and type(value) is int and abs(value) <= PRIORITY_MAX:
        return name, value
    return None


def unusable(document: dict[Any, Any]) -> bool:
    """Whether it is a PriorityClass that nobody can use, and not Kubernetes' own."""
    if document.get("kind") != KIND or class_of(document) is not None:
        return False
    return not str(_name(document)).startswith(OF_KUBERNETES)


def require_class(document: dict[Any, Any]) -> None:
    """Of one that cannot be used its pods would be told that there is none.

    Raises:
        ManifestError: it is one, and has no name or no priority.
    """
    if not unusable(document):
        return
    name, value = _name(document), document.get("value")
    if not isinstance(name, str):
        raise ManifestError("metadata.name", name, "is no name", f"name the {KIND}")
    most = PRIORITY_MAX
    fix = f"write a whole number from {-most} to {most}, without quotes"
    raise ManifestError("value", value, "is no priority", fix)


def _name(document: dict[Any, Any]) -> object:
    about = document.get("metadata")
    return about.get("name") if isinstance(about, dict) else None
