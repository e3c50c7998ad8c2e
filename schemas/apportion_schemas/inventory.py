"""What a node has: its devices, reported by the agent of that node and by nobody else.

A report is whole, never a difference, so that one event says all that is known of a node."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.quantities import (
    COUNT_MAX,
    Cores,
    Count,
    CpuMilli,
    HostMemoryMib,
    Labels,
    MemoryMib,
    Name,
    Natural,
    Payload,
    Text,
)

Mode = Literal["hami-core", "mps", "mig", "vnpu", "exclusive"]
"""How a device is shared. The first three are the values of `volcano.sh/vgpu-mode`; `vnpu` cuts an
Ascend device by templates; `exclusive` is a device that the vendor's own plugin hands out whole."""


class MigSize(Payload, frozen=True):
    """The memory of one MIG profile of a card, as its driver reports it."""

    profile: Name
    memory_mib: MemoryMib


class Device(Payload, frozen=True):
    """One physical accelerator and what of it is on offer.

    `memory_mib` and `cores` are on offer (after memory and core scaling); `physical_memory_mib` is
    what the card has. `cores` is percent for a GPU and AI cores for an NPU. `slots` is HAMi's
    `deviceSplitCount`: how many containers may share the device. `mig_sizes` has the profiles of a
    card in MIG mode whose driver was asked; the device catalogue has the others. `closed_slices` is
    a bit mask of the memory slices that are not on offer: those of MIG instances of others, and of
    one that had a critical XID a short time ago."""

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
    mig_sizes: Annotated[tuple[MigSize, ...], Meta(max_length=64)] = ()
    closed_slices: Annotated[int, Meta(ge=0, lt=256)] = 0


HOSTNAME: Final = "kubernetes.io/hostname"
"""The label with which a kubelet names its node."""


class Host(Payload, frozen=True):
    """The node's CPU and memory as its agent sees them: used where no Kubernetes tells."""

    cpu_milli: CpuMilli
    memory_mib: HostMemoryMib
    pods: Natural = 110
    labels: Labels = {}


@event("inventory.{node}", "agent", born=2)
class NodeReported(Payload, frozen=True):
    """The whole inventory of a node, on the agent's start and on every change."""

    node: Name
    devices: Annotated[tuple[Device, ...], Meta(max_length=COUNT_MAX)]
    host: Host
    driver: Text = ""
    simulated: bool = False


@event("inventory.{node}", "agent")
class DeviceHealthChanged(Payload, frozen=True):
    """One device of a node became healthy or unhealthy."""

    node: Name
    device: Name
    healthy: bool
    reason: Text = ""
