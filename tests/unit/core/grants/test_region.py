"""Tests of HAMi-core's usage region, a file with a container's limits and usage.

The monitor blocks or limits containers through their regions."""

import struct

import pytest
from msgspec import structs

from apportion.core.grants.feedback import Contender, advise
from apportion.core.grants.held import RegionPlan
from apportion.core.grants.region import SIZE, Process, Region, RegionInvalid, made
from tests.support.stored import StoredBytes

PLAN = RegionPlan("r", ("GPU-1", "GPU-2"), (700 << 20, 1300 << 20), (30, 30), priority=0)
PROCESSES, PROCESS, COUNT = 1856, 1960, 2_008_896
"""Offsets of HAMi-core 1.2 on a 64-bit machine, from its header."""
NOW_S, RECENT_S = 1_000_000.0, 10.0


def region(priority: int = 1, *devices: str) -> Region:
    """Return the usage region of a container with this priority and these devices, before its first
    process."""
    names = devices or ("GPU-1",)
    plan = RegionPlan("r", names, (1 << 20,) * len(names), (30,) * len(names), priority)
    return Region(StoredBytes(made(plan)))


def use(of: Region) -> None:
    """Record a kernel launch in the region as HAMi-core does: set `recent_kernel` to 2."""
    of._stored.write(COUNT + 8, struct.pack("<i", 2))


def held(of: Region) -> bool:
    """Return True if the core limit of this region's container is currently enforced."""
    return of.cores_held


def waits(of: Region) -> bool:
    """Return True if the container of this region must wait before its next kernel launch."""
    return of.blocked


def test_a_new_region_says_what_was_planned() -> None:
    """A new region has the size that HAMi-core expects, and already contains the container's
    limits."""
    data = made(PLAN)
    found = Region(StoredBytes(data))
    assert len(data) == SIZE
    assert (found.devices, found.memory, found.cores) == (PLAN.devices, PLAN.memory, (30, 30))
    assert (found.priority, found.cores_held, found.blocked) == (0, True, False)
    assert list(found.processes()) == []


def test_a_resize_goes_to_the_place_where_hami_core_looks() -> None:
    """A resize writes the new limits where HAMi-core reads them: memory at byte 1600 and cores at
    byte 1728, eight bytes per device."""
    data = StoredBytes(made(PLAN))
    plan = structs.replace(PLAN, memory=(1 << 30, 2 << 30), cores=(60, 60))
    assert Region(data).hold(plan)
    assert struct.unpack_from("<2Q", data, 1600) == (1 << 30, 2 << 30)
    assert struct.unpack_from("<2Q", data, 1728) == (60, 60)


@pytest.mark.parametrize(
    ("minor", "size", "shift"), [(2, SIZE, 0), (1, SIZE, 0), (1, 2_008_985, 32)]
)
def test_processes_of_each_version_are_read(minor: int, size: int, shift: int) -> None:
    """The list of processes is read from regions of every version. In one variant of version 1.1,
    the fields are shifted by 32 bytes."""
    data = StoredBytes(size)
    struct.pack_into("<iII", data, 0, 19_920_718, 1, minor)
    struct.pack_into("<Q", data, 56 + shift, 1)
    start = PROCESSES + shift + PROCESS
    struct.pack_into("<ii", data, start, 7, 4711)
    struct.pack_into("<QQQQQ", data, start + 8, 1, 2, 3, 0, 600 << 20)
    struct.pack_into("<Q", data, start + 1160 + 16, 55)
    struct.pack_into("<i", data, COUNT + shift, 2)
    found = Region(data)
    assert list(found.processes()) == [Process(1, 7, 4711, (600 << 20,), (55,), ((1, 2, 3),))]
    found.tell_host_pid(1, 99)
    assert next(found.processes()).host_pid == 99


