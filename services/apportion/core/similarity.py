"""Find known names that are similar to an unknown name, for suggestions."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher, get_close_matches
from typing import Final

OFFERED_MAX: Final = 3
ALIKE: Final = 0.6  # 0: nothing in common; 1: equal
_LOOK_ALIKE: Final = str.maketrans("oil", "011")


def look(name: str) -> str:
    """Return the name in lower case, with similar letters replaced by digits."""
    return name.lower().translate(_LOOK_ALIKE)


def near(
    name: str,
    known: Iterable[str],
    *,
    alike: float = ALIKE,
    most: int = OFFERED_MAX,
    seen_as: Callable[[str], str] = look,
) -> list[str]:
    """Return at most `most` known names that are similar to `name`, best first."""

    def as_written(each: str) -> int:
        return sum(one == other for one, other in zip(name, each, strict=False))

    by_look = defaultdict[str, list[str]](list)
    for each in sorted(set(known), key=lambda each: (-as_written(each), each)):
        by_look[seen_as(each)].append(each)
    found = get_close_matches(seen_as(name), by_look, n=most, cutoff=alike)
    return [each for seen in found for each in by_look[seen]][:most]


def nearest(name: str, known: Iterable[str], *, alike: float) -> list[str]:
    """Return all known names that are most similar to `name` by exact letters."""
    found = near(name, known, alike=alike, most=8, seen_as=str)
    likeness = {each: SequenceMatcher(None, each, name).ratio() for each in found}
    return sorted(each for each in found if likeness[each] == max(likeness.values()))
