"""The shapes of pods as fragmentation sees them, in tables by kind of device.

After "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): what is idle on a node is a fragment
to a pod that does not fit there, and else what is idle on devices too full for its share.
"""

import numpy as np

from apportion.core.placement.feasibility.devices import type_name
from apportion.core.placement.pricing.sizes import NEVER, sort_of
from apportion_schemas import Device, DeviceConstraints, PricesLearnt
from apportion_schemas.pricing import PricedShape
from apportion_schemas.quantities import WHOLE

TOO_BIG = WHOLE + 1


class Fragments:
    """The distribution of shapes. `sizes` is by kind and shape: percent of one device, `TOO_BIG`
    where the shape does not go; `pods` are the weights, which sum to `total`.
    """

    def __init__(self, prices: PricesLearnt, devices: list[Device | None]) -> None:
        shapes = prices.shapes
        self.cpu_milli = np.array([shape.cpu_milli for shape in shapes], np.int64)
        counts = [shape.ask.count if shape.ask else 1 for shape in shapes]
        self.counts = np.array(counts, np.int64)
        self.pods = np.array([shape.pods for shape in shapes], np.int64)
        self.total = int(self.pods.sum())
        sizes = [[_size(shape, device) for shape in shapes] for device in devices]
        self.sizes = np.array(sizes, np.int64)


def _size(shape: PricedShape, device: Device | None) -> int:
    if shape.ask is None or device is None:
        return TOO_BIG
    wants = DeviceConstraints(use_types=shape.use_types)
    size = sort_of(shape).size_on(device)
    return size if size != NEVER and type_name(shape.ask, wants, device) else TOO_BIG