def test_numbers_that_a_process_made_up_end_nothing() -> None:
    """If a container writes impossible counts of processes or devices, the reader clips them to the
    length of the arrays."""
    data = StoredBytes(made(PLAN))
    struct.pack_into("<i", data, COUNT, 1 << 30)
    struct.pack_into("<Q", data, 56, 1 << 60)
    found = Region(data)
    assert len(found.devices) == 16
    assert list(found.processes()) == []
    struct.pack_into("<i", data, COUNT, -5)
    assert list(found.processes()) == []


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "0 bytes"),
        (bytes(SIZE), "magic 0"),
        (struct.pack("<iII", 19_920_718, 2, 0) + bytes(SIZE), "version 2.0"),
        (struct.pack("<iII", 19_920_718, 1, 2) + bytes(99), "111 bytes instead of"),
    ],
)
def test_what_is_no_region_is_refused(data: bytes, problem: str) -> None:
    """Data that is not a region is refused with the reason."""
    with pytest.raises(RegionInvalid, match=problem):
        Region(StoredBytes(data))


def test_more_devices_than_a_region_has_room_for_are_refused() -> None:
    """A region for more than 16 devices is refused, because HAMi-core's array has 16 entries."""
    names = tuple(map(str, range(17)))
    with pytest.raises(RegionInvalid, match="17 devices"):
        made(RegionPlan("r", names, (1,) * 17, (0,) * 17))


def advised(
    *regions: Region, at_s: float = NOW_S, namespaces: str = "aa", first: tuple[str, ...] = ()
) -> None:
    """Run one round of the monitor over these containers' regions.

    Each letter of `namespaces` is one container's namespace. The priority of a container counts in
    other namespaces only if its own namespace is in `first`."""
    contenders = (
        Contender(each, namespace, each.devices, each.priority)
        for each, namespace in zip(regions, namespaces, strict=True)
    )
    advise(tuple(contenders), at_s, RECENT_S, first)


def test_alone_on_its_card_a_container_is_not_held_to_its_cores() -> None:
    """A container that uses its device alone has no core limit.

    If two containers of equal priority use a device, both are limited."""
    alone, other = region(), region()
    advised(alone, other)
    assert held(alone)
    use(alone)
    advised(alone, other)
    assert not held(alone)
    use(alone)
    use(other)
    advised(alone, other)
    assert held(alone)
    assert held(other)


def test_a_kernel_of_a_container_that_is_free_counts_as_well() -> None:
    """A container whose core limit is off still counts as active after a kernel launch.

    The monitor reads the time of the last launch, because HAMi-core of mid 2026 does not set
    `recent_kernel` for such a container."""
    free, other = region(), region()
    for each in (free, other):
        each.hold_cores(held=False)
        each._stored.write(COUNT + 16, struct.pack("<Q", int(NOW_S) - 1))
    for _ in range(3):
        advised(free, other)
    assert held(free)
    advised(free, other, at_s=NOW_S + RECENT_S)
    assert not held(free)


def test_who_uses_another_card_holds_nobody() -> None:
    """A container does not cause the core limit of a container on another device."""
    one, two = region(1, "GPU-1"), region(1, "GPU-2")
    use(one)
    use(two)
    advised(one, two)
    assert not held(one)
    assert not held(two)


@pytest.mark.parametrize(("namespaces", "first"), [("aa", ()), ("ab", ("a",)), ("ab", ("*",))])
def test_D6_the_first_priority_goes_before_all_others(
    namespaces: str, first: tuple[str, ...]
) -> None:
    """While a container of priority 0 uses a device, containers of lower priority are blocked.

    Once that container is idle, the others continue."""
    high, low = region(0), region(1)
    use(high)
    use(low)
    advised(high, low, namespaces=namespaces, first=first)
    assert waits(low)
    assert not waits(high)
    assert not held(high)
    advised(high, low, namespaces=namespaces, first=first)
    assert not waits(low)


