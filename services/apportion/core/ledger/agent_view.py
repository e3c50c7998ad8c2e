"""Add to a placement what the node's agent needs to know about the pod.

An agent reads only its own node's events, and never a pod's submission. Invariant: what is added
follows from the submission, the shares and the devices, so the state does not store it."""

from collections.abc import Iterable

from msgspec import structs

from apportion.core.grants.controls import HIGH, PRIORITY
from apportion.core.workloads.dialects.borrowing import lent
from apportion_schemas import Device, PodPlaced, PodSubmitted
from apportion_schemas.workload import Controls


def handed(placed: PodPlaced, pod: PodSubmitted, devices: Iterable[Device]) -> PodPlaced:
    """Add to the placement the shares that containers borrow, and settings such as priority."""
    if not (pod.borrowing or pod.controls or pod.high_priority):
        return placed
    known = {device.id: device for device in devices}
    borrowed = [share for ask in pod.borrowing for share in lent(ask, pod, placed.shares, known)]
    first: Controls = {name: {PRIORITY: HIGH} for name in pod.high_priority}
    names = (*first, *pod.controls)
    controls = {name: first.get(name, {}) | pod.controls.get(name, {}) for name in names}
    return structs.replace(placed, borrowed=tuple(borrowed), controls=controls)
