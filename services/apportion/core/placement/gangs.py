"""What a gang lacks before its pods may start.

A gang is placed whole or not at all: the first time, `min_available` of it (and of each task its
own minimum) go in one batch. Once that many hold places, the others come one by one, as Volcano's
elastic members do. Task minimums that add up to more than `min_available` bind nothing, which is
Volcano's rule as well. Invariant: nothing of a gang is placed before it is declared."""

from collections import Counter
from typing import NamedTuple

from apportion.core.ledger.state import GroupState, PodState


class GangDeficit(NamedTuple):
    """Pods that must be placed together next: of each task, and of any task beside those."""

    tasks: Counter[str]
    others: int

    @property
    def pods(self) -> int:
        """How many pods that is."""
        return self.tasks.total() + self.others

    def met_by(self, waiting: list[PodState]) -> bool:
        """Whether so many pods wait, of the right tasks."""
        there = Counter(pod.submitted.task for pod in waiting)
        return len(waiting) >= self.pods and self.tasks <= there

    def less(self, pod: PodState) -> "GangDeficit | None":
        """What is lacking once this pod has a place, or None where that would be one too many."""
        task = pod.submitted.task
        if self.tasks[task]:
            return GangDeficit(self.tasks - Counter([task]), self.others)
        return GangDeficit(self.tasks, self.others - 1) if self.others else None


def held(group: GroupState) -> list[PodState]:
    """The pods of the gang that have a place."""
    return [pod for pod in group.pods.values() if pod.placement is not None]


def deficit_of(group: GroupState) -> GangDeficit | None:
    """What the gang's next batch must hold; None for a gang that is not declared yet."""
    if group.observed is None:
        return None
    placed = held(group)
    minimums, tasks = Counter(group.observed.min_tasks), Counter[str]()
    if minimums.total() <= group.min_available:
        tasks = minimums - Counter(pod.submitted.task for pod in placed)
    others = max(group.min_available - len(placed) - tasks.total(), 0)
    return GangDeficit(tasks, others) if tasks or others else GangDeficit(tasks, 1)
