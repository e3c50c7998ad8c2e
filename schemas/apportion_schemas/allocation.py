"""Results of placements in the API server and on nodes, and presence of agents.

The binder reports bindings; a node's agent reports what containers were given, and whether they
exceed it. Agents send heartbeats that are not stored; a scheduler records only that an agent fell
silent or resumed. A refused report is recorded once an hour for each node and cause."""

from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.quantities import Cores, MemoryMib, Name, Natural, Payload, Text

# raised: the container wrote a larger limit into its region. zeroed: its region counts far less
# memory than the driver. removed: it removed or broke its region. unheld: it runs without its
# share, or one of its processes uses the device and is not in its region.
BreachCode = Literal["raised", "zeroed", "removed", "unheld"]


@event("binding.{node}", "binder")
class PodBound(Payload, frozen=True):
    """The pod is bound to the node of its placement."""

    pod: Name
    node: Name
    attempt: Natural


@event("binding.{node}", "binder")
class BindFailed(Payload, frozen=True):
    """Binding failed; if `final`, no retry can help and the placement must be voided."""

    pod: Name
    node: Name
    attempt: Natural
    message: Text
    final: bool


@event("allocation.{node}", "agent")
class SharesAllocated(Payload, frozen=True):
    """A pod's shares are in its containers; `devices` are the real device ids."""

    pod: Name
    node: Name
    attempt: Natural
    devices: Annotated[tuple[Name, ...], Meta(max_length=8192)]


@event("allocation.{node}", "agent")
class AllocationFailed(Payload, frozen=True):
    """The node could not hand out the shares of a placement."""

    pod: Name
    node: Name
    attempt: Natural
    message: Text


@event("allocation.{node}", "agent")
class ShareBreached(Payload, frozen=True):
    """A container exceeds its share of a device, or did until its agent restored it.

    `memory_mib` and `cores` are granted. `memory_found_mib` and `cores_found` are the limits in its
    region if it was `raised`, else the memory in use by the driver's count. An agent reports each
    code once an hour for each container and device."""

    pod: Name
    node: Name
    attempt: Natural
    container: Name
    device: Name
    code: BreachCode
    memory_mib: MemoryMib = 0
    memory_found_mib: MemoryMib = 0
    cores: Cores = 0
    cores_found: Cores = 0


@event("presence.{node}", "scheduler")
class NodeSilent(Payload, frozen=True):
    """A node's agent was silent for `grace_s` seconds: it hands out no shares."""

    node: Name
    grace_s: Annotated[int, Meta(ge=1, le=86_400)]


@event("presence.{node}", "scheduler")
class NodeHeard(Payload, frozen=True):
    """The agent of a node is heard again."""

    node: Name


@event("intake.{node}", "intake")
class ReportRefused(Payload, frozen=True):
    """A report of this node's agent was not appended.

    `cause` is the name of the reason, and `message` the first message about it."""

    node: Name
    cause: Name
    message: Text
