"""Compute a container's grant: the environment, mounts and device nodes for its shares.

The agent creates what a grant names (`apportion.agent`). Invariant: a grant follows from the ledger
and the node alone, never from an annotation."""

from apportion.core.grants.granting import grant
from apportion.core.grants.held import (
    DeviceNode,
    Edits,
    Grant,
    GrantRefused,
    Held,
    MadeInstance,
    Mount,
    Node,
    Part,
    RegionPlan,
)

__all__ = [
    "DeviceNode",
    "Edits",
    "Grant",
    "GrantRefused",
    "Held",
    "MadeInstance",
    "Mount",
    "Node",
    "Part",
    "RegionPlan",
    "grant",
]
