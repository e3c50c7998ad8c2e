"""Topology domains: which nodes have the same value of a label.

Invariant: nodes are of one domain exactly where they have the same value. A node without the label
`kubernetes.io/hostname` is its own host all the same: not
every ledger has it of every node.
"""

from apportion.core.ledger.state import NodeState
from apportion.core.placement.index.labels import label
from apportion_schemas import HOSTNAME


def domain(node: NodeState, key: str) -> str | None:
    """The domain of the node by that label key, None where it is of none."""
    value = label(node, key)
    return node.name or None if value is None and key == HOSTNAME else value
