"""Apply the configuration to the devices of a node, before its agent reports them.

Invariant: the node's own entry in `nodeconfig` takes precedence over the settings for all nodes."""

from collections.abc import Collection, Iterable
from typing import Final

from msgspec import structs

from apportion.core.devices.catalogue import mig_profiles
from apportion_schemas import Configuration, Device
from apportion_schemas.configuration import NodeConfiguration, NvidiaConfiguration
from apportion_schemas.inventory import Mode
from apportion_schemas.quantities import MEMORY_MIB_MAX

FAMILY = "nvidia"
SHARED: tuple[Mode, ...] = ("hami-core", "mps")
MISCONFIGURED = "configuration: "
_CORES = 100


def offered(
    devices: Iterable[Device], node: str, configuration: Configuration, *, switchable: bool
) -> tuple[Device, ...]:
    """Return the node's devices with the amounts, mode and health that the configuration gives.

    Unless the agent can switch MIG mode (`switchable`), a device in the wrong mode is unhealthy."""
    named = (each for each in configuration.nodeconfig if each.name == node)
    said = next(named, NodeConfiguration(name=node))
    hidden = said.filter_devices
    return tuple(
        _offered(device, said, configuration.nvidia, switchable=switchable)
        if device.family == FAMILY
        else device
        for device in devices
        if device.id not in hidden.uuid and device.index not in hidden.index
    )


NO_CDI: Final = f"{MISCONFIGURED}MIG instances need CDI, which is turned off for this agent"
NO_RIGHT: Final = (
    f"{MISCONFIGURED}the agent needs CAP_SYS_ADMIN to change the GPU's mode or MIG instances; set "
    "agent.mig or agent.mps of the chart"
)

NO_MPS: Final = (
    f"{MISCONFIGURED}any container on a GPU under MPS can control its daemon and stop the others; "
    "to accept this, set agent.mps of the chart (--mps)"
)


def closed(devices: Iterable[Device], modes: Collection[Mode], reason: str) -> tuple[Device, ...]:
    """Mark the devices in any of the `modes` as unhealthy for this reason; return all devices."""
    return tuple(
        structs.replace(each, healthy=False, health_reason=each.health_reason or reason)
        if each.mode in modes
        else each
        for each in devices
    )


def _offered(
    device: Device, said: NodeConfiguration, nvidia: NvidiaConfiguration, *, switchable: bool
) -> Device:
    wanted = said.operating_mode
    if wanted is not None and wanted != device.mode:
        profiles = mig_profiles(device.family, device.model)
        trouble = ""
        if wanted == "mig" and not profiles:
            trouble = f"operatingmode is mig, but {device.model} has no MIG profile"
        elif not switchable and (wanted == "mig") != (device.mode == "mig"):
            order = f"nvidia-smi -i {device.index} -mig {int(wanted == 'mig')}"
            trouble = f"operatingmode is {wanted}, but the GPU is in another mode; run {order}"
        if trouble:
            reason = device.health_reason or f"{MISCONFIGURED}{trouble}"
            return structs.replace(device, healthy=False, health_reason=reason)
        slots = max((len(profile.starts) for profile in profiles), default=1)
        device = structs.replace(device, mode=wanted, slots=slots)
    if device.mode not in SHARED:
        return device
    memory = said.device_memory_scaling or nvidia.device_memory_scaling
    cores = said.device_core_scaling or nvidia.device_core_scaling
    return structs.replace(
        device,
        slots=said.device_split_count or nvidia.device_split_count,
        memory_mib=min(int(device.physical_memory_mib * memory), MEMORY_MIB_MAX),
        cores=int(_CORES * cores),
    )
