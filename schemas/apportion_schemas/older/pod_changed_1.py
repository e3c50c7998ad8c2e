"""`PodChanged` as it was: it did not say whether the pod is being deleted."""

from typing import Any

from apportion_schemas.quantities import CpuMilli, HostMemoryMib, Labels, Name, Payload
from apportion_schemas.workload import Names


class PodChanged(Payload, frozen=True):
    """A live pod says otherwise of itself than when it was submitted, or changed last.

    It is the whole of what may change of a pod: its labels, its gates, which only ever go, and its
    CPU and memory, which are resized in place (`pods/resize`).
    """

    uid: Name
    labels: Labels = {}
    gates: Names = ()
    cpu_milli: CpuMilli = 0
    memory_mib: HostMemoryMib = 0


def lift(data: dict[str, Any]) -> dict[str, Any]:
    """What was added has a default that means what silence meant."""
    return data
