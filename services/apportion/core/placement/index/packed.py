"""Pack several amounts into one 64-bit integer, so that one subtraction compares them all.

Each amount has a field with a guard bit above it. Free amounts have their guards set. After
subtracting the needed amounts, a guard is still set exactly if there was enough."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.devices.shares import DeviceState

# A 64-bit integer, and flat arrays of values with that many bits: compiled code computes with them
# natively, interpreted code uses Python's types.
Int64 = int
Int64s = memoryview
Int32s = memoryview
UInt32s = memoryview
UInt16s = memoryview
UInt8s = memoryview
Int8s = memoryview

POINTS: Final[Int64] = 1_000_000_000  # a score's full range; twice as much is still an int32
MEMORY_BITS: Final[Int64] = 26  # MiB of a device or of a host: 64 TiB
COMPUTE_BITS: Final[Int64] = 20  # cores of a device, milli-CPU of a host: 1,048 CPUs
SLOTS_BITS: Final[Int64] = 8  # shares of a device, pods of a node; the latter count up to 255
TEMPLATE_CPU_BITS: Final[Int64] = 4  # AI CPUs of an NPU

COMPUTE_AT: Final[Int64] = MEMORY_BITS + 1
SLOTS_AT: Final[Int64] = COMPUTE_AT + COMPUTE_BITS + 1
TEMPLATE_CPU_AT: Final[Int64] = SLOTS_AT + SLOTS_BITS + 1
MEMORY_GUARD: Final[Int64] = 1 << MEMORY_BITS
COMPUTE_GUARD: Final[Int64] = 1 << (COMPUTE_AT + COMPUTE_BITS)
SLOTS_GUARD: Final[Int64] = 1 << (SLOTS_AT + SLOTS_BITS)
TEMPLATE_CPU_GUARD: Final[Int64] = 1 << (TEMPLATE_CPU_AT + TEMPLATE_CPU_BITS)
GUARDS: Final[Int64] = MEMORY_GUARD | COMPUTE_GUARD | SLOTS_GUARD | TEMPLATE_CPU_GUARD
_MEMORY_MAX: Final[Int64] = (1 << MEMORY_BITS) - 1
_COMPUTE_MAX: Final[Int64] = (1 << COMPUTE_BITS) - 1
_SLOTS_MAX: Final[Int64] = (1 << SLOTS_BITS) - 1
_CPU_MAX: Final[Int64] = (1 << TEMPLATE_CPU_BITS) - 1
TIMES_MAX: Final[Int64] = 1 << 20
# more slots than a device may have (250), and more AI CPUs than a host has (none)
NEVER: Final[Int64] = ((1 << SLOTS_BITS) - 1) << SLOTS_AT | (
    (1 << TEMPLATE_CPU_BITS) - 1
) << TEMPLATE_CPU_AT


def clamped(amount: Int64, bits: Int64) -> Int64:
    """Return the amount, or the largest value of a field of `bits` bits."""
    return min(max(amount, 0), (1 << bits) - 1)


def amounts(memory_mib: Int64, compute: Int64, slots: Int64, template_cpu: Int64 = 0) -> Int64:
    """Pack the amounts of one device or one host."""
    if (
        0 <= memory_mib <= _MEMORY_MAX
        and 0 <= compute <= _COMPUTE_MAX
        and 0 <= slots <= _SLOTS_MAX
        and not template_cpu
    ):
        return memory_mib | compute << COMPUTE_AT | slots << SLOTS_AT
    return (
        clamped(memory_mib, MEMORY_BITS)
        | clamped(compute, COMPUTE_BITS) << COMPUTE_AT
        | clamped(slots, SLOTS_BITS) << SLOTS_AT
        | clamped(template_cpu, TEMPLATE_CPU_BITS) << TEMPLATE_CPU_AT
    )


def lacking(free: Int64, need: Int64) -> Int64:
    """Return one set bit for each amount of which `free` has too little; 0 if all suffice."""
    guards: Int64 = GUARDS  # a local variable, or C would treat it as a Python object
    return ~(free - need) & guards


def lacking_each(free: NDArray[np.int64], need: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Apply `lacking` to arrays of packed amounts."""
    found: NDArray[np.int64] = ~(free - need) & GUARDS
    return found


def times(free: Int64, need: Int64, charge: Int64) -> Int64:
    """Return an upper bound of how many times `need` fits if each time uses up `charge`.

    A field at its maximum may have been clamped, so it limits nothing."""
    if lacking(free, need):
        return 0
    found: Int64 = TIMES_MAX
    has: Int64 = free & _MEMORY_MAX
    takes: Int64 = charge & _MEMORY_MAX
    if takes and has < _MEMORY_MAX:
        found = min(found, (has - (need & _MEMORY_MAX)) // takes + 1)
    has, takes = free >> COMPUTE_AT & _COMPUTE_MAX, charge >> COMPUTE_AT & _COMPUTE_MAX
    if takes and has < _COMPUTE_MAX:
        found = min(found, (has - (need >> COMPUTE_AT & _COMPUTE_MAX)) // takes + 1)
    has, takes = free >> SLOTS_AT & _SLOTS_MAX, charge >> SLOTS_AT & _SLOTS_MAX
    if takes and has < _SLOTS_MAX:
        found = min(found, (has - (need >> SLOTS_AT & _SLOTS_MAX)) // takes + 1)
    has, takes = free >> TEMPLATE_CPU_AT & _CPU_MAX, charge >> TEMPLATE_CPU_AT & _CPU_MAX
    if takes and has < _CPU_MAX:
        found = min(found, (has - (need >> TEMPLATE_CPU_AT & _CPU_MAX)) // takes + 1)
    return found


def memory_of(amounts: Int64) -> Int64:
    """Return the memory field of packed amounts, in MiB."""
    return amounts & _MEMORY_MAX


def compute_of(amounts: Int64) -> Int64:
    """Return the compute field: cores of a device, or milli-CPU of a host."""
    return amounts >> COMPUTE_AT & _COMPUTE_MAX


def slots_of(amounts: Int64) -> Int64:
    """Return the slots field: how many more shares or pods fit."""
    return amounts >> SLOTS_AT & _SLOTS_MAX


def mean_load(
    memory_total: Int64, memory_free: Int64, cores_total: Int64, cores_free: Int64
) -> Int64:
    """Return the mean of the used fractions of memory and cores, in `POINTS`."""
    if not memory_total or not cores_total:
        return 0
    # Clamp to three times the total, which keeps the result and avoids 64-bit overflow.
    memory_free, cores_free = max(memory_free, -2 * memory_total), max(cores_free, -2 * cores_total)
    memory: Int64 = (memory_total - memory_free) * POINTS // memory_total
    load: Int64 = (memory + (cores_total - cores_free) * POINTS // cores_total) // 2
    if load < 0:
        return 0
    return min(load, POINTS)


def free_amounts(state: DeviceState) -> Int64:
    """Pack the free amounts of the device with guard bits; all are 0 if it takes no new share."""
    guards: Int64 = GUARDS  # as above
    if not state.present or not state.healthy or state.cordon:
        return guards
    memory_mib: Int64 = state.memory_free_mib
    cores: Int64 = state.cores_free
    slots: Int64 = state.slots_free
    cpu: Int64 = state.template_cpu_free
    if memory_mib < 0 or cores < 0 or slots < 0 or cpu < 0:
        return guards | amounts(memory_mib, cores, slots, cpu)
    return guards | memory_mib | cores << COMPUTE_AT | slots << SLOTS_AT | cpu << TEMPLATE_CPU_AT
