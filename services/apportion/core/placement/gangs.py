"""Which pods of a gang must be placed together.

A gang is placed whole or not at all: the first time, `min_available` of it (and of each task its
own minimum) go in one batch. Once that many hold places, the others come one by one, as Volcano's
elastic members do.
"""

from apportion.core.ledger.state import GroupState, PodState


def held(group: GroupState) -> int:
    """Pods of the gang that have a place."""
    return sum(pod.placement is not None for pod in group.pods.values())


def must_start_together(group: GroupState, waiting: list[PodState]) -> list[PodState] | None:
    """The waiting pods to place in one batch, in order; None while too few are there.

    `waiting` is in the order of turns and not empty.
    """
    missing = group.min_available - held(group)
    tasks = dict(group.observed.min_tasks) if group.observed else {}
    for pod in group.pods.values():
        if pod.placement is not None and pod.submitted.task in tasks:
            tasks[pod.submitted.task] -= 1
    missing_tasks = {task: count for task, count in tasks.items() if count > 0}
    if missing <= 0 and not missing_tasks:
        return waiting[:1]
    chosen, others = [], []
    for pod in waiting:
        task = pod.submitted.task
        if missing_tasks.get(task, 0) > 0:
            missing_tasks[task] -= 1
            chosen.append(pod)
        else:
            others.append(pod)
    if any(count > 0 for count in missing_tasks.values()):
        return None
    chosen.extend(others[: max(missing - len(chosen), 0)])
    return chosen if len(chosen) >= missing else None
