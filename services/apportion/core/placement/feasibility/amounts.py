"""Amounts: `(demand, device state) → (needed, available)`; the device passes with enough of it."""

from collections.abc import Callable

from apportion.core.devices.demand import Demand
from apportion.core.devices.shares import DeviceState
from apportion_schemas import RefusalCode


def health(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """The device is reported and healthy."""
    del demand
    return 1, int(state.present and state.healthy)


def cordon(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """No person has cordoned the device."""
    del demand
    return 1, int(not state.cordon)


def alone(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """A device that is wanted alone must have no holder; the amounts are slots."""
    return (state.device.slots if demand.alone else 0), state.slots_free


def slots(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """A device takes `deviceSplitCount` shares."""
    del demand
    return 1, state.slots_free


def cores(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Compute, in percent of a GPU or AI cores of an NPU."""
    return demand.cores_needed, max(state.cores_free, 0)


def memory(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Device memory that is needed, and that is free, in MiB."""
    return demand.memory_mib, max(state.memory_free_mib, 0)


def slices(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """Free places for an instance of the MIG profile."""
    if demand.profile is None:
        return 0, 0
    free = demand.free_places(state.taken, state.group, state.memory_free_mib)
    return 1, sum(1 for _ in free)


def template_cpu(demand: Demand, state: DeviceState) -> tuple[int, int]:
    """AI CPUs that the vNPU template takes."""
    return demand.template_cpu, max(state.template_cpu_free, 0)


AMOUNTS: tuple[tuple[RefusalCode, Callable[[Demand, DeviceState], tuple[int, int]]], ...] = (
    (RefusalCode.DEVICE_UNHEALTHY, health),
    (RefusalCode.DEVICE_CORDONED, cordon),
    (RefusalCode.DEVICE_IN_USE, alone),
    (RefusalCode.SLOTS_EXHAUSTED, slots),
    (RefusalCode.CORES_INSUFFICIENT, cores),
    (RefusalCode.MEMORY_INSUFFICIENT, memory),
    (RefusalCode.MIG_SLICES_OCCUPIED, slices),
    (RefusalCode.TEMPLATE_CPU_INSUFFICIENT, template_cpu),
)
