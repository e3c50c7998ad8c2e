"""`NodeReported` as it was: it named neither the sizes of MIG profiles nor foreign instances."""

from typing import Annotated, Any

from msgspec import Meta

from apportion_schemas.inventory import Host, Mode
from apportion_schemas.quantities import (
    COUNT_MAX,
    Cores,
    Count,
    MemoryMib,
    Name,
    Payload,
    Text,
)


class Device(Payload, frozen=True):
    """One physical accelerator and what of it is on offer.

    `memory_mib` and `cores` are on offer (after memory and core scaling); `physical_memory_mib` is
    what the card has. `cores` is percent for a GPU and AI cores for an NPU. `slots` is HAMi's
    `deviceSplitCount`: how many containers may share the device.
    """

    id: Name
    index: Annotated[int, Meta(ge=0, lt=COUNT_MAX)]
    family: Name
    model: Name
    memory_mib: MemoryMib
    physical_memory_mib: MemoryMib
    cores: Cores = 100
    slots: Annotated[int, Meta(ge=1, le=250)] = 10
    mode: Mode = "hami-core"
    numa: Annotated[int, Meta(ge=0, le=1023)] | None = None
    nvlink_lanes: dict[Name, Count] = {}
    healthy: bool = True
    health_reason: Text = ""


class NodeReported(Payload, frozen=True):
    """The whole inventory of a node, on the agent's start and on every change."""

    node: Name
    devices: Annotated[tuple[Device, ...], Meta(max_length=COUNT_MAX)]
    host: Host
    driver: Text = ""
    simulated: bool = False


def lift(data: dict[str, Any]) -> dict[str, Any]:
    """What was added has a default that means what silence meant."""
    return data
