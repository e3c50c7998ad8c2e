"""Pack the reasons for a placement into bytes, to save memory.

A state has a placement for every running pod, but folding and deciding need only its node and
shares. Unpacked, the reasons would take half of the memory of a large state and half the time of
restoring it. Invariant: `placed_of` returns the event that was folded."""

import msgspec
from msgspec import Struct

from apportion.core.ledger.state import Placement, PodState
from apportion_schemas import PodPlaced, Score


class Rationale(Struct, frozen=True, array_like=True, gc=False):
    """The fields of `PodPlaced` that only explain the decision."""

    score: Score
    runners_up: tuple[Score, ...] = ()
    fitting: int = 0
    nodes: int = 0
    previous: str = ""
    held: bool = False


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Rationale).decode


def placement_of(placed: PodPlaced) -> Placement:
    """Return the event's placement as a state stores it, with the reasons packed."""
    rationale = Rationale(
        placed.score, placed.runners_up, placed.fitting, placed.nodes, placed.previous, placed.held
    )
    return Placement(placed.node, placed.attempt, placed.shares, _pack(rationale))


def rationale_of(placement: Placement) -> Rationale:
    """Unpack the rationale; for an adopted pod it contains only the node."""
    if not placement.rationale:
        return Rationale(Score(node=placement.node, total=0.0))
    return _unpack(placement.rationale)


def placed_of(pod: PodState, placement: Placement) -> PodPlaced:
    """Rebuild the event that gave the pod this placement, with the reasons for the decision."""
    rationale = rationale_of(placement)
    return PodPlaced(
        pod=pod.submitted.uid,
        namespace=pod.submitted.namespace,
        name=pod.submitted.name,
        attempt=placement.attempt,
        node=placement.node,
        shares=placement.shares,
        score=rationale.score,
        runners_up=rationale.runners_up,
        fitting=rationale.fitting,
        nodes=rationale.nodes,
        previous=rationale.previous,
        held=rationale.held,
    )
