"""What pods are worth on the nodes that there are, from the shapes that were seen."""

from apportion.core.placement.pricing.appraisal import appraise
from apportion.core.placement.pricing.fleet import NodeType
from apportion.core.placement.pricing.program import build
from apportion.core.placement.pricing.shape_histogram import SeenShape
from apportion.runtime.solving.solver import solve
from apportion_schemas import PricesLearnt


def learn(shapes: list[SeenShape], types: list[NodeType], *, pods: int) -> PricesLearnt:
    """What pods of these shapes are worth on these nodes; `pods` is how many have been seen.

    Raises:
        NoPrices: the solver gave up.
    """
    program = build(shapes, types)
    return appraise(shapes, types, program, solve(program), pods=pods)
