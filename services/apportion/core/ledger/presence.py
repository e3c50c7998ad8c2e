"""The fold of whether a node's agent is heard.

Invariant: `silent` is when that was first told, whoever told it again; and each telling moves the
fence by which the next one is told once.
"""

from apportion.core.ledger.change import Change, Context
from apportion.core.ledger.departures import node_of, note_left
from apportion_schemas import NodeHeard, NodeSilent


def changed(context: Context, data: NodeSilent | NodeHeard) -> Change:
    """When the node's agent was found silent, or that it is heard."""
    node = node_of(context.state, data.node)
    node.presence = context.revision
    if isinstance(data, NodeHeard):
        node.silent = ""
    elif not node.silent:
        node.silent = context.time
    forgotten = note_left(context.state, node) if node.gone else ()
    return Change(data, node=node, forgotten=forgotten)
