"""Which of the names that are known here somebody may have meant by one that is not.

Invariant: of several that are as near as the nearest all are named: whoever copies the only one
that is offered would believe that it is the right one.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import SequenceMatcher, get_close_matches
from typing import Final

OFFERED_MAX: Final = 8


def meant(name: str, known: Collection[str], cutoff: float) -> str:
    """As in `; did you mean a, b or c?`; empty where none is as alike as `cutoff`."""
    near = get_close_matches(name, known, n=OFFERED_MAX, cutoff=cutoff)
    best = max((_likeness(name, each) for each in near), default=0.0)
    *others, last = sorted(each for each in near if _likeness(name, each) == best) or [""]
    if not last:
        return ""
    return f"; did you mean {', '.join(others)} or {last}?" if others else f"; did you mean {last}?"


def _likeness(name: str, known: str) -> float:
    return SequenceMatcher(None, known, name).ratio()
