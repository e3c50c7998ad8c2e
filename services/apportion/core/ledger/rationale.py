"""Why a placement is where it is, kept as bytes for whoever asks.

A state has a placement for every pod that runs, and of each only where it is and what it holds
takes part in folding and deciding. The scores behind it are most of what it says: as objects they
would be half of the memory of a large state, and of the time of restoring one. Invariant:
`placed_of` gives back the event that was folded, with the pod's own names."""

import msgspec
from msgspec import Struct

from apportion.core.ledger.state import Placement, PodState
from apportion_schemas import PodPlaced, Score


class Rationale(Struct, frozen=True, array_like=True, gc=False):
    """What of `PodPlaced` only explains it; the fields are its."""

    score: Score
    runners_up: tuple[Score, ...] = ()
    fitting: int = 0
    nodes: int = 0
    previous: str = ""


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Rationale).decode


def placement_of(placed: PodPlaced) -> Placement:
    """What a state keeps of the event."""
    rationale = Rationale(
        placed.score, placed.runners_up, placed.fitting, placed.nodes, placed.previous
    )
    return Placement(placed.node, placed.attempt, placed.shares, _pack(rationale))


def rationale_of(placement: Placement) -> Rationale:
    """Why it is there; of a pod that was found there nothing is known but the node."""
    if not placement.rationale:
        return Rationale(Score(node=placement.node, total=0.0))
    return _unpack(placement.rationale)


def placed_of(pod: PodState, placement: Placement) -> PodPlaced:
    """The event that gave the pod this placement."""
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
    )
