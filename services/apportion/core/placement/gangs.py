"""Compute which pods of a gang must be placed before any of them may start.

The first batch places `min_available` pods, with the minimum of each task. The others follow one by
one, like Volcano's elastic members. Invariant: no pod of a gang without a PodGroup is placed."""

from collections import Counter
from typing import NamedTuple

from apportion.core.ledger.handlers.gangs import missing
from apportion.core.ledger.state import GroupState, PodState


class GangDeficit(NamedTuple):
    """How many pods of a gang must still be placed together."""

    tasks: Counter[str]  # how many pods of each task
    others: int  # how many more, of any task

    @property
    def pods(self) -> int:
        """Return how many pods the next batch must place in total."""
        return self.tasks.total() + self.others

    def met_by(self, waiting: list[PodState]) -> bool:
        """Return True if `waiting` has enough pods of each task."""
        there = Counter(pod.submitted.task for pod in waiting)
        return len(waiting) >= self.pods and self.tasks <= there

    def less(self, pod: PodState) -> "GangDeficit | None":
        """Return the deficit after this pod is placed; None if the pod would not reduce it."""
        task = pod.submitted.task
        if self.tasks[task]:
            return GangDeficit(self.tasks - Counter([task]), self.others)
        return GangDeficit(self.tasks, self.others - 1) if self.others else None


def held(group: GroupState) -> list[PodState]:
    """Return the gang's pods that are placed."""
    return [pod for pod in group.pods.values() if pod.placement is not None]


def deficit_of(group: GroupState) -> GangDeficit | None:
    """Return what the gang's next batch must place; None if the gang has no PodGroup yet."""
    if group.observed is None:
        return None
    tasks, others = missing(group)
    return GangDeficit(tasks, others) if tasks or others else GangDeficit(tasks, 1)
