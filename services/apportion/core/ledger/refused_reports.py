"""The fold of what an intake did not take of a node's agent.

Invariant: a refusal stands from the event that tells of it until a report of the node is taken, or
the node leaves.
"""

from apportion.core.ledger.change import Change, Context
from apportion.core.ledger.departures import node_of, note_left
from apportion.core.ledger.state import RefusedReport
from apportion_schemas import ReportRefused


def refused(context: Context, data: ReportRefused) -> Change:
    """The newest is kept; of a node that never reported, it is all that is known."""
    state = context.state
    node = node_of(state, data.node)
    node.refused = RefusedReport(data.cause, data.message, context.revision, context.time)
    forgotten = note_left(state, node) if node.gone else ()
    return Change(data, node=node, forgotten=forgotten)
