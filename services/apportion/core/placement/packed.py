"""Several amounts in one 64-bit integer, compared at once.

Each amount has a field of bits with a guard bit above it. Setting every guard of what is free and
subtracting what is needed leaves a guard set exactly where there was enough, so one subtraction
and one mask answer "does it fit" for memory, cores, slots and AI CPUs together, for thousands of
devices in one numpy call.

Invariant: every packed amount is within its field. The schemas keep what a device offers below the
fields' limits, and `clamped` sees to the rest.
"""

from typing import Final

from apportion.core.ledger.state import DeviceState

MEMORY_BITS: Final = 25  # MiB; 16 TiB
CORES_BITS: Final = 14
SLOTS_BITS: Final = 10
TEMPLATE_CPU_BITS: Final = 6

CORES_AT: Final = MEMORY_BITS + 1
SLOTS_AT: Final = CORES_AT + CORES_BITS + 1
TEMPLATE_CPU_AT: Final = SLOTS_AT + SLOTS_BITS + 1
GUARDS: Final = (
    1 << MEMORY_BITS
    | 1 << (CORES_AT + CORES_BITS)
    | 1 << (SLOTS_AT + SLOTS_BITS)
    | 1 << (TEMPLATE_CPU_AT + TEMPLATE_CPU_BITS)
)
NEVER: Final = ((1 << SLOTS_BITS) - 1) << SLOTS_AT  # more slots than a device may have (1000)

CPU_BITS: Final = 24  # milli-cores
HOST_MEMORY_BITS: Final = 31  # MiB
HOST_MEMORY_AT: Final = CPU_BITS + 1
PODS_AT: Final = HOST_MEMORY_AT + HOST_MEMORY_BITS + 1
ROOM_GUARDS: Final = 1 << CPU_BITS | 1 << (HOST_MEMORY_AT + HOST_MEMORY_BITS) | 1 << (PODS_AT + 2)
NO_ROOM: Final = 3 << PODS_AT  # a node has room for one more pod or for none


def clamped(amount: int, bits: int) -> int:
    """The amount, or the nearest that the field can hold."""
    return min(max(amount, 0), (1 << bits) - 1)


def device_amounts(memory_mib: int, cores: int, slots: int, template_cpu: int) -> int:
    """Amounts of one device as one integer."""
    return (
        clamped(memory_mib, MEMORY_BITS)
        | clamped(cores, CORES_BITS) << CORES_AT
        | clamped(slots, SLOTS_BITS) << SLOTS_AT
        | clamped(template_cpu, TEMPLATE_CPU_BITS) << TEMPLATE_CPU_AT
    )


def free_amounts(state: DeviceState) -> int:
    """What the device has free for new shares, as one integer; a closed device has nothing."""
    if not state.present or not state.healthy or state.cordon:
        return 0
    memory_mib, cores, slots = state.memory_free_mib, state.cores_free, state.slots_free
    if memory_mib < 0 or cores < 0 or slots < 0 or state.template_cpu_free < 0:
        return device_amounts(memory_mib, cores, slots, state.template_cpu_free)
    return (
        memory_mib
        | cores << CORES_AT
        | slots << SLOTS_AT
        | state.template_cpu_free << TEMPLATE_CPU_AT
    )


def node_room(cpu_milli: int, memory_mib: int, pods: int) -> int:
    """Room of one node as one integer; of pods it holds only whether one more may come."""
    return (
        clamped(cpu_milli, CPU_BITS)
        | clamped(memory_mib, HOST_MEMORY_BITS) << HOST_MEMORY_AT
        | min(max(pods, 0), 1) << PODS_AT
    )
