"""Read and write HAMi-core's region: the file in shared memory with a container's limits and usage.

The file is HAMi-core's `shared_region_t` (`multiprocess_memory_limit.h`), versions 1.1 and 1.2,
little-endian. If it exists before the first process, its limits override the environment's. New
memory limits apply from the next allocation, new compute limits to later processes. Invariant:
nothing in the file is trusted, because any process of the container can write to it."""

import struct
from collections.abc import Iterator
from typing import Final, Protocol

from msgspec import Struct

from apportion.core.grants.held import RegionPlan

MAGIC: Final = 19_920_718
DEVICES_MAX: Final = 16
PROCESSES_MAX: Final = 1_024
# bytes of a file of version 1.2: the region, and one more that HAMi-core writes to allocate it
SIZE: Final = 2_008_953
# of a variant of 1.1, early in 2026: its fields from `device_num` on are 32 bytes later
_ODD_SIZE: Final = 2_008_984
_ODD_SHIFT: Final = 32
_MAJOR, _OLDEST, _NEWEST = 1, 1, 2

_SEMAPHORE, _COUNT, _IDS, _MEMORY, _CORES, _PROCESSES = 24, 56, 64, 1600, 1728, 1856
_ID_BYTES, _PROCESS_BYTES = 96, 1_960
# offset of the number of processes; the offsets in the next line are relative to it
_TAIL: Final = _PROCESSES + PROCESSES_MAX * _PROCESS_BYTES
_SWITCH, _RECENT, _PRIORITY, _LAST_KERNEL, _POSTINIT = 4, 8, 12, 16, 24
_HOST_PID, _USED, _USED_BYTES, _TOTAL, _UTIL, _UTIL_BYTES, _SM = 4, 8, 64, 32, 1_160, 48, 16
_SEQLOCK: Final = 1_936
# glibc's `sem_t` for 64 bits: shared between processes and not taken
_FREE_SEMAPHORE: Final = (1).to_bytes(8, "little") + (128).to_bytes(4, "little") + bytes(20)
# larger numbers of bytes in a region count as this: 16 TiB, more than any device has
BYTES_MAX: Final = 1 << 44
_SECONDS_MAX: Final = 1 << 53
_WHOLE: Final = 100  # percent of a device's compute
# the largest compute limit at which HAMi-core checks if its processes must wait
_WATCHED: Final = 99
_TRIES: Final = 8  # how often a slot is read again while its process is writing it

_HEAD: Final = struct.Struct("<iII")  # magic, major and minor version
_i32, _u64 = struct.Struct("<i"), struct.Struct("<Q")
# bytes of contexts, of modules and of data, at the start of a device's `used`
_kinds: Final = struct.Struct("<QQQ")


class Stored(Protocol):
    """The bytes of a region; processes of the container see each write."""

    def __len__(self) -> int:
        """Return the number of bytes."""

    def read(self, at: int, count: int) -> bytes:
        """Read up to `count` bytes from offset `at`; fewer at the end."""

    def write(self, at: int, data: bytes) -> None:
        """Write the bytes at offset `at`, visible to all processes that map the region."""


class RegionInvalid(ValueError):
    """Raised for bytes that are not a supported region; the message describes what was found."""


class Process(Struct, frozen=True):
    """One process of the container, as the region records it. Tuples have an entry per device."""

    slot: int
    pid: int  # in the container
    host_pid: int  # on the node; 0: unknown
    memory: tuple[int, ...]  # bytes
    cores: tuple[int, ...]  # percent
    kinds: tuple[tuple[int, int, int], ...] = ()  # bytes of contexts, modules, data


