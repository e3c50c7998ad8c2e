"""The shape of a pod: one object for all pods that any node would treat alike.

Invariant: `shape_key` is the bytes of the pod's shape, and pods of equal keys have the same object.
"""

from hashlib import sha256

import msgspec

from apportion.core.ledger.state import PodState, State
from apportion_schemas import PodSubmitted, Shape

shape_key = msgspec.json.Encoder(order="sorted").encode
"""A shape as bytes, equal for equal ones."""


def spec_digest(key: bytes, pod: PodSubmitted) -> str:
    """A digest of what a pod of that shape key asks for, its labels, gang and queue."""
    rest = (sorted(pod.labels.items()), pod.priority, pod.group, pod.task, pod.queue, pod.owner)
    return sha256(key + repr(rest).encode()).hexdigest()[:16]


def reshape(state: State, pod: PodState, shape: Shape) -> None:
    """Let the pod be of another shape from now on."""
    pod.shape_key = shape_key(shape)
    shape = state.shapes.setdefault(pod.shape_key, shape)
    pod.submitted = msgspec.structs.replace(pod.submitted, shape=shape)
