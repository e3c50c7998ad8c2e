"""Compute what a gang lacks before its pods may start.

First, `min_available` pods, with the minimum of each task, are placed in one batch; the others
follow one by one, like Volcano's elastic members. As in Volcano, task minimums that exceed
`min_available` in total are ignored. Invariant: no pod of an undeclared gang is placed."""

from collections import Counter
from typing import NamedTuple

from apportion.core.ledger.state import GroupState, PodState


class GangDeficit(NamedTuple):
    """The pods that must be placed together next: per task, and `others` of any task."""

    tasks: Counter[str]
    others: int

    @property
    def pods(self) -> int:
        """Return the total number of pods that are lacking."""
        return self.tasks.total() + self.others

    def met_by(self, waiting: list[PodState]) -> bool:
        """Return True if enough pods of the right tasks are pending."""
        there = Counter(pod.submitted.task for pod in waiting)
        return len(waiting) >= self.pods and self.tasks <= there

    def less(self, pod: PodState) -> "GangDeficit | None":
        """Return what is lacking after this pod is placed, or None if the pod is not lacking."""
        task = pod.submitted.task
        if self.tasks[task]:
            return GangDeficit(self.tasks - Counter([task]), self.others)
        return GangDeficit(self.tasks, self.others - 1) if self.others else None


def held(group: GroupState) -> list[PodState]:
    """Return the placed pods of the gang."""
    return [pod for pod in group.pods.values() if pod.placement is not None]


def deficit_of(group: GroupState) -> GangDeficit | None:
    """Return what the gang's next batch must contain; None for an undeclared gang."""
    if group.observed is None:
        return None
    placed = held(group)
    minimums, tasks = Counter(group.observed.min_tasks), Counter[str]()
    if minimums.total() <= group.min_available:
        tasks = minimums - Counter(pod.submitted.task for pod in placed)
    others = max(group.min_available - len(placed) - tasks.total(), 0)
    return GangDeficit(tasks, others) if tasks or others else GangDeficit(tasks, 1)
