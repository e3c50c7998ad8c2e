"""What `apportion drain` would do without Kubernetes, on a copy: cordon, and move pod by pod.

Each pod, or gang that holds its places together, ends and comes again, and has its place before the
next one goes: the verb submits them in this order, and so they are decided. Invariant: the order is
that of turns, by priority and then by revision; the verb keeps it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from apportion.core.ledger.state import PodState, State
from apportion.core.placement.queueing.shape_queue import turn_of
from apportion.lab.changes import LOST_MAX, WHO, Displaced, WishInvalid, submitted_again, targets
from apportion.lab.course import Course
from apportion.runtime.ledger.starting import is_command
from apportion_schemas import DeviceCordoned, NodeCordoned, PodGone

REASON = "drain"


def drain(
    course: Course, names: Iterable[str], settle: Callable[[], Iterator[int]]
) -> list[Displaced]:
    """Take these nodes and devices off offer, and move what runs there; `settle` decides.

    Raises:
        WishInvalid: there is no such node or device, or too much runs there.
    """
    there: dict[str, PodState] = {}
    for target in targets(course.state, names):
        node = target.node.name
        course.apply(
            DeviceCordoned(device=target.device, by=WHO, reason=REASON)
            if target.device
            else NodeCordoned(node=node, by=WHO, reason=REASON)
        )
        there |= {pod.uid: pod for pod in target.pods()}
    displaced = list[Displaced]()
    for unit in _units(course.state, there.values()):
        live = [(pod, pod.placement.node) for pod in unit
                if pod.uid in course.state.pods and pod.placement is not None]  # fmt: skip
        if any(is_command(pod.submitted.owner) for pod, _ in live):
            continue  # it ends where it is
        for pod, node in live:
            again = submitted_again(pod.submitted, f"drained-{len(displaced)}")
            displaced.append(Displaced(pod, node, again))
            course.apply(again)
        for pod, _ in live:
            course.apply(PodGone(uid=pod.uid, reason=REASON))
        for _ in settle():
            pass
    return displaced


def _units(state: State, pods: Iterable[PodState]) -> list[list[PodState]]:
    """What is moved in one piece, in the order of their turns."""
    units: dict[str, list[PodState]] = {}
    for pod in sorted(pods, key=turn_of):
        group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
        if group is None or group.min_available <= 1:
            units[pod.uid] = [pod]
        elif pod.submitted.group not in units:
            held = (each for each in group.pods.values() if each.placement is not None)
            units[pod.submitted.group] = sorted(held, key=turn_of)
    if sum(map(len, units.values())) > LOST_MAX:
        raise WishInvalid("drain", f"more than {LOST_MAX} pods are there", "drain fewer at once")
    return list(units.values())
