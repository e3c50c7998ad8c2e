"""Everything that is written on a pod when it is bound: ours, and what its dialect's plugin wants.

Invariant: the same placement, devices, configuration and time make the same text, on any binder.
"""

from collections.abc import Mapping

from apportion.core.workloads.adoption.placement_annotations import PREFIX, own_annotations
from apportion.core.workloads.dialects.configured import dialect_config
from apportion.core.workloads.dialects.placed_pod import PlacedPod
from apportion.core.workloads.dialects.rendering import render
from apportion_schemas import Configuration, Device, PodPlaced, PodSubmitted

REVISION = f"{PREFIX}placement-revision"
DIALECT = f"{PREFIX}dialect"


def annotations_for(
    pod: PodSubmitted,
    placed: PodPlaced,
    *,
    revision: int,
    devices: Mapping[str, Device],
    now_ns: int,
    configuration: Configuration,
) -> dict[str, str]:
    """The annotations of a pod that is bound now.

    `revision` is the placement's, `devices` are the node's by their id, `now_ns` is Unix time in
    nanoseconds.

    Raises:
        KeyError: a share is of a device that the node has not.
    """
    ours = own_annotations(placed) | {REVISION: str(revision), DIALECT: pod.dialect}
    return ours | render(
        PlacedPod(pod, placed, devices, now_ns, config=dialect_config(configuration))
    )
