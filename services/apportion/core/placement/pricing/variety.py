"""The shapes that weigh most in a node's room for variety, and how much each weighs."""

from math import isqrt
from typing import Final, NamedTuple

from apportion.core.placement.pricing.sizes import NEVER, Sort, sort_of
from apportion_schemas.pricing import PricedShape
from apportion_schemas.quantities import WHOLE

SHAPES_WEIGHED: Final = 16  # more cost time and gain nothing


class Frequent(NamedTuple):
    """One independent piece of a frequent pod; `weight` is what the room for one more is worth.

    In millionths of a device: half the part of all pods times the root of the size in thousandths.
    """

    sort: Sort
    cpu_milli: int
    memory_mib: int
    weight: int


def frequent(shapes: tuple[PricedShape, ...]) -> list[Frequent]:
    """The shapes of most weight, whatever models they insist on."""
    merged: dict[Sort, list[PricedShape]] = {}
    for shape in shapes:
        merged.setdefault(sort_of(shape), []).append(shape)
    total = sum(shape.pods for shape in shapes)
    found = [_frequent(alike, total) for alike in merged.values()]
    found.sort(key=lambda each: (-each.weight, repr(each)))
    return found[:SHAPES_WEIGHED]


def _frequent(alike: list[PricedShape], total: int) -> Frequent:
    sort, size = sort_of(alike[0]), alike[0].size
    pods = sum(shape.pods for shape in alike)
    memory_mib = sum(shape.pods * shape.memory_mib for shape in alike) // pods
    pieces = sort.pieces(WHOLE if sort.ask is not None and sort.ask.whole else NEVER)
    root = isqrt(size // pieces * 1000)  # of thousandths, in thousandths
    weight = pods * pieces * root // (2 * total)
    return Frequent(sort, sort.cpu_milli // pieces, memory_mib // pieces, weight)
