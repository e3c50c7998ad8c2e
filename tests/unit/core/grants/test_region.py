"""HAMi-core's usage region: its layout, what may stand in it, and who waits for whom."""

import struct

import pytest

from apportion.core.grants.feedback import advise
from apportion.core.grants.plan import RegionPlan
from apportion.core.grants.region import SIZE, Process, Region, RegionInvalid, made
from tests.support.stored import StoredBytes

PLAN = RegionPlan("r", ("GPU-1", "GPU-2"), (700 << 20, 1300 << 20), (30, 30), priority=0)
PROCESSES, PROCESS, COUNT = 1856, 1960, 2_008_896
"""Offsets of HAMi-core 1.2, as its header has them on a machine of 64 bits."""
NOW_S, RECENT_S = 1_000_000.0, 10.0


def region(priority: int = 1, *devices: str) -> Region:
    """A new one."""
    names = devices or ("GPU-1",)
    plan = RegionPlan("r", names, (1 << 20,) * len(names), (30,) * len(names), priority)
    return Region(StoredBytes(made(plan)))


def use(of: Region) -> None:
    """What HAMi-core writes when a kernel is launched: `recent_kernel` is 2."""
    of._stored.write(COUNT + 8, struct.pack("<i", 2))


def held(of: Region) -> bool:
    """Whether its container is held to its cores, by now."""
    return of.cores_held


def waits(of: Region) -> bool:
    """Whether its container waits before it launches, by now."""
    return of.blocked


def test_a_new_region_says_what_was_planned() -> None:
    """Its size is that of HAMi-core's file, and its limits are there before a process is."""
    data = made(PLAN)
    found = Region(StoredBytes(data))
    assert len(data) == SIZE
    assert (found.devices, found.memory, found.cores) == (PLAN.devices, PLAN.memory, (30, 30))
    assert (found.priority, found.cores_held, found.blocked) == (0, True, False)
    assert list(found.processes()) == []


def test_a_resize_goes_to_the_place_where_hami_core_looks() -> None:
    """Memory at byte 1600 and cores at 1728, eight bytes a device."""
    data = StoredBytes(made(PLAN))
    Region(data).resize((1 << 30, 2 << 30), (60, 60))
    assert struct.unpack_from("<2Q", data, 1600) == (1 << 30, 2 << 30)
    assert struct.unpack_from("<2Q", data, 1728) == (60, 60)


@pytest.mark.parametrize(
    ("minor", "size", "shift"), [(2, SIZE, 0), (1, SIZE, 0), (1, 2_008_985, 32)]
)
def test_processes_of_each_version_are_read(minor: int, size: int, shift: int) -> None:
    """One variant of 1.1 has everything from the number of devices on 32 bytes later."""
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
    """More processes and devices than there is room for are as many as there is room for."""
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
        (struct.pack("<iII", 19_920_718, 1, 2) + bytes(99), "111 bytes; a usage region has"),
    ],
)
def test_what_is_no_region_is_refused(data: bytes, problem: str) -> None:
    """By what stands there."""
    with pytest.raises(RegionInvalid, match=problem):
        Region(StoredBytes(data))


def test_more_devices_than_a_region_has_room_for_are_refused() -> None:
    """HAMi-core's array has sixteen."""
    names = tuple(map(str, range(17)))
    with pytest.raises(RegionInvalid, match="17 devices"):
        made(RegionPlan("r", names, (1,) * 17, (0,) * 17))


def test_alone_on_its_card_a_container_is_not_held_to_its_cores() -> None:
    """The limit of compute counts where two of one priority want the card.

    A container that has just started counts as one that uses it, for a round.
    """
    alone, other = region(), region()
    advise([alone, other], NOW_S, RECENT_S)
    assert held(alone)
    use(alone)
    advise([alone, other], NOW_S, RECENT_S)
    assert not held(alone)
    use(alone)
    use(other)
    advise([alone, other], NOW_S, RECENT_S)
    assert held(alone)
    assert held(other)


def test_a_kernel_of_a_container_that_is_free_counts_as_well() -> None:
    """HAMi-core of mid 2026 notes no `recent_kernel` for it, and would be free for ever."""
    free, other = region(), region()
    for each in (free, other):
        each.hold_cores(held=False)
        each._stored.write(COUNT + 16, struct.pack("<Q", int(NOW_S) - 1))
    advise([free, other], NOW_S, RECENT_S)
    advise([free, other], NOW_S, RECENT_S)
    advise([free, other], NOW_S, RECENT_S)
    assert held(free)
    advise([free, other], NOW_S + RECENT_S, RECENT_S)
    assert not held(free)


def test_who_uses_another_card_holds_nobody() -> None:
    """Contention is of a card, not of the node."""
    one, two = region(1, "GPU-1"), region(1, "GPU-2")
    use(one)
    use(two)
    advise([one, two], NOW_S, RECENT_S)
    assert not held(one)
    assert not held(two)


def test_D6_the_first_priority_goes_before_all_others() -> None:
    """While it uses the card the others wait; two rounds after its last kernel they go on."""
    first, second = region(0), region(1)
    use(first)
    use(second)
    advise([first, second], NOW_S, RECENT_S)
    assert waits(second)
    assert not waits(first)
    assert not held(first)
    advise([first, second], NOW_S, RECENT_S)
    assert not waits(second)
