"""On a node whose container runtime knows no CDI: whose turn it is to be bound.

There the kubelet asks for a container's environment when it admits a pod, and names no pod. So the
ledger must leave no doubt who is asked for. Invariant: of the pods that are placed on such a node
and not allocated yet, the one that was placed first is bound first, and another one only if both
get exactly the same. It follows from the ledger alone: nobody takes a lock, and whoever leaves the
ledger, has failed, or whose agent is silent, is in nobody's way."""

from typing import Final

from msgspec import structs

from apportion.core import grants
from apportion.core.grants import Edits, GrantRefused, Held
from apportion.core.ledger.state import ALLOCATED, HANDS_OUT, NodeState, PodState, State
from apportion_schemas import Host

AT_ALLOCATE: Final = "allocate"
AT_START: Final = "start"
"""Values of the label `HANDS_OUT`: at the kubelet's Allocate, or before a container starts."""


def handing_out(host: Host, when: str) -> Host:
    """The host of a node whose agent hands out shares, as that agent reports it."""
    return structs.replace(host, labels={**host.labels, HANDS_OUT: when})


def hands_out_at_allocate(host: Host) -> bool:
    """Whether its agent says so."""
    return host.labels.get(HANDS_OUT) == AT_ALLOCATE


def ahead(state: State, pod: PodState) -> PodState | None:
    """The pod that has to be allocated before this one may be bound, or none."""
    placed = pod.placement
    node = state.nodes.get(placed.node) if placed is not None else None
    if placed is None or not placed.shares or node is None or node.reported is None:
        return None
    if node.silent or not hands_out_at_allocate(node.reported.host):
        return None
    # The kubelet may be about to ask for these. An adopted pod was put there by another scheduler.
    in_flight = (
        other
        for other in node.pods.values()
        if other.placed_revision < pod.placed_revision and not other.adopted
        if other.placement is not None and other.placement.shares
        if other.phase is not ALLOCATED and other.uid not in state.failing
    )
    for other in in_flight:
        edits = _edits(other, node)
        if edits is None or edits != _edits(pod, node):
            return other
    return None


def _edits(pod: PodState, node: NodeState) -> list[Edits] | None:
    """What its containers get, in order; None where that is not known beforehand.

    What a pod borrows, and a folder of its own, are of no other pod."""
    if pod.placement is None or pod.submitted.borrowing:
        return None
    shares = pod.placement.shares
    devices = {name: found.device for name, found in node.by_id.items()}
    try:
        return [
            grants.grant(Held.of(pod.uid, name, shares, devices), grants.Node()).edits
            for name in dict.fromkeys(share.container for share in shares)
        ]
    except GrantRefused:
        return None
