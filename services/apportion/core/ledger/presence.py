"""The fold of whether a node's agent is heard.

Invariant: `silent` is since when, whoever told it again; and each telling moves the fence by which
the next one is told once.
"""

from apportion.core.ledger.change import Change, Context
from apportion.core.ledger.state import NodeState
from apportion_schemas import NodeHeard, NodeSilent


def changed(context: Context, data: NodeSilent | NodeHeard) -> Change:
    """Since when the node's agent is not heard, or that it is."""
    node = context.state.nodes.setdefault(data.node, NodeState(data.node))
    node.presence = context.revision
    if isinstance(data, NodeHeard):
        node.silent = ""
    elif not node.silent:
        node.silent = context.time
    return Change(data, node=node)