def test_no_other_namespace_waits_for_a_priority_without_the_right_to_it() -> None:
    """A container of priority 0 blocks containers of other namespaces only if its own namespace has
    permission."""
    high, low = region(0), region(1)
    for each in (high, low):
        use(each)
    advised(high, low, namespaces="ab", first=("b",))
    assert not waits(low)
    assert held(high)
    assert held(low)


def test_what_a_region_says_of_rank_time_and_devices_stops_nobody() -> None:
    """A container cannot block or limit others with a forged priority, time or device list in its
    region: the monitor takes these from the ledger."""
    liar, other = region(1, "GPU-2"), region(1, "GPU-1")
    lie(liar, devices=("GPU-1", "GPU-2"), last_kernel=1 << 63)
    contenders = (Contender(liar, "a", ("GPU-2",), 1), Contender(other, "a", ("GPU-1",), 1))
    for _ in range(3):
        use(other)
        advise(contenders, NOW_S, RECENT_S)
    assert not waits(other)
    assert not held(other)
    assert not held(liar)


def lie(of: Region, *, devices: tuple[str, ...], last_kernel: int) -> None:
    """Forge the device list and the launch times in the region, as a hostile container would."""
    of._stored.write(56, struct.pack("<Q", len(devices)))
    for at, device in enumerate(devices):
        of._stored.write(64 + 96 * at, device.encode().ljust(96, b"\0"))
    of._stored.write(COUNT + 12, struct.pack("<i", -5))
    of._stored.write(COUNT + 16, struct.pack("<Q", last_kernel))


def test_numbers_are_clipped_to_what_a_device_can_have() -> None:
    """Usage that a container reports is clipped to what a device can have, so that sums never
    overflow."""
    data = StoredBytes(made(PLAN))
    data[PROCESSES:COUNT] = b"\xff" * (COUNT - PROCESSES)
    for slot in range(1024):
        struct.pack_into("<i", data, PROCESSES + slot * PROCESS, 1)
    struct.pack_into("<i", data, COUNT, 1024)
    found = list(Region(data).processes())
    assert len(found) == 1024
    assert {each.memory for each in found} == {(1 << 44, 1 << 44)}
    assert {each.cores for each in found} == {(100, 100)}
    assert {each.kinds for each in found} == {((1 << 44,) * 3,) * 2}


def test_what_a_container_changed_is_found_and_put_right() -> None:
    """If a container changes memory, cores, devices or priority in its region, the monitor detects
    the change and restores the planned value."""
    for at, value in ((1600, 14_000 << 20), (1728, 90), (56, 0), (64, 0), (COUNT + 12, 7)):
        data = StoredBytes(made(PLAN))
        region = Region(data)
        assert not region.hold(PLAN)
        struct.pack_into("<i" if at > COUNT else "<Q", data, at, value)
        assert region.hold(PLAN), at
        assert bytes(data) == made(PLAN), at


def test_D6_a_container_without_a_limit_of_compute_waits_as_well() -> None:
    """A container without a core limit gets a limit of 99, because HAMi-core never blocks at 0 or
    100.

    Containers of priority 0 keep their limit."""
    for cores, priority, written in ((0, 1, 99), (100, 1, 99), (30, 1, 30), (0, 0, 0)):
        plan = RegionPlan("r", ("GPU-1",), (1 << 20,), (cores,), priority)
        data = StoredBytes(made(plan))
        assert Region(data).cores == (written,)
        assert not Region(data).hold(plan)


def test_processes_of_an_earlier_life_are_forgotten() -> None:
    """When a container restarts, the processes of its previous run are removed from its region.

    Nothing else in the region changes."""
    data = StoredBytes(made(PLAN))
    for slot in range(3):
        struct.pack_into("<iiQ", data, PROCESSES + slot * PROCESS, slot + 1, 4711, 600 << 20)
    struct.pack_into("<i", data, COUNT, 3)
    Region(data).forget_processes()
    assert bytes(data) == made(PLAN)
