"""Events about binding, about allocation on nodes, and about the presence of agents.

The binder reports bindings. A node's agent reports which shares containers were given, and which
containers exceed theirs. Heartbeats of agents are not stored; a scheduler records only that an
agent fell silent or resumed. A refused report is recorded once an hour per node and cause."""

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
    """The binder bound the pod to the node of its placement."""

    pod: Name
    node: Name
    attempt: Natural


@event("binding.{node}", "binder")
class BindFailed(Payload, frozen=True):
    """The binder could not bind the pod. If `final`, no retry helps and the placement is voided."""

    pod: Name
    node: Name
    attempt: Natural
    message: Text
    final: bool


@event("allocation.{node}", "agent")
class SharesAllocated(Payload, frozen=True):
    """The agent gave a pod's containers their shares; `devices` are ids of physical devices."""

    pod: Name
    node: Name
    attempt: Natural
    devices: Annotated[tuple[Name, ...], Meta(max_length=8192)]


@event("allocation.{node}", "agent")
class AllocationFailed(Payload, frozen=True):
    """The agent could not give a pod's containers the shares of its placement."""

    pod: Name
    node: Name
    attempt: Natural
    message: Text


@event("allocation.{node}", "agent")
class ShareBreached(Payload, frozen=True):
    """A container exceeds its share of a device, or did until its agent restored the limit.

    For the code `raised`, `memory_found_mib` and `cores_found` are the limits in the container's
    file of HAMi-core, its region. For other codes, `memory_found_mib` is the memory in use that the
    driver reports. An agent reports each code once an hour per container and device."""

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
    """A node's agent sent no heartbeat for `grace_s` seconds."""

    node: Name
    grace_s: Annotated[int, Meta(ge=1, le=86_400)]


@event("presence.{node}", "scheduler")
class NodeHeard(Payload, frozen=True):
    """A node's agent sends heartbeats again after it was silent."""

    node: Name


@event("intake.{node}", "intake")
class ReportRefused(Payload, frozen=True):
    """The intake refused a report of this node's agent, so the report is not in the ledger.

    `cause` is the code of the reason, and `message` the first error message with that cause."""

    node: Name
    cause: Name
    message: Text
