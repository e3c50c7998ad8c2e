"""From the solved program to prices: what a pod of each shape is worth.

Worth is what the shape would have to displace, scaled so that the pods of the best plan are
together worth what they take; a shape that displaces next to nothing still has a part of its size.
"""

from typing import Final

from apportion.core.placement.pricing.fleet import NodeType
from apportion.core.placement.pricing.program import Program, Solution, sizes
from apportion.core.placement.pricing.shape_histogram import SeenShape
from apportion.core.placement.pricing.sizes import sort_of
from apportion_schemas import PricesLearnt
from apportion_schemas.pricing import VALUE_MAX, PricedShape

LEAST_PART: Final = 0.3  # of its size, that a shape is worth
MILLION: Final = 1_000_000


def appraise(
    shapes: list[SeenShape],
    types: list[NodeType],
    program: Program,
    solution: Solution,
    *,
    pods: int,
) -> PricesLearnt:
    """The prices of these shapes, of which so many pods have been seen."""
    size_of = sizes(shapes, types)
    displaced = {
        sort: size_of[sort] - float(solution.price[row]) for sort, row in program.demands.items()
    }
    amounts = {sort: float(solution.used[row]) for sort, row in program.demands.items()}
    with_devices = [sort for sort in displaced if sort.ask is not None]
    all_worth = sum(amounts[sort] * displaced[sort] for sort in with_devices)
    taken = sum(amounts[sort] * size_of[sort] for sort in with_devices)
    scale = taken / all_worth if all_worth > 0 else 1.0
    priced = []
    for shape in shapes:
        sort = sort_of(shape)
        size = size_of[sort]
        worth = max(scale * displaced.get(sort, size), LEAST_PART * size)
        priced.append(
            PricedShape(
                ask=shape.ask,
                cpu_milli=shape.cpu_milli,
                memory_mib=shape.memory_mib,
                pods=shape.pods,
                size=_micro(size),
                value=_micro(worth),
                modes=shape.modes,
                use_types=shape.use_types,
            )
        )
    return PricesLearnt(pods=pods, shapes=tuple(priced))


def _micro(devices: float) -> int:
    return min(max(round(devices * MILLION), 0), VALUE_MAX)
