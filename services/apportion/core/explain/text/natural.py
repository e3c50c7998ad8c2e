"""The order of names as people count: node-2 before node-10.

Invariant: it is a total order, and two names are equal in it only if they are the same, so a list
can be cut into pages behind any name."""

import re
from functools import lru_cache

NAMES_KEPT = 1 << 16
_digits = re.compile(r"([0-9]+)").split

NaturalKey = tuple[tuple[str | int, ...], str]


@lru_cache(NAMES_KEPT)
def natural(name: str) -> NaturalKey:
    """What a name is sorted by: its text and its numbers in turn, and at last itself."""
    parts = _digits(name)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), name
