"""What pods of each shape are worth, computed from the pods that were submitted.

Prices are events, so that all readers of a revision score nodes by the same numbers."""

from typing import Annotated

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.inventory import Mode
from apportion_schemas.quantities import CpuMilli, HostMemoryMib, Natural, Payload
from apportion_schemas.workload import Ask, Names

SHAPES_MAX = 512
VALUE_MAX = 1 << 40


class PricedShape(Payload, frozen=True):
    """Identical pods: their request, how many were submitted, and the worth of one pod.

    `size` is the mean number of devices that one pod takes on nodes of the fleet, and `value` is
    the worth of one pod. Both are in millionths of a device. For a pod without devices, `ask` is
    None and `size` is derived from its CPU."""

    ask: Ask | None
    cpu_milli: CpuMilli
    memory_mib: HostMemoryMib
    pods: Annotated[int, Meta(ge=1, le=1 << 40)]
    size: Annotated[int, Meta(ge=0, le=VALUE_MAX)]
    value: Annotated[int, Meta(ge=0, le=VALUE_MAX)]
    modes: tuple[Mode, ...] = ()
    use_types: Names = ()


@event("policy.prices", "scheduler")
class PricesLearnt(Payload, frozen=True):
    """A scheduler published new prices; `pods` is the number of submitted pods that it counted."""

    pods: Natural
    shapes: Annotated[tuple[PricedShape, ...], Meta(max_length=SHAPES_MAX)]