def made(plan: RegionPlan) -> bytes:
    """Return the bytes of a new region of version 1.2 with these limits and no process.

    Raises RegionInvalid if there are more devices than a region can hold."""
    if len(plan.devices) > DEVICES_MAX:
        raise RegionInvalid(
            f"the container has {len(plan.devices)} devices, but HAMi-core's region holds at most "
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


# HAMi-core reads the first limit for all devices, so every position gets one. At 0 and at 100 it
# never checks if its processes must wait for a higher priority.
def _cores_of(plan: RegionPlan) -> list[int]:
    percents = [
        plan.cores[min(position, len(plan.cores) - 1)] if plan.cores else 0
        for position in range(DEVICES_MAX)
    ]
    watched = plan.priority > 0
    return [_WATCHED if watched and not 0 < each < _WHOLE else each for each in percents]


class Region:
    """Reads and writes a container's region: its limits, usage and switches."""

    def __init__(self, stored: Stored) -> None:
        """Check the header. Raises RegionInvalid for an unknown version or too few bytes."""
        size, head = len(stored), stored.read(0, _HEAD.size)
        if len(head) < _HEAD.size:
            raise RegionInvalid(f"{size} bytes are too few for a usage region of HAMi-core")
        magic, major, minor = _HEAD.unpack(head)
        if magic != MAGIC or major != _MAJOR or not _OLDEST <= minor <= _NEWEST:
            raise RegionInvalid(
                f"magic {magic} and version {major}.{minor} are not HAMi-core's, which are "
                f"{MAGIC} and {_MAJOR}.{_OLDEST} or {_MAJOR}.{_NEWEST}"
            )
        if size < SIZE - 1:
            raise RegionInvalid(f"the usage region has {size} bytes instead of {SIZE}")
        self._stored = stored
        self._locked = minor >= _NEWEST
        self._shift = _ODD_SHIFT if size >= _ODD_SIZE else 0

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the ids of the container's devices."""
        starts = [self._shift + _IDS + at * _ID_BYTES for at in range(self._count())]
        names = (self._read(start, _ID_BYTES).split(b"\0")[0] for start in starts)
        return tuple(name.decode(errors="replace") for name in names)

    @property
    def memory(self) -> tuple[int, ...]:
        """Return the memory limits of the devices in bytes."""
        return self._limits(_MEMORY)

    @property
    def cores(self) -> tuple[int, ...]:
        """Return the compute limits of the devices in percent."""
        return self._limits(_CORES)

    @property
    def priority(self) -> int:
        """Return the container's priority: 0 is high, 1 is the default."""
        return self._i32(_TAIL + _PRIORITY)

    @property
    def last_kernel(self) -> int:
        """Return the time of the last kernel launch in seconds since 1970; 0 if never."""
        return min(self._u64(_TAIL + _LAST_KERNEL), _SECONDS_MAX)

    @property
    def recently_used(self) -> bool:
        """Return True if at most one `count_down` call followed the last kernel launch."""
        return self._i32(_TAIL + _RECENT) > 0

    @property
    def blocked(self) -> bool:
        """Return True if the container's processes must wait before launching a kernel."""
        return self._i32(_TAIL + _RECENT) < 0

    def count_down(self) -> None:
        """Reduce `recent_kernel` by 1 if it is positive. HAMi-core sets it to 2 at every launch."""
        left = self._i32(_TAIL + _RECENT)
        if left > 0:
            self._write(_i32, _TAIL + _RECENT, left - 1)

    def block(self, *, blocked: bool) -> None:
        """Stop kernel launches in the container, or allow them again."""
        if blocked != self.blocked:
            self._write(_i32, _TAIL + _RECENT, -1 if blocked else 0)

    def hold_cores(self, *, held: bool) -> None:
        """Switch the container's compute limit on or off (`utilization_switch` 1 or 0)."""
        self._write(_i32, _TAIL + _SWITCH, int(held))

    @property
    def cores_held(self) -> bool:
        """Return True if the container's compute limit is on."""
        return self._i32(_TAIL + _SWITCH) != 0

    def hold(self, plan: RegionPlan) -> bool:
        """Write the plan's limits, devices and priority. Return True if anything changed."""
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
        """Yield position, memory and cores of each device whose limits are higher than planned."""
        for position, wanted in enumerate(zip(plan.memory, _cores_of(plan), strict=False)):
            memory = min(self._u64(_MEMORY + 8 * position), BYTES_MAX)
            cores = min(self._u64(_CORES + 8 * position), _WHOLE)
            if (memory or BYTES_MAX) > wanted[0] or (cores or _WHOLE) > (wanted[1] or _WHOLE):
                yield position, memory or BYTES_MAX, cores or _WHOLE

    def forget_processes(self) -> None:
        """Clear the slots of all processes. Call this only when all of them have ended.

        HAMi-core would count an ended process as alive if another process gets the same id."""
        for slot in range(min(max(self._i32(_TAIL), 0), PROCESSES_MAX)):
            start = self._shift + _PROCESSES + slot * _PROCESS_BYTES
            self._stored.write(start, bytes(_PROCESS_BYTES))
        self._write(_i32, _TAIL, 0)

    def tell_host_pid(self, slot: int, host_pid: int) -> None:
        """Record the host PID of the process in this slot, because HAMi-core may guess it wrong."""
        self._write(_i32, _PROCESSES + slot * _PROCESS_BYTES + _HOST_PID, host_pid)

    def processes(self) -> Iterator[Process]:
        """Yield the container's processes, each read while no write interferes."""
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
        """Read a slot again until no write interferes; after a few tries, return the last read."""
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
        # zeros if a process has truncated the file in the meantime
        return self._stored.read(start, count).ljust(count, b"\0")

    def _write(self, kind: struct.Struct, offset: int, value: int) -> None:
        self._stored.write(self._shift + offset, kind.pack(value))
