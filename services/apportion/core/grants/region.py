"""HAMi-core's usage region: one file per container, which its processes map into their memory.

HAMi-core's `shared_region_t` (`multiprocess_memory_limit.h`), versions 1.1 and 1.2, little-endian.
A region that is there before the container's first process wins over its environment, and a limit
that is written into it holds from the next allocation on. Its limits of compute hold for processes
that start later: HAMi-core copies them at `cuInit`. Invariant: nothing here trusts the other side:
a region is as long as its version says and its numbers are clipped, for any process of the
container may write what it likes."""

import struct
from collections.abc import Iterator
from typing import Final, Protocol

from msgspec import Struct

from apportion.core.grants.held import RegionPlan

MAGIC: Final = 19_920_718
DEVICES_MAX: Final = 16
PROCESSES_MAX: Final = 1_024
SIZE: Final = 2_008_953
"""Bytes of a file of version 1.2: the region and one more, which HAMi-core writes to make room."""
_ODD_SIZE: Final = 2_008_984
"""Of a variant of 1.1, early in 2026, whose fields stand 32 bytes later from `device_num` on."""
_ODD_SHIFT: Final = 32
_MAJOR, _OLDEST, _NEWEST = 1, 1, 2

_SEMAPHORE, _COUNT, _IDS, _MEMORY, _CORES, _PROCESSES = 24, 56, 64, 1600, 1728, 1856
_ID_BYTES, _PROCESS_BYTES = 96, 1_960
_TAIL: Final = _PROCESSES + PROCESSES_MAX * _PROCESS_BYTES
"""Offset of the number of processes; what stands behind it is relative to it."""
_SWITCH, _RECENT, _PRIORITY, _LAST_KERNEL, _POSTINIT = 4, 8, 12, 16, 24
_HOST_PID, _USED, _USED_BYTES, _TOTAL, _UTIL, _UTIL_BYTES, _SM = 4, 8, 64, 32, 1_160, 48, 16
_SEQLOCK: Final = 1_936
_FREE_SEMAPHORE: Final = (1).to_bytes(8, "little") + (128).to_bytes(4, "little") + bytes(20)
"""`sem_t` of glibc for 64 bits, shared by processes and not taken."""
BYTES_MAX: Final = 1 << 44
"""The most that a number of bytes in a region counts for: 16 TiB, more than any device has."""
_SECONDS_MAX: Final = 1 << 53
_WHOLE: Final = 100
"""Percent of a device's compute."""
_WATCHED: Final = 99
"""The largest limit of compute at which HAMi-core looks whether its processes have to wait."""
_TRIES: Final = 8
"""How often a slot is read anew that its process is writing."""

_HEAD: Final = struct.Struct("<iII")
"""Magic, major and minor version."""
_i32, _u64 = struct.Struct("<i"), struct.Struct("<Q")
_kinds: Final = struct.Struct("<QQQ")
"""Bytes of contexts, of modules and of data, with which a device's `used` begins."""


class Stored(Protocol):
    """The bytes of a region, wherever they are; a write goes through to its processes."""

    def __len__(self) -> int:
        """How many there are."""

    def read(self, at: int, count: int) -> bytes:
        """As many from there on; fewer where there are no more."""

    def write(self, at: int, data: bytes) -> None:
        """Put these bytes there, for all who have them mapped."""


class RegionInvalid(ValueError):
    """Not a region that we know; the message says what stands there instead."""


class Process(Struct, frozen=True):
    """One process of the container: its id inside, on the node (0: not known), bytes and percent of
    each device, and of its bytes those of contexts, of modules and of data."""

    slot: int
    pid: int
    host_pid: int
    memory: tuple[int, ...]
    cores: tuple[int, ...]
    kinds: tuple[tuple[int, int, int], ...] = ()


def made(plan: RegionPlan) -> bytes:
    """A new region of version 1.2 with these limits and without a process.

    Raises RegionInvalid: it has more devices than a region has room for."""
    if len(plan.devices) > DEVICES_MAX:
        raise RegionInvalid(
            f"a container with {len(plan.devices)} devices; HAMi-core's region has room for "
            f"{DEVICES_MAX}"
        )
    data = bytearray(SIZE)
    _HEAD.pack_into(data, 0, MAGIC, _MAJOR, _NEWEST)
    for semaphore in (_SEMAPHORE, _TAIL + _POSTINIT):
        data[semaphore : semaphore + len(_FREE_SEMAPHORE)] = _FREE_SEMAPHORE
    _u64.pack_into(data, _COUNT, len(plan.devices))
    for position, device in enumerate(plan.devices):
        name = device.encode()[: _ID_BYTES - 1]
        start = _IDS + position * _ID_BYTES
        data[start : start + len(name)] = name
        _u64.pack_into(data, _MEMORY + 8 * position, plan.memory[position])
    for position, cores in enumerate(_cores_of(plan)):
        _u64.pack_into(data, _CORES + 8 * position, cores)
    struct.pack_into("<iii", data, _TAIL + _SWITCH, 1, 2, plan.priority)
    return bytes(data)


