"""Compute keys that group pending pods: pods with the same key share a queue and a result.

Invariant: every node and every limit treats two pods with the same key alike."""

from functools import lru_cache

import msgspec

from apportion.core.ledger.state import PodState, State
from apportion.core.placement.affinity.neighbours import has_wishes, kind_of

_encode = msgspec.json.Encoder(order="sorted").encode


def queue_key(state: State, pod: PodState) -> bytes:
    """Return the key of the shape queue (identical pods) for a pod that is in no gang."""
    return affinity_key(pod) if has_wishes(pod.submitted.shape.pods) else plain_key(state, pod)


def affinity_key(pod: PodState) -> bytes:
    """Return a key that is equal for pods of one shape, queue, namespace and set of labels."""
    about = pod.submitted
    return b"near " + _limits_key(about.queue) + wants_key(pod) + _encode(kind_of(about))


def plain_key(state: State, pod: PodState) -> bytes:
    """Return a key for pods of one shape with equal limits and volume claims; ignores labels."""
    return limits_key(state, pod) + wants_key(pod)


def wants_key(pod: PodState) -> bytes:
    """Return a key for pods of one shape that mount the same volume claims."""
    about = pod.submitted
    if not about.volume_claims:
        return pod.shape_key
    return pod.shape_key + _encode([about.namespace, about.volume_claims])


def limits_key(state: State, pod: PodState) -> bytes:
    """Return a key for the pod's queue, and for its namespace if a quota limits that."""
    about = pod.submitted
    namespace = about.namespace if about.namespace in state.quotas else ""
    return _limits_key(about.queue, namespace) if about.queue or namespace else b""


@lru_cache(maxsize=4096)
def _limits_key(queue: str, namespace: str = "") -> bytes:
    return _encode([queue, namespace]) if queue or namespace else b""


def keys_of(pod: PodState) -> tuple[bytes, ...]:
    """Return every key that the pod may have, whether or not a quota limits its namespace."""
    about = pod.submitted
    if about.group:
        return (gang_key(about.group),)
    shared, own = _limits_key(about.queue), _limits_key(about.queue, about.namespace)
    return shared + wants_key(pod), own + wants_key(pod), affinity_key(pod)


def gang_key(gang: str) -> bytes:
    """Return the key of the shape queue that has all pods of one gang, whatever their shapes."""
    return b"gang " + gang.encode()
