"""Our own annotations: what we write on a pod when it is bound, and nobody else.

They say what a pod holds, so a person could mislead others with them. Invariant: a pod is never
created with one, and only our binder's account changes one.
"""

from typing import Any

from apportion.core.workloads.adoption.placement_annotations import PREFIX
from apportion.core.workloads.document import ManifestError, within

FIELD = "metadata.annotations"


def own_annotations_of(pod: Any) -> dict[str, Any]:
    """Those of our annotations that a pod's document has."""
    metadata = pod.get("metadata") if isinstance(pod, dict) else None
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if str(key).startswith(PREFIX)}


def check_created(pod: Any) -> None:
    """Refuse a new pod that has one.

    Raises:
        ManifestError: names the annotation.
    """
    for key, value in own_annotations_of(pod).items():
        raise ManifestError(
            within(FIELD, key),
            value,
            "is written by Apportion alone, when the pod is bound",
            "remove it",
        )


def check_changed(before: Any, after: Any) -> None:
    """Refuse a change of one, be it added, rewritten or removed.

    Raises:
        ManifestError: names the annotation.
    """
    was, now = own_annotations_of(before), own_annotations_of(after)
    for key in {**was, **now}:
        if was.get(key) != now.get(key):
            raise ManifestError(
                within(FIELD, key),
                now.get(key),
                "is written by Apportion alone",
                f"leave it as it was: {was[key]}" if key in was else "remove it",
            )
