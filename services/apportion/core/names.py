"""Sort names naturally, node-2 before node-10, and find known names similar to an unknown one.

Invariant: only identical names sort as equal, so a list can be split into pages at any name."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from typing import Final

OFFERED_MAX: Final = 3
ALIKE: Final = 0.6  # 0: nothing in common; 1: equal
NAMES_KEPT = 1 << 16
_digits = re.compile(r"([0-9]+)").split
_LOOK_ALIKE: Final = str.maketrans("oil", "011")
NaturalKey = tuple[tuple[str | int, ...], str]


@lru_cache(NAMES_KEPT)
def natural(name: str) -> NaturalKey:
    """Return a sort key that compares numbers in names as numbers: node-2 before node-10."""
    parts = _digits(name)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), name


def look(name: str) -> str:
    """Return a key for how a name looks: in lower case, with digits for the letters o, i and l."""
    return name.lower().translate(_LOOK_ALIKE)


def near(
    name: str,
    known: Iterable[str],
    *,
    alike: float = ALIKE,
    most: int = OFFERED_MAX,
    seen_as: Callable[[str], str] = look,
) -> list[str]:
    """Return at most `most` known names that look similar to `name`, best first."""

    def as_written(each: str) -> int:
        return sum(one == other for one, other in zip(name, each, strict=False))

    by_look = defaultdict[str, list[str]](list)
    for each in sorted(set(known), key=lambda each: (-as_written(each), each)):
        by_look[seen_as(each)].append(each)
    found = get_close_matches(seen_as(name), by_look, n=most, cutoff=alike)
    return [each for seen in found for each in by_look[seen]][:most]


def nearest(name: str, known: Iterable[str], *, alike: float) -> list[str]:
    """Return the most similar of the known names; if several are equally similar, all of them."""
    found = near(name, known, alike=alike, most=8, seen_as=str)
    likeness = {each: SequenceMatcher(None, each, name).ratio() for each in found}
    return sorted(each for each in found if likeness[each] == max(likeness.values()))
