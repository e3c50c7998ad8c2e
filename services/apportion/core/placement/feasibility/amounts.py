"""Device filters: each returns `(needed, available)`, and a device passes if it has enough."""

from collections.abc import Callable

from apportion.core.devices.demand import Demand
from apportion.core.devices.shares import DeviceState
from apportion.core.placement.feasibility.descriptors import (
    DEVICE,
    LARGER,
    OFFERED,
    Cause,
    Kind,
    Unit,
    pairs,
)
from apportion_schemas import RefusalCode


def health(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Require that the device is reported and healthy."""
    del demand
    return 1, int(state.present and state.healthy)


def cordon(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Require that no operator has cordoned the device."""
    del demand
    return 1, int(not state.cordon)


def alone(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Require a device without shares if the pod needs an exclusive one."""
    return (state.device.slots if demand.alone else 0), state.slots_free


def slots(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Require a free slot; a device has `deviceSplitCount` slots, one per share."""
    del demand
    return 1, state.slots_free


def cores(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Require enough free compute, in percent of a GPU or AI cores of an NPU."""
    return demand.cores_needed, max(state.cores_free, 0)


def memory(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Require enough free device memory, in MiB."""
    return demand.memory_mib, max(state.memory_free_mib, 0)


def slices(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Require a position on the MIG device where an instance of the profile can start."""
    if demand.profile is None:
        return 0, 0
    free = demand.free_places(state.taken, state.group, state.memory_free_mib)
    return 1, sum(1 for _ in free)


def alike(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Require a share as large as the device's others, if its family has `alike` (Kunlun vXPU)."""
    return 1, int(demand.template is None or state.group in ("", demand.template))


def template_cpu(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Require enough free AI CPUs for the vNPU template."""
    return demand.template_cpu, max(state.template_cpu_free, 0)


AmountCheck = Callable[[Demand, DeviceState], tuple[int, int]]
_C = RefusalCode

OF_DEVICES: tuple[Cause[AmountCheck], ...] = (
    Cause(_C.DEVICE_UNHEALTHY, "device is unhealthy", "wait for the device to recover", OFFERED,
          fix_when_empty=LARGER, check=health),
    Cause(_C.DEVICE_CORDONED, "device is cordoned", "apportion uncordon {device}", OFFERED,
          fix_when_empty=LARGER, check=cordon),
    Cause(_C.DEVICE_IN_USE, "too few empty devices",
          "wait for the pods on the device to end", DEVICE, kind=Kind.FREED, fix_when_empty=LARGER,
          check=alone),
    Cause(_C.SLOTS_EXHAUSTED, "device is already shared by its maximum number of containers",
          "wait for a container on the device to end", DEVICE, kind=Kind.FREED, unit=Unit.SLOTS,
          fix_when_empty=LARGER, check=slots),
    Cause(_C.CORES_INSUFFICIENT, "not enough free cores on the device",
          "wait for a share of the device to be freed, or request fewer cores", DEVICE,
          kind=Kind.FREED,
          unit=Unit.CORES, when_empty="not enough cores on the device",
          fix_when_empty="use a larger device, or request less", check=cores),
    Cause(_C.MEMORY_INSUFFICIENT, "not enough free memory on the device",
          "wait for a share of the device to be freed, use a larger device, or request less",
          DEVICE,
          kind=Kind.FREED, unit=Unit.MIB, when_empty="not enough memory on the device",
          fix_when_empty="use a larger device, or request less", check=memory),
    Cause(_C.MIG_SLICES_OCCUPIED, "no free MIG slices for a fitting instance on the device",
          "wait for a MIG instance on the device to be freed", DEVICE, kind=Kind.FREED,
          unit=Unit.PLACES,
          fix_when_empty=LARGER, check=slices),
    Cause(_C.SIZES_DIFFER, "the device has shares of another size",
          "wait for the pods on the device to end, or request the same size", DEVICE,
          kind=Kind.FREED, fix_when_empty=LARGER, check=alike),
    Cause(_C.TEMPLATE_CPU_INSUFFICIENT,
          "not enough free AI CPUs on the device for the vNPU template",
          "wait for a share of the device to be freed, or request less", DEVICE, kind=Kind.FREED,
          unit=Unit.AI_CPUS, when_empty="not enough AI CPUs on the device for the vNPU template",
          fix_when_empty="use a larger device, or request less", check=template_cpu),
)  # fmt: skip
AMOUNTS = pairs(OF_DEVICES)
