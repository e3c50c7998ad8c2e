"""The inventory of a node: the devices that its agent reports.

A report always lists all devices of the node, not only the changes since the last report."""

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

# How a device is shared. The first three are the values of `volcano.sh/vgpu-mode`; `vnpu` divides
# an Ascend device by templates; an `exclusive` device is handed out whole by the vendor's plugin.
Mode = Literal["hami-core", "mps", "mig", "vnpu", "exclusive"]


class MigSize(Payload, frozen=True):
    """The name of a MIG profile, and its memory as the driver reports it for this device."""

    profile: Name
    memory_mib: MemoryMib


class Device(Payload, frozen=True):
    """One physical device and the amounts that it offers.

    `memory_mib` and `cores` are offered amounts, after scaling. `cores` is percent for a GPU and AI
    cores for an NPU. `slots` is HAMi's `deviceSplitCount`: how many containers may share the
    device. `closed_slices` is a bit mask of memory slices that are not offered: those of MIG
    instances that Apportion did not create, and of an instance with a recent critical XID."""

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


# The label with the name by which a kubelet registers its node.
HOSTNAME: Final = "kubernetes.io/hostname"
# The label with which an operator lets Apportion place pods on devices that another plugin
# allocates: that of `hami` or `volcano`, or NVIDIA's own (`vendor`). Any other value: not offered.
DEVICE_PLUGIN: Final = "apportion.dev/device-plugin"


class Host(Payload, frozen=True):
    """The node's CPU and memory as the agent reports them; Kubernetes' values take precedence."""

    cpu_milli: CpuMilli
    memory_mib: HostMemoryMib
    pods: Natural = 110
    labels: Labels = {}


@event("inventory.{node}", "agent", born=2)
class NodeReported(Payload, frozen=True):
    """The complete inventory of a node, which its agent reports at start and on every change."""

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
