"""By which keys pods wait together: pods of one key are decided by one question.

Invariant: two pods of one key are treated alike by every node and every limit."""

import msgspec

from apportion.core.ledger.state import PodState, State
from apportion.core.placement.affinity.neighbours import has_wishes, kind_of

_encode = msgspec.json.Encoder(order="sorted").encode


def queue_key(state: State, pod: PodState) -> bytes:
    """The key of a pod without a gang; pods with wishes about others have that of affinity."""
    return affinity_key(pod) if has_wishes(pod.submitted.shape.pods) else plain_key(state, pod)


def affinity_key(pod: PodState) -> bytes:
    """Of pods of one shape that are alike to every selector there may ever be."""
    about = pod.submitted
    return b"near " + _limits_key(about.queue) + wants_key(pod) + _encode(kind_of(about))


def plain_key(state: State, pod: PodState) -> bytes:
    """Of pods of one shape that have the same limits, and the same claims of volumes."""
    return limits_key(state, pod) + wants_key(pod)


def wants_key(pod: PodState) -> bytes:
    """Equal for pods of one shape that mount the same claims."""
    about = pod.submitted
    if not about.volume_claims:
        return pod.shape_key
    return pod.shape_key + _encode([about.namespace, about.volume_claims])


def limits_key(state: State, pod: PodState) -> bytes:
    """Equal for pods of one queue and, where a namespace has a quota, of one namespace."""
    about = pod.submitted
    return _limits_key(about.queue, about.namespace if about.namespace in state.quotas else "")


def _limits_key(queue: str, namespace: str = "") -> bytes:
    return _encode([queue, namespace]) if queue or namespace else b""


def keys_of(pod: PodState) -> tuple[bytes, ...]:
    """Every key that the pod may have, whether or not its namespace had a quota then."""
    about = pod.submitted
    if about.group:
        return (gang_key(about.group),)
    shared, own = _limits_key(about.queue), _limits_key(about.queue, about.namespace)
    return shared + wants_key(pod), own + wants_key(pod), affinity_key(pod)


def gang_key(gang: str) -> bytes:
    """The key of all pods of one gang, whatever their shapes are."""
    return b"gang " + gang.encode()
