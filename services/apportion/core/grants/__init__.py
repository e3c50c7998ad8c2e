"""From the shares of a container to what it gets: environment, mounts, device nodes, region.

`granting` chooses among the ways in which a device is shared. All of it is pure: the agent's hands
make what a grant names (`apportion.agent`), and tests compare grants with what the peers give.
Invariant: a grant follows from the ledger and from the node alone, never from an annotation, and
the same shares always come to the same grant."""

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
