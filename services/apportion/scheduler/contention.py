"""When to keep apart from other schedulers: only while they place as well.

Schedulers that all put pods on the node that packs best are refused all the time; one that keeps to
nodes of its own packs a little worse. So a member tries its own nodes first only while pods wait
for others too, or a fence has refused it, and for a few decisions more.

Invariant: it follows from what has been folded and from what became of one's own decisions, without
a clock; alone, a scheduler is never apart.
"""

from __future__ import annotations

from typing import Final

CALM_DECISIONS: Final = 8
"""So many decisions in a row while nobody else had work, and it packs as if it were alone."""


class Contention:
    """One scheduler's view of whether others are at work."""

    def __init__(self) -> None:
        self._calm = CALM_DECISIONS

    @property
    def apart(self) -> bool:
        """Whether to try our own nodes first."""
        return self._calm < CALM_DECISIONS

    def look(self, *, others_wait: bool) -> None:
        """Before a decision: whether pods wait for other members."""
        self._calm = 0 if others_wait else self._calm + 1

    def refused(self) -> None:
        """A fence refused a decision."""
        self._calm = 0
