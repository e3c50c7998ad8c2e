"""A placement back in the dialect that its pod was written in.

An unmodified device plugin of that system finds on the pod what its own scheduler would have
written. Invariant: a pod is rendered in the dialect that it was read in, and in no other.
"""

from apportion.core.workloads.dialects.listing import named
from apportion.core.workloads.dialects.placed_pod import PlacedPod


def render(it: PlacedPod) -> dict[str, str]:
    """The annotations that the pod's own system would have written; none for a foreign dialect."""
    dialect = named(it.pod.dialect) if it.placed.shares else None
    return dialect.render(it) if dialect else {}
