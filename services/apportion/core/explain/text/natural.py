"""Natural order of names: node-2 before node-10.

Invariant: only identical names are equal, so a list can be split into pages at any name."""

import re
from functools import lru_cache

NAMES_KEPT = 1 << 16
_digits = re.compile(r"([0-9]+)").split

NaturalKey = tuple[tuple[str | int, ...], str]


@lru_cache(NAMES_KEPT)
def natural(name: str) -> NaturalKey:
    """Return a sort key: alternating text and numbers, then the name itself."""
    parts = _digits(name)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), name
