"""Convert the shares of a container to what it gets: environment, mounts, device nodes.

`granting` chooses by the sharing mode. All of it is pure: the agent creates what a grant names
(`apportion.agent`), and tests compare grants with those of the peers. Invariant: a grant follows
from the ledger and the node alone, never from an annotation, and the same shares always give the
same grant."""

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
