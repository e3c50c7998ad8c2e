"""A placement back in the dialect that its pod was written in.

An unmodified device plugin of that system finds on the pod what its own scheduler would have
written. Invariant: a pod is rendered in the dialect that it was read in, and in no other.
"""

from collections.abc import Callable

from apportion.core.dialects import (
    ascend,
    cambricon,
    hami,
    plain,
    vcuda,
    volcano_share,
    volcano_vgpu,
)
from apportion.core.dialects.placed_pod import PlacedPod

RENDERED: dict[str, Callable[[PlacedPod], dict[str, str]]] = {
    module.NAME: module.render
    for module in (plain, hami, volcano_vgpu, volcano_share, vcuda, ascend, cambricon)
}


def render(it: PlacedPod) -> dict[str, str]:
    """The annotations that the pod's own system would have written; none for a foreign dialect."""
    if not it.placed.shares:
        return {}
    of = RENDERED.get(it.pod.dialect.rpartition("/")[2])
    return of(it) if of else {}
