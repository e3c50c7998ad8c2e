"""What became of a placement, in the API server and on the node; and whether its agent is heard.

The binder writes what it observed of a binding; a node's agent tells what it really handed to the
container, and whether that holds it.

Agents say over and over that they are there, and nobody stores that. A scheduler that hears nothing
for a while writes it down, and again when the agent is back. So all readers know which nodes are
without an agent, and since when. A refused report is told once for each node and cause in an hour,
however often the agent tries."""

from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.quantities import Cores, MemoryMib, Name, Natural, Payload, Text

BreachCode = Literal["raised", "zeroed", "removed", "unheld"]
"""`raised`: the container wrote a larger limit into its region. `zeroed`: its region counts far
less memory than the driver does. `removed`: it removed or broke its region. `unheld`: it runs
without its share, or a process of it uses the device and is not in its region.
"""


@event("binding.{node}", "binder")
class PodBound(Payload, frozen=True):
    """The pod is bound to the node of its placement."""

    pod: Name
    node: Name
    attempt: Natural


@event("binding.{node}", "binder")
class BindFailed(Payload, frozen=True):
    """The binding was refused. `final`: trying again cannot help, the placement must be voided."""

    pod: Name
    node: Name
    attempt: Natural
    message: Text
    final: bool


@event("allocation.{node}", "agent")
class SharesAllocated(Payload, frozen=True):
    """The shares of a pod are in its containers; `devices` are the real device ids."""

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
    """A container is not held to its share of a device, or was not until its agent restored it.

    Granted are `memory_mib` and `cores`. `memory_found_mib` and `cores_found` are the limits that
    its region had if it was `raised`; else the memory in use that the driver counts. An agent
    reports each code once an hour for each container and device."""

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
    """The agent of a node was not heard for `grace_s` seconds: nobody there hands out shares."""

    node: Name
    grace_s: Annotated[int, Meta(ge=1, le=86_400)]


@event("presence.{node}", "scheduler")
class NodeHeard(Payload, frozen=True):
    """The agent of a node is heard again."""

    node: Name


@event("intake.{node}", "intake")
class ReportRefused(Payload, frozen=True):
    """Something that the agent of this node said was not appended.

    `cause` is the name under which it was refused, `message` the first of it in words."""

    node: Name
    cause: Name
    message: Text
