"""Several amounts in one 64-bit integer, compared at once.

A device and the host of a node are alike here: memory, compute, and how many more may come. Each
amount has a field of bits with a guard bit above it. With every guard set in what is free,
subtracting what is needed leaves a guard set exactly where there was enough, so one subtraction and
one mask answer "does it fit" for all amounts of thousands of devices in one numpy call.

Invariant: every packed amount is within its field. The schemas keep amounts below the limits, and
`clamped` sees to what is computed from them."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.devices.shares import DeviceState

Int64 = int
Int64s = memoryview
Int32s = memoryview
UInt32s = memoryview
UInt16s = memoryview
UInt8s = memoryview
Int8s = memoryview
"""A whole number that 64 bits hold, and arrays of one dimension seen as their values one by one, of
so many bits each: compiled code computes with them as they are. Interpreted they are Python's own.
"""

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
TIMES_MAX: Final[Int64] = 1 << 20
_FIELDS: Final = (
    (0, MEMORY_BITS),
    (COMPUTE_AT, COMPUTE_BITS),
    (SLOTS_AT, SLOTS_BITS),
    (TEMPLATE_CPU_AT, TEMPLATE_CPU_BITS),
)
NEVER: Final[Int64] = ((1 << SLOTS_BITS) - 1) << SLOTS_AT | (
    (1 << TEMPLATE_CPU_BITS) - 1
) << TEMPLATE_CPU_AT
"""More slots than a device may have (250) and more AI CPUs than a host does (none)."""


def clamped(amount: Int64, bits: Int64) -> Int64:
    """The amount, or the nearest that the field can hold."""
    return min(max(amount, 0), (1 << bits) - 1)


def amounts(memory_mib: Int64, compute: Int64, slots: Int64, template_cpu: Int64 = 0) -> Int64:
    """Amounts of one device or one host as one integer."""
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
    """The guards of those amounts of which less is free than needed; 0 where there is room.

    `free` has its guards set. This is the one place that says what room is: filters, refusals,
    assignment and loops ask here."""
    guards: Int64 = GUARDS  # as it stands, C would take it for one of Python's
    return ~(free - need) & guards


def lacking_each(free: NDArray[np.int64], need: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """What is `lacking`, for many at once."""
    found: NDArray[np.int64] = ~(free - need) & GUARDS
    return found


def times_each(
    free: NDArray[np.int64], need: int | NDArray[np.int64], charge: int | NDArray[np.int64]
) -> NDArray[np.int64]:
    """For many at once, at most how many times there is room: `need` each time, less `charge`.

    A field that is full may stand for more than it can hold, and limits nothing."""
    found = np.full(free.shape, TIMES_MAX, np.int64)
    for at, bits in _FIELDS:
        most = (1 << bits) - 1
        has, wants, takes = (free >> at) & most, (need >> at) & most, (charge >> at) & most
        times = (has - wants) // np.maximum(takes, 1) + 1
        found = np.where((takes > 0) & (has < most), np.minimum(found, times), found)
    answer: NDArray[np.int64] = np.where(lacking_each(free, need) == 0, found, 0)
    return answer


def memory_of(amounts: Int64) -> Int64:
    """The field of memory, in MiB, of packed amounts."""
    return amounts & _MEMORY_MAX


def compute_of(amounts: Int64) -> Int64:
    """The cores of a device, or the milli-CPU of a host."""
    return amounts >> COMPUTE_AT & _COMPUTE_MAX


def slots_of(amounts: Int64) -> Int64:
    """How many more shares or pods may come."""
    return amounts >> SLOTS_AT & _SLOTS_MAX


def mean_load(
    memory_total: Int64, memory_free: Int64, cores_total: Int64, cores_free: Int64
) -> Int64:
    """The mean of the used part of two resources, in `POINTS`; 0 where either is not there."""
    if not memory_total or not cores_total:
        return 0
    # Beyond thrice what there is nothing changes but that 64 bits may not hold it.
    memory_free, cores_free = max(memory_free, -2 * memory_total), max(cores_free, -2 * cores_total)
    memory: Int64 = (memory_total - memory_free) * POINTS // memory_total
    load: Int64 = (memory + (cores_total - cores_free) * POINTS // cores_total) // 2
    if load < 0:
        return 0
    return min(load, POINTS)


def free_amounts(state: DeviceState) -> Int64:
    """What the device has free for new shares, guards set; a closed device has nothing."""
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
