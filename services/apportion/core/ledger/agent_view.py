"""A placement as its node's agent is told of it.

An agent reads what happens on its own node, and no pod's submission. So the event of a placement
says what it has to know of the pod besides. Invariant: all of it follows from the submission, the
shares and the devices, so no state has to keep it."""

from collections.abc import Iterable

from msgspec import structs

from apportion.core.grants.controls import HIGH, PRIORITY
from apportion.core.workloads.dialects.borrowing import lent
from apportion_schemas import Device, PodPlaced, PodSubmitted
from apportion_schemas.workload import Controls


def handed(placed: PodPlaced, pod: PodSubmitted, devices: Iterable[Device]) -> PodPlaced:
    """The placement with what containers borrow, and with how they are to be held."""
    if not (pod.borrowing or pod.controls or pod.high_priority):
        return placed
    known = {device.id: device for device in devices}
    borrowed = [share for ask in pod.borrowing for share in lent(ask, pod, placed.shares, known)]
    first: Controls = {name: {PRIORITY: HIGH} for name in pod.high_priority}
    names = (*first, *pod.controls)
    controls = {name: first.get(name, {}) | pod.controls.get(name, {}) for name in names}
    return structs.replace(placed, borrowed=tuple(borrowed), controls=controls)
