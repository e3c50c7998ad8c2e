"""Fields of a pod that nobody knows and that are nearly one that is known: slips of the pen.

Kubernetes passes over what it does not know unless it is told to be strict, and so does what reads
pods here. Invariant: a field of the newest API is known, and of one that is near to none nothing is
said: a newer API may have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from apportion.core.workloads import kube
from apportion.core.workloads.lint import ignored_fields
from apportion.core.workloads.lint.meant import meant
from apportion.core.workloads.pods import unsupported

NEAR: Final = 0.8
Part = Literal["pod", "container", "resources"]
"""What of a pod has fields that are looked at."""


def unknown_fields(part: Part, found: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Each field of this part that is nearly a known one, and why it is told of."""
    known = _known(part)
    for field in found:
        if isinstance(field, str) and field not in known and (hint := meant(field, known, NEAR)):
            yield field, f"is no field of a {_WORDS[part]}, and has no effect{hint}"


_WORDS: Final[Mapping[Part, str]] = {
    "pod": "pod's spec",
    "container": "container",
    "resources": "container's resources",
}


@lru_cache(maxsize=3)
def _known(part: Part) -> frozenset[str]:
    if part == "pod":
        refused = (row.path for row in unsupported.POD_SPEC)
        return _read(kube.PodSpec) | _first(
            ignored_fields.POD_FIELDS, ignored_fields.OTHER_FIELDS, refused
        )
    if part == "container":
        return _read(kube.ContainerSpec) | _first(ignored_fields.CONTAINER_FIELDS)
    return _read(kube.Resources) | {"claims"}


def _read(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def _first(*paths: Any) -> frozenset[str]:
    return frozenset(path.split(".")[0].removesuffix("[]") for each in paths for path in each)
