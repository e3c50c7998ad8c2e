"""What a pod says of devices, apart from all that its own scheduler minds.

Where kube-scheduler chooses the node and asks our extender, volumes, affinity, taints and priority
classes are its business, and none of them is a reason for us to refuse a pod. Invariant: asks,
annotations that choose devices, labels, and the amounts that the pod takes of its node are kept.
"""

from typing import Any

from apportion.core.workloads.pods import gangs, template

_SPEC = ("overhead", "priority", "schedulerName")
_CONTAINER = ("name", "resources", "restartPolicy")
_GANG = (gangs.GROUP, template.TASK, gangs.MIN_MEMBER)


def devices_only(document: dict[str, Any]) -> dict[str, Any]:
    """A pod's document with only what is about devices and amounts; read it like any other."""
    metadata, spec = document.get("metadata"), document.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        return document
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        kept = {key: value for key, value in annotations.items() if key not in _GANG}
        metadata = metadata | {"annotations": kept}
    lists = {
        kind: [_part(each) for each in spec[kind]]
        for kind in ("containers", "initContainers")
        if isinstance(spec.get(kind), list)
    }
    return document | {"metadata": metadata, "spec": _only(spec, _SPEC) | lists}


def _part(container: Any) -> Any:
    return _only(container, _CONTAINER) if isinstance(container, dict) else container


def _only(part: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: part[key] for key in keys if key in part}
