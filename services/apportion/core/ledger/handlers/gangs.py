"""Apply events about gangs: their PodGroups, their pods, and their place in the queue.

The priority of a gang is the highest of its live pods. Its age is that of its first pod, or of the
deletion of its PodGroup if it had pods then: a PodGroup of the same name is a new gang. A gang is
dropped with its last pod. In a Kubernetes cluster its controller may then create all pods again,
for example after their node failed. So the state keeps the age for the newest `GANGS_LEFT_MAX` such
gangs, until the PodGroup is deleted.

A gang that is too large for one atomic batch is placed in several. Its pods are held until the last
batch: their placements count, but the pods are not bound. With the last batch, the fold releases
them all.

Invariants: a gang with pods has an age and the highest priority of its pods, and is not in
`gangs_left`. A held pod is placed, and not bound."""

from collections import Counter
from typing import Final

from apportion.core.ledger.handlers.change import Change, Context, folds
from apportion.core.ledger.state import GroupState, PodState, State
from apportion_schemas import PodGroupGone, PodGroupObserved

GANGS_LEFT_MAX: Final = 1_024


def join(state: State, pod: PodState) -> None:
    """Add a pod that was just submitted to its gang."""
    name, priority = pod.submitted.group, pod.submitted.priority
    group = state.groups.setdefault(name, GroupState())
    if not group.since:
        group.since = state.gangs_left.pop(name, pod.submitted_revision)
        group.priority = priority
    group.priority = max(group.priority, priority)
    group.pods[pod.uid] = pod


def part(state: State, pod: PodState) -> None:
    """Remove a pod that has ended from its gang; drop the gang with its last pod."""
    name = pod.submitted.group
    group = state.groups[name]
    del group.pods[pod.uid]
    group.held.pop(pod.uid, None)
    others = group.pods.values()
    if others:
        highest = group.priority
        if all(each.submitted.priority < highest for each in others):
            group.priority = max(each.submitted.priority for each in others)
        return
    del state.groups[name]
    if state.of_kubernetes and group.observed is not None:
        state.gangs_left[name] = group.since
        if len(state.gangs_left) > GANGS_LEFT_MAX:
            del state.gangs_left[next(iter(state.gangs_left))]


def missing(group: GroupState) -> tuple[Counter[str], int]:
    """Return how many pods the gang lacks to start: by task, and how many more of any task."""
    placed = [pod for pod in group.pods.values() if pod.placement is not None]
    tasks = minimums_of(group) - Counter(pod.submitted.task for pod in placed)
    return tasks, max(group.min_available - len(placed) - tasks.total(), 0)


def minimums_of(group: GroupState) -> Counter[str]:
    """Return the minimum of each task; empty if together they exceed the gang's minimum."""
    minimums = Counter(group.observed.min_tasks if group.observed is not None else {})
    return minimums if minimums.total() <= group.min_available else Counter()


def hold(state: State, pod: PodState, *, more_follow: bool) -> None:
    """Hold a pod that was just placed, if its gang has placements in other batches.

    If no more placements follow and the gang has its minimum, release all of its held pods."""
    group = state.groups[pod.submitted.group]
    if not (more_follow or group.held):
        return
    group.held[pod.uid] = None
    if not more_follow:
        release_if_whole(group)


def release(state: State, pod: PodState) -> None:
    """Stop holding a pod that is no longer placed."""
    if pod.submitted.group:
        state.groups[pod.submitted.group].held.pop(pod.uid, None)


def is_held(state: State, pod: PodState) -> bool:
    """Return True if the pod is placed, but may not be bound before the rest of its gang."""
    return bool(pod.submitted.group) and pod.uid in state.groups[pod.submitted.group].held


def release_if_whole(group: GroupState) -> None:
    """Release all held pods of a gang that has its minimum."""
    if group.held and not any(missing(group)):
        group.held.clear()


@folds(PodGroupObserved)
def _group_observed(context: Context, data: PodGroupObserved) -> Change:
    group = context.state.groups.setdefault(data.group, GroupState())
    group.observed = data
    release_if_whole(group)
    return Change(data)


@folds(PodGroupGone)
def _group_gone(context: Context, data: PodGroupGone) -> Change:
    """Forget the gang if it has no pods left; otherwise keep it, with a new age."""
    group = context.state.groups.get(data.group)
    if group is not None and group.pods:
        group.since = context.revision
    elif group is not None:
        del context.state.groups[data.group]
    context.state.gangs_left.pop(data.group, None)
    return Change(data)