def _cores_of(plan: RegionPlan) -> list[int]:
    """The limit of compute of each position: HAMi-core reads the first for all.

    At 0 and at 100 it never looks whether its processes have to wait for a higher priority."""
    percents = [
        plan.cores[min(position, len(plan.cores) - 1)] if plan.cores else 0
        for position in range(DEVICES_MAX)
    ]
    watched = plan.priority > 0
    return [_WATCHED if watched and not 0 < each < _WHOLE else each for each in percents]


class Region:
    """What a container is held to and what it uses, and the switches of both."""

    def __init__(self, stored: Stored) -> None:
        """Look at its head.

        Raises RegionInvalid: it is too short, not initialised, or of a version that we do not
        know."""
        size, head = len(stored), stored.read(0, _HEAD.size)
        if len(head) < _HEAD.size:
            raise RegionInvalid(f"{size} bytes are no usage region of HAMi-core")
        magic, major, minor = _HEAD.unpack(head)
        if magic != MAGIC or major != _MAJOR or not _OLDEST <= minor <= _NEWEST:
            raise RegionInvalid(
                f"magic {magic} and version {major}.{minor}; a usage region of HAMi-core has "
                f"{MAGIC} and {_MAJOR}.{_OLDEST} or {_MAJOR}.{_NEWEST}"
            )
        if size < SIZE - 1:
            raise RegionInvalid(f"{size} bytes; a usage region has {SIZE}")
        self._stored = stored
        self._locked = minor >= _NEWEST
        self._shift = _ODD_SHIFT if size >= _ODD_SIZE else 0

    @property
    def devices(self) -> tuple[str, ...]:
        """The ids of the container's devices."""
        starts = [self._shift + _IDS + at * _ID_BYTES for at in range(self._count())]
        names = (self._read(start, _ID_BYTES).split(b"\0")[0] for start in starts)
        return tuple(name.decode(errors="replace") for name in names)

    @property
    def memory(self) -> tuple[int, ...]:
        """The limit in bytes of each device."""
        return self._limits(_MEMORY)

    @property
    def cores(self) -> tuple[int, ...]:
        """The limit in percent of each device."""
        return self._limits(_CORES)

    @property
    def priority(self) -> int:
        """The container's rank: 0 goes before 1."""
        return self._i32(_TAIL + _PRIORITY)

    @property
    def last_kernel(self) -> int:
        """When a process last launched a kernel, in seconds since 1970; 0 if none ever did."""
        return min(self._u64(_TAIL + _LAST_KERNEL), _SECONDS_MAX)

    @property
    def recently_used(self) -> bool:
        """Whether a process launched a kernel since the round before the last `count_down`."""
        return self._i32(_TAIL + _RECENT) > 0

    @property
    def blocked(self) -> bool:
        """Whether its processes wait before they launch."""
        return self._i32(_TAIL + _RECENT) < 0

    def count_down(self) -> None:
        """One round is over; HAMi-core sets `recent_kernel` to 2 at every launch."""
        left = self._i32(_TAIL + _RECENT)
        if left > 0:
            self._write(_i32, _TAIL + _RECENT, left - 1)

    def block(self, *, blocked: bool) -> None:
        """Let no kernel start, or let them start again (HAMi-core waits while this is -1)."""
        if blocked != self.blocked:
            self._write(_i32, _TAIL + _RECENT, -1 if blocked else 0)

    def hold_cores(self, *, held: bool) -> None:
        """Whether the container is held to its percent (`utilization_switch`: 1 is held)."""
        self._write(_i32, _TAIL + _SWITCH, int(held))

    @property
    def cores_held(self) -> bool:
        """Whether the container is held to its percent."""
        return self._i32(_TAIL + _SWITCH) != 0

    def hold(self, plan: RegionPlan) -> bool:
        """Write the limits, devices and priority of a plan. Return True if any of them differed."""
        changed = False
        for position, limit in enumerate(plan.memory[:DEVICES_MAX]):
            changed = self._put(_u64, _MEMORY + 8 * position, limit) or changed
        for position, cores in enumerate(_cores_of(plan)):
            changed = self._put(_u64, _CORES + 8 * position, cores) or changed
        if not set(plan.devices) <= set(self.devices):
            changed = True
            self._write(_u64, _COUNT, len(plan.devices))
            for position, device in enumerate(plan.devices[:DEVICES_MAX]):
                name = device.encode()[: _ID_BYTES - 1].ljust(_ID_BYTES, b"\0")
                self._stored.write(self._shift + _IDS + position * _ID_BYTES, name)
        return self._put(_i32, _TAIL + _PRIORITY, plan.priority) or changed

    def raised(self, plan: RegionPlan) -> Iterator[tuple[int, int, int]]:
        """The positions at which it allows more than the plan, each with its memory and cores.

        HAMi-core takes a limit of 0 for none."""
        for position, wanted in enumerate(zip(plan.memory, _cores_of(plan), strict=False)):
            memory = min(self._u64(_MEMORY + 8 * position), BYTES_MAX)
            cores = min(self._u64(_CORES + 8 * position), _WHOLE)
            if (memory or BYTES_MAX) > wanted[0] or (cores or _WHOLE) > (wanted[1] or _WHOLE):
                yield position, memory or BYTES_MAX, cores or _WHOLE

    def forget_processes(self) -> None:
        """Clear the slots of all processes, none of which is there any more.

        HAMi-core takes a process for alive whose id another one has by now."""
        for slot in range(min(max(self._i32(_TAIL), 0), PROCESSES_MAX)):
            start = self._shift + _PROCESSES + slot * _PROCESS_BYTES
            self._stored.write(start, bytes(_PROCESS_BYTES))
        self._write(_i32, _TAIL, 0)

    def tell_host_pid(self, slot: int, host_pid: int) -> None:
        """Write which process of the node it is: HAMi-core's own way to find out can err."""
        self._write(_i32, _PROCESSES + slot * _PROCESS_BYTES + _HOST_PID, host_pid)

    def processes(self) -> Iterator[Process]:
        """Its processes, each as it was at one moment."""
        count = min(max(self._i32(_TAIL), 0), PROCESSES_MAX)
        devices = range(self._count())
        for slot in range(count):
            data = self._consistent(self._shift + _PROCESSES + slot * _PROCESS_BYTES)
            pid, host_pid = struct.unpack_from("<ii", data, 0)
            if pid <= 0:
                continue
            used = [_USED + _USED_BYTES * at for at in devices]
            totals = (_u64.unpack_from(data, start + _TOTAL)[0] for start in used)
            percents = (_u64.unpack_from(data, _UTIL + _UTIL_BYTES * at + _SM)[0] for at in devices)
            yield Process(
                slot,
                pid,
                max(host_pid, 0),
                memory=tuple(min(total, BYTES_MAX) for total in totals),
                cores=tuple(min(percent, _WHOLE) for percent in percents),
                kinds=tuple(
                    (min(contexts, BYTES_MAX), min(modules, BYTES_MAX), min(own, BYTES_MAX))
                    for contexts, modules, own in (_kinds.unpack_from(data, at) for at in used)
                ),
            )

    def _consistent(self, start: int) -> bytes:
        """A slot that nobody wrote meanwhile, or after some tries as it stands."""
        data = self._read(start, _PROCESS_BYTES)
        for _ in range(_TRIES if self._locked else 0):
            before = _u64.unpack_from(data, _SEQLOCK)[0]
            again = _u64.unpack(self._read(start + _SEQLOCK, _u64.size))[0]
            if before % 2 == 0 and again == before:
                break
            data = self._read(start, _PROCESS_BYTES)
        return data

    def _limits(self, start: int) -> tuple[int, ...]:
        return tuple(min(self._u64(start + 8 * at), BYTES_MAX) for at in range(self._count()))

    def _put(self, kind: struct.Struct, offset: int, value: int) -> bool:
        """Write it where another value is; whether one was."""
        if self._read(self._shift + offset, kind.size) == kind.pack(value):
            return False
        self._write(kind, offset, value)
        return True

    def _count(self) -> int:
        return min(self._u64(_COUNT), DEVICES_MAX)

    def _u64(self, offset: int) -> int:
        return int(_u64.unpack(self._read(self._shift + offset, _u64.size))[0])

    def _i32(self, offset: int) -> int:
        return int(_i32.unpack(self._read(self._shift + offset, _i32.size))[0])

    def _read(self, start: int, count: int) -> bytes:
        """All of it, as zeros where a process has cut the file off meanwhile."""
        return self._stored.read(start, count).ljust(count, b"\0")

    def _write(self, kind: struct.Struct, offset: int, value: int) -> None:
        self._stored.write(self._shift + offset, kind.pack(value))
