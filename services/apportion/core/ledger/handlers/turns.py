"""Decide the order of binding on a node whose container runtime has no CDI support.

On such a node, the kubelet requests a container's environment at admission without naming the pod.
So only one pod may be between binding and allocation. Invariant: the pod that was placed first is
bound first, unless the next pod's environment is exactly the same. The order follows from the
ledger alone, without a lock. Ended or failed pods, and nodes with a silent agent, block nothing."""

from typing import Final

from msgspec import structs

from apportion.core import grants
from apportion.core.grants import Edits, GrantRefused, Held
from apportion.core.ledger.state import ALLOCATED, HANDS_OUT, NodeState, PodState, State
from apportion_schemas import Host

# Values of the label `HANDS_OUT`: at the kubelet's Allocate, or before a container starts.
AT_ALLOCATE: Final = "allocate"
AT_START: Final = "start"


def handing_out(host: Host, when: str) -> Host:
    """Label the host with the stage (`when`) at which its agent allocates shares."""
    return structs.replace(host, labels={**host.labels, HANDS_OUT: when})


def ahead(state: State, pod: PodState) -> PodState | None:
    """Return an earlier pod that must be allocated before this pod may be bound, or None."""
    placed = pod.placement
    node = state.nodes.get(placed.node) if placed is not None else None
    if placed is None or not placed.shares or node is None or node.reported is None:
        return None
    if node.silent or node.reported.host.labels.get(HANDS_OUT) != AT_ALLOCATE:
        return None
    # The kubelet may be about to request these. Another scheduler has bound the adopted pods.
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
    if pod.placement is None or pod.submitted.borrowing:
        return None  # a borrowing pod's environment equals no other
    shares = pod.placement.shares
    devices = {name: found.device for name, found in node.by_id.items()}
    try:
        return [
            grants.grant(Held.of(pod.uid, name, shares, devices), grants.Node()).edits
            for name in dict.fromkeys(share.container for share in shares)
        ]
    except GrantRefused:
        return None
