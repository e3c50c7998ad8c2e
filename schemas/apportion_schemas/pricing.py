"""What pods are worth, learnt from the pods that came: data that a policy decides by.

Prices are facts of the ledger like any other: whoever folds up to the same revision weighs nodes by
the same numbers, however and wherever they were worked out."""

from typing import Annotated

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.inventory import Mode
from apportion_schemas.quantities import CpuMilli, HostMemoryMib, Natural, Payload
from apportion_schemas.workload import Ask, Names

SHAPES_MAX = 512
VALUE_MAX = 1 << 40


class PricedShape(Payload, frozen=True):
    """One sort of pod: what it takes, how often it came, and what it is worth to the cluster.

    `ask` is None for a pod without devices; its container's name says nothing. `modes` and
    `use_types` are as in `DeviceConstraints`. `size` is what it takes of the devices that there
    are, `value` what it is worth by the prices; both in millionths of a device. A pod without
    devices has a size too, for its CPU."""

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
    """From this revision on, the policies that weigh shapes weigh these; `pods` were counted."""

    pods: Natural
    shapes: Annotated[tuple[PricedShape, ...], Meta(max_length=SHAPES_MAX)]
