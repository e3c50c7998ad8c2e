"""Find out whether a pod could ever be placed, by trying to place it in the empty fleet.

The empty fleet has the same nodes without pods: all nodes are ready, all devices healthy, no agent
silent and nothing cordoned. If a pod is refused even there, the fleet or a limit is the cause."""

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from apportion.core.ledger.state import PodState, State
from apportion.core.placement.feasibility.evaluator import mended
from apportion.lab.course import Course, copied
from apportion_schemas import (
    DeviceHealthChanged,
    DevicesRegistered,
    DeviceUncordoned,
    NodeHeard,
    NodeReported,
    NodeUncordoned,
    PodConstraints,
    PodGone,
    PodGroupObserved,
    PodRefused,
    PodSubmitted,
    RefusalCode,
)

# Refusals that may end without more room: a claim is bound, a queue opened, a gang completed.
PASSES: Final = frozenset(
    (
        RefusalCode.VOLUME_CLAIM_NOT_READY,
        RefusalCode.VOLUME_CLAIM_IN_USE,
        RefusalCode.QUEUE_CLOSED,
        RefusalCode.GANG_INCOMPLETE,
    )
)


class EmptyFleet:
    """A copy of the fleet in `state` without its pods."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._course: Course | None = None
        self._known: dict[tuple[bytes, str, str], PodRefused | None] = {}
        self._gangs: dict[str, PodRefused | None] = {}

    def lasting(self, pod: PodState) -> PodRefused | None:
        """Return why a pending pod can never be placed, or None if a placement is possible.

        A gang that must be placed together is tried as a whole; other pods are tried alone."""
        if pod.refusal is None and not pod.submitted.gates:
            return None
        name = pod.submitted.group
        group = self._state.groups.get(name) if name else None
        if group is None or group.observed is None or not group.together:
            about = pod.submitted
            key = (pod.shape_key, about.namespace, about.queue)
            if key not in self._known:
                self._known[key] = self._ask([structs.replace(about, group="", task="")], None)
            return self._known[key]
        if name not in self._gangs:
            members = [each.submitted for each in group.pods.values()]
            self._gangs[name] = self._ask(members, group.observed)
        return self._gangs[name]

    def _ask(
        self, pods: Iterable[PodSubmitted], group: PodGroupObserved | None
    ) -> PodRefused | None:
        course = self._course = self._course or _emptied(self._state)
        if group is not None:
            course.apply(group)
        asked = []
        for number, pod in enumerate(pods):
            shape = structs.replace(pod.shape, pods=PodConstraints())  # no other pods are there
            asked.append(
                structs.replace(pod, shape=shape, chooser="", gates=(), uid=f"ask-{number}")
            )
        for pod in asked:
            course.apply(pod)
        for _ in course.settle():
            pass
        live = [course.state.pods[pod.uid] for pod in asked]
        waits = [pod.refusal for pod in live if pod.placement is None and pod.refusal is not None]
        placed = any(pod.placement is not None for pod in live)
        for pod in asked:
            course.apply(PodGone(uid=pod.uid))
        if placed or not waits or PASSES & waits[0].reasons.keys():
            return None
        return waits[0]


def _emptied(state: State) -> Course:
    course = Course(copied(state))
    for uid in list(course.state.pods):
        course.apply(PodGone(uid=uid))
    for device in list(course.state.device_cordons):
        course.apply(DeviceUncordoned(device=device, by="lab"))
    for node in list(course.state.nodes.values()):
        if node.cordon:
            course.apply(NodeUncordoned(node=node.name, by="lab"))
        seen = node.observed
        if seen is not None and not node.gone:
            course.apply(mended(seen))
        if node.silent:
            course.apply(NodeHeard(node=node.name))
        if node.foreign_plugin:  # our agent can replace it
            devices = tuple(held.device for held in node.devices)
            course.apply(NodeReported(node=node.name, devices=devices, host=node.host))
            course.apply(DevicesRegistered(node=node.name))
        for held in node.devices:
            if not held.healthy:
                course.apply(
                    DeviceHealthChanged(node=node.name, device=held.device.id, healthy=True)
                )
    return course
