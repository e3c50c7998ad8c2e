"""Which causes of a refusal come first: the most frequent that something can change.

Invariant: what nodes and devices are is the first cause only where there is no other.
"""

from typing import Final

from apportion.core.explain.limit_words import LIMIT_CODES
from apportion.core.placement.feasibility.causes import of_kind
from apportion.core.placement.feasibility.descriptors import Kind
from apportion_schemas import PodRefused, RefusalCode

LASTING: Final = of_kind(Kind.LASTING)
"""Causes that no end of any pod takes away: they speak of what nodes and devices are."""


def frequent(refused: PodRefused) -> list[tuple[RefusalCode, int]]:
    """The causes: a limit first, what nodes and devices are last; of the others the most frequent,
    and equal ones in the order of the codes.
    """
    order = list(RefusalCode)
    return sorted(
        refused.reasons.items(),
        key=lambda row: (
            row[0] not in LIMIT_CODES,
            row[0] in LASTING,
            -row[1],
            order.index(row[0]),
        ),
    )
