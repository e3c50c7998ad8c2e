"""Pods that name another scheduler: here they are placed, in Kubernetes they are left to it.

Whoever tries manifests without a cluster would find out there. Invariant: of a pod that names no
scheduler, or one whose pods are ours, nothing is said; plain manifests stay plain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from apportion.core.workloads.lint.typo_checks import DEPTH_MAX, Suspect
from apportion.core.workloads.schedulers import DEFAULT, OURS, Chooser, SchedulerNames

FIELD: Final = "schedulerName"
NAME_CHARS_MAX: Final = 63
_UNLESS: Final = ", unless the webhook takes it for the devices that it asks for"


def left_elsewhere(document: object, names: SchedulerNames) -> Iterator[Suspect]:
    """Each name of another scheduler, wherever in the document its pods stand."""
    for field, name in _named(document, "", 0):
        if names.chooser(name) in {Chooser.OTHERS, Chooser.NOBODY}:
            yield Suspect(field, _why(name, names))


def _why(name: str, names: SchedulerNames) -> str:
    ours = OURS[0] if OURS[0] in names.ours else min(names.ours)
    unless = _UNLESS if name == DEFAULT else ""
    return (
        f"{name[:NAME_CHARS_MAX]} is another scheduler: without Kubernetes Apportion places the "
        f"pod all the same, in Kubernetes it leaves it alone{unless}; write {ours}"
    )


def _named(value: object, field: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > DEPTH_MAX:
        return
    if isinstance(value, list):
        for place, each in enumerate(value):
            yield from _named(each, f"{field}[{place}]", depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            at = f"{field}.{key}" if field else str(key)
            if key == FIELD and isinstance(each, str) and each:
                yield at, each
            elif key != "metadata":
                yield from _named(each, at, depth + 1)
