"""Nodes that have left the cluster: how long the state keeps them, and what it keeps of them.

A node that left stays whole while a pod is there, while a person keeps it cordoned, or while it is
one of the newest `LEFT_MAX` to leave; so one that comes back soon has its devices at once. After
that the node and its devices are forgotten, as if no event had told of them. Only the ends of its
fences stay, for the newest `DEPARTED_MAX`, so that a node of that name goes on where it stopped.

Invariant: what is forgotten follows from the events alone, and nothing that is kept refers to it.
"""

from typing import Final

from apportion.core.ledger.state import Departed, NodeState, State

LEFT_MAX: Final = 256
DEPARTED_MAX: Final = 16_384


def node_of(state: State, name: str) -> NodeState:
    """The node of that name, from now on known if it was not.

    A node that the state did not know has left until Kubernetes, where there is one, observes it.
    """
    node = state.nodes.get(name)
    if node is None:
        node = state.nodes[name] = NodeState(name, gone=state.of_kubernetes)
        before = state.departed.pop(name, None)
        if before is not None:
            node.fence, node.chain, node.presence = before.fence, before.chain, before.presence
    return node


def note_left(state: State, node: NodeState) -> tuple[NodeState, ...]:
    """Note that the node has left, or that something else there has ended; the nodes forgotten."""
    state.left.pop(node.name, None)
    if not node.gone or node.pods or node.cordons:
        return ()
    state.left[node.name] = None
    found: list[NodeState] = []
    for name in [*state.left][: max(len(state.left) - LEFT_MAX, 0)]:
        other = state.nodes[name]
        if not other.gone or other.pods or other.cordons:
            del state.left[name]  # it is back, or something came to it after it left
        elif name not in state.nominated.values():
            del state.left[name]
            del state.nodes[name]
            for device in other.by_id:
                if state.node_of_device.get(device) == name:
                    del state.node_of_device[device]
            if other.fence or other.presence:
                state.departed[name] = Departed(other.fence, other.chain, other.presence)
                if len(state.departed) > DEPARTED_MAX:
                    del state.departed[next(iter(state.departed))]
            found.append(other)
    return tuple(found)
