"""Known names that are like one that nothing has."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher, get_close_matches
from typing import Final

OFFERED_MAX: Final = 3
ALIKE: Final = 0.6
"""From nothing in common, 0, to the same, 1."""
_LOOK_ALIKE: Final = str.maketrans("oil", "011")


def look(name: str) -> str:
    """The name without case; letters that look like digits are taken for these."""
    return name.lower().translate(_LOOK_ALIKE)


def near(
    name: str,
    known: Iterable[str],
    *,
    alike: float = ALIKE,
    most: int = OFFERED_MAX,
    seen_as: Callable[[str], str] = look,
) -> list[str]:
    """At most so many known names that are at least so much like it, the nearest first."""

    def as_written(each: str) -> int:
        return sum(one == other for one, other in zip(name, each, strict=False))

    by_look = defaultdict[str, list[str]](list)
    for each in sorted(set(known), key=lambda each: (-as_written(each), each)):
        by_look[seen_as(each)].append(each)
    found = get_close_matches(seen_as(name), by_look, n=most, cutoff=alike)
    return [each for seen in found for each in by_look[seen]][:most]


def nearest(name: str, known: Iterable[str], *, alike: float) -> list[str]:
    """All known names that are as much like it as any other, by exact letters, in order."""
    found = near(name, known, alike=alike, most=8, seen_as=str)
    likeness = {each: SequenceMatcher(None, each, name).ratio() for each in found}
    return sorted(each for each in found if likeness[each] == max(likeness.values()))
