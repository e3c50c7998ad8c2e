"""The scores by which each policy ranks the nodes and devices that fit.

Until prices are learnt, the policies that weigh frequent shapes act like `bestfit`."""

from collections.abc import Callable
from typing import Final

from apportion.core.placement.index.score_input import NodeScore
from apportion.core.placement.pricing.price_table import PriceTable
from apportion.core.placement.scores.by_shape import Fgd, Price
from apportion.core.placement.scores.nodes import LOADS, Bestfit
from apportion_schemas import Shape

WEIGH_SHAPES: Final[dict[str, Callable[[Shape, PriceTable], NodeScore]]] = {
    "fgd": Fgd,
    "price": Price,
}


def node_score(policy: str, shape: Shape, price_table: PriceTable | None) -> NodeScore:
    """Return the policy's score for one shape; prices may not be learnt yet."""
    if policy in WEIGH_SHAPES:
        return (
            WEIGH_SHAPES[policy](shape, price_table) if price_table is not None else Bestfit(shape)
        )
    return LOADS[policy](shape)
