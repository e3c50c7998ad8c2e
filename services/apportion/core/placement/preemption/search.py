"""The node on which making room for a pod costs least, found a few nodes at a time.

As kube-scheduler it compares what it finds on so many nodes and no more. Invariant: without a
change of the state the answer is the same, in however many parts it was looked for.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from apportion.core.ledger.state import PodState
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.preemption.victims import DryRun, Victims

COMPARED_MAX: Final = 100
"""kube-scheduler's `minCandidateNodesAbsolute`."""


class Search:
    """Looks for one pod; `rows` are the nodes that it has not tried."""

    def __init__(self, dry_run: DryRun, pod: PodState, rows: Iterable[int]) -> None:
        self._dry_run = dry_run
        self.pod = pod
        self.rows = deque(rows)
        self.best: Victims | None = None
        self._compared = 0

    def go_on(self, tries_max: Int64) -> bool:
        """Try so many nodes; whether that was all that there is to try."""
        while self.rows and not self._enough():
            if tries_max <= 0:
                return False
            tries_max -= 1
            found = self._dry_run.victims(self.pod, self.rows.popleft())
            if found is None:
                continue
            self._compared += 1
            if self.best is None or found.better_than(self.best):
                self.best = found
            if not found.units:  # nobody has to go: there is room once those go who leave already
                self.rows.clear()
        return True

    def _enough(self) -> bool:
        """Whether so many were found that more would not be compared."""
        best = self.best
        return self._compared >= COMPARED_MAX and best is not None and not best.budgets
