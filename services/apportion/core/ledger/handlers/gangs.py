"""Apply events about gangs: their PodGroups, their pods, and their place in the queue.

A gang is dropped with its last pod. In a Kubernetes cluster its controller may then create all pods
again, for example after their node failed. So the state keeps when the gang was first submitted,
for the newest `GANGS_LEFT_MAX` such gangs, until the PodGroup is deleted.

Invariant: a gang with pods has the revision of its first submission, and is not in `gangs_left`."""

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
    if group.pods:
        return
    del state.groups[name]
    if state.of_kubernetes and group.observed is not None:
        state.gangs_left[name] = group.since
        if len(state.gangs_left) > GANGS_LEFT_MAX:
            del state.gangs_left[next(iter(state.gangs_left))]


@folds(PodGroupObserved)
def _group_observed(context: Context, data: PodGroupObserved) -> Change:
    context.state.groups.setdefault(data.group, GroupState()).observed = data
    return Change(data)


@folds(PodGroupGone)
def _group_gone(context: Context, data: PodGroupGone) -> Change:
    """Forget the gang if it has no pods left; otherwise keep it with its PodGroup."""
    group = context.state.groups.get(data.group)
    if group is not None and not group.pods:
        del context.state.groups[data.group]
    context.state.gangs_left.pop(data.group, None)
    return Change(data)
