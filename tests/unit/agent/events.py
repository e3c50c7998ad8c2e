"""Test helpers that build the events that an agent reads."""

from apportion.runtime.ledger.port import Record
from apportion_schemas import Event, PodPlaced, Score, Share, encode, subject_of
from apportion_schemas.quantities import Payload

TIME = "2026-01-01T00:00:00.000000Z"


def event_of(data: Payload, event_id: str = "e") -> Event:
    return Event(id=event_id, source="test", time=TIME, data=data)


def record_of(revision: int, data: Payload) -> Record:
    """Return the payload as a ledger record with this revision."""
    return Record(revision, subject_of(data), encode(event_of(data)))


def placed(pod: str, *devices: str, node: str = "n1", attempt: int = 1) -> PodPlaced:
    """Return an event that places the pod. Its only container has a share of each given device."""
    shares = tuple(
        Share(container="main", device=device, memory_mib=1024, cores=10) for device in devices
    )
    return PodPlaced(
        pod=pod,
        namespace="default",
        name=pod,
        attempt=attempt,
        node=node,
        shares=shares,
        score=Score(node=node, total=1.0),
    )
