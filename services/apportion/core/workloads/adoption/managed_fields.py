"""Whose word an annotation of a bound pod is: what the API server noted of who wrote which field.

A pod's author may write any annotation on it, so one that says what the pod holds counts only where
a scheduler bound the pod and wrote it. A binding leaves no mark in `metadata.managedFields`; a pod
that was made with its node, or whose annotations came with it, does. Invariant: nothing is believed
of a pod that was not bound by a binding, or of which the API server does not say who made it.

That is as good as the API server's notes, which whoever may change a pod may change as well: the
policies of `deploy/kubernetes/policies` are the wall, and this is what there is where they are not.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

WRITERS: Final = frozenset(
    (
        "scheduler", "hami-scheduler", "vc-scheduler", "volcano-scheduler", "kube-scheduler",
        "gpu-admission", "gpu-manager", "nvidia-device-plugin", "device-plugin",
        "ascend-device-plugin", "volcano-vgpu-device-plugin", "volcano-device-plugin",
    )
)  # fmt: skip
"""Field managers of the schedulers and device plugins of HAMi, Volcano and gpu-manager: the names
of their programs."""
OURS: Final = frozenset[str]()
"""We write with the binding alone."""


def bound_by_a_scheduler(metadata: Mapping[str, Any]) -> bool:
    """Whether the pod was made without its node, and got it by a binding."""
    specs = [_part(fields, "f:spec") for _, fields in _entries(metadata)]
    return any(specs) and not any("f:nodeName" in spec for spec in specs)


def written_by(metadata: Mapping[str, Any], key: str, writers: frozenset[str]) -> bool:
    """Whether one of these wrote the annotation, or it came with the binding."""
    for manager, fields in _entries(metadata):
        if f"f:{key}" in _part(_part(fields, "f:metadata"), "f:annotations"):
            made = "f:containers" in _part(fields, "f:spec")  # whoever made the pod, by any name
            if made or manager not in writers:
                return False
    return True


def _entries(metadata: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    found = metadata.get("managedFields")
    for entry in found if isinstance(found, list) else ():
        if isinstance(entry, dict):
            yield str(entry.get("manager", "")), _part(entry, "fieldsV1")


def _part(whole: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = whole.get(key)
    return found if isinstance(found, dict) else {}
