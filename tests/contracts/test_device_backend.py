"""Contract tests of what the agent expects of each device backend, simulated or real."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from apportion.agent.backend import DeviceBackend, DevicesUnavailable, InTheWay, NotMade
from apportion.agent.nvidia.nvml import NvmlBackend
from apportion.agent.simulated import SimulatedBackend
from apportion.core.devices.catalogue import mig_profiles
from apportion.core.devices.simulating import simulated_devices
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import Device, Event, Host, MigInstance, NodeReported, decode, encode
from tests.support.nvidia.driver import Kind, fake_driver

CARDS = {
    "nvml over the fake driver": "2xA100-40GB+1xT4",
    "nvml over the fake driver, MIG": "1xA100-80GB:mig+1xH100-80GB:mig+1xL40S",
}


PROCESSES: dict[int, tuple[Kind, ...]] = {
    4_000_001: ("compute",),
    4_000_002: ("mps",),
    4_000_003: ("graphics",),
    4_000_004: ("compute", "graphics", "mps"),
}
"""Processes on the third GPU of each fake driver."""


@pytest.fixture(params=["simulated", *CARDS, "nvml over the real driver"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DeviceBackend]:
    """Provide an open device backend. Skip the test of a real backend if this machine has no
    driver."""
    opened: DeviceBackend
    with ExitStack() as stack:
        if request.param == "simulated":
            opened = SimulatedBackend(
                simulated_devices("n1", "1xA100-40GB:mig+1xA100-40GB+1xAscend310P")
            )
        elif request.param in CARDS:
            driver = stack.enter_context(fake_driver(tmp_path, CARDS[request.param]))
            for pid, kinds in PROCESSES.items():
                driver.process(2, pid, 50, kinds=kinds)
            opened = NvmlBackend(SystemClock(), probe_s=0.1)
        else:
            try:
                opened = NvmlBackend(SystemClock())
            except DevicesUnavailable as error:
                pytest.skip(str(error))
        yield opened
        await opened.close()


async def test_ids_and_indexes_of_devices_are_unique(backend: DeviceBackend) -> None:
    """Device ids and indexes are unique, and devices are ordered by index from 0."""
    devices = await backend.inventory()
    assert devices
    assert len({device.id for device in devices}) == len(devices)
    assert [device.index for device in devices] == list(range(len(devices)))


async def test_two_inventories_of_an_idle_machine_are_equal(backend: DeviceBackend) -> None:
    """Two inventories of an idle machine are equal.

    So an agent that restarts has no change to report."""
    assert await backend.inventory() == await backend.inventory()


async def test_the_ledger_takes_the_inventory(backend: DeviceBackend) -> None:
    """A node report with the backend's inventory meets the schema's limits, so it can be encoded
    and decoded again."""
    report = NodeReported(
        node="n1",
        devices=await backend.inventory(),
        host=Host(cpu_milli=1, memory_mib=1),
        driver=backend.driver,
        simulated=backend.simulated,
    )
    event = Event(id="1", source="test", time="2026-01-01T00:00:00.000000Z", data=report)
    assert decode(encode(event), subject="apportion.v1.inventory.n1") == event


async def test_amounts_make_sense(backend: DeviceBackend) -> None:
    """The backend reports plausible amounts of memory, cores and slots for every device."""
    for device in await backend.inventory():
        assert 1024 <= device.memory_mib <= device.physical_memory_mib < 1 << 20
        assert device.cores > 0
        assert device.slots > 0
        assert device.healthy or device.health_reason


async def test_links_lead_to_devices_of_the_node(backend: DeviceBackend) -> None:
    """Every link of a device leads to another device of the same inventory."""
    devices = await backend.inventory()
    known = {device.id for device in devices}
    for device in devices:
        assert device.nvlink_lanes.keys() <= known - {device.id}


async def test_every_device_has_a_load(backend: DeviceBackend) -> None:
    """The backend reports the use of every device, never above the device's capacity."""
    devices = {device.id: device for device in await backend.inventory()}
    loads = await backend.loads()
    assert {load.device for load in loads if load.instance is None} == devices.keys()
    for load in loads:
        assert 0 <= load.memory <= devices[load.device].physical_memory_mib << 20
        assert load.cores is None or 0 <= load.cores <= 100


async def test_a_process_is_in_a_load_once(
    backend: DeviceBackend, request: pytest.FixtureRequest
) -> None:
    """A device's load lists each process once, although some drivers list a process several
    times."""
    devices = {device.id: device for device in await backend.inventory()}
    told = set()
    for load in await backend.loads():
        pids = [process.pid for process in load.processes]
        assert len(set(pids)) == len(pids)
        told.update(pids)
        memory = devices[load.device].physical_memory_mib << 20
        assert all(0 <= (process.memory or 0) <= memory for process in load.processes)
    if request.node.callspec.params["backend"] in CARDS:
        assert told == PROCESSES.keys()


async def test_memory_is_held_of_cgroups_that_are_there(
    backend: DeviceBackend, tmp_path: Path
) -> None:
    """A backend sets no memory limit for a missing cgroup, and raises NotMade for an unknown
    device."""
    with pytest.raises(NotMade):
        await backend.hold_memory("GPU-nowhere", tmp_path, 1 << 30)
    for device in await backend.inventory():
        with suppress(NotMade):
            assert not await backend.hold_memory(device.id, tmp_path / "none", 1 << 30)


# ---------------------------------------------------------------- MIG instances


@pytest.fixture
async def card(backend: DeviceBackend) -> Device:
    """Provide a device in MIG mode. Skip the test if the backend has none."""
    found = [device for device in await backend.inventory() if device.mode == "mig"]
    if not found:
        pytest.skip("no card in MIG mode")
    return found[0]


def smallest(card: Device, start: int) -> MigInstance:
    """Return the smallest MIG instance that this device can have, placed at slice `start`."""
    profile = min(mig_profiles("nvidia", card.model), key=lambda each: each.memory_mib)
    return MigInstance(profile=profile.name, start=start, size=profile.size)


def whole(card: Device) -> MigInstance:
    """Return a MIG instance that takes the whole device."""
    profile = max(mig_profiles("nvidia", card.model), key=lambda each: each.size)
    return MigInstance(profile=profile.name, start=0, size=profile.size)


async def test_a_repeated_request_returns_the_same_instance(
    backend: DeviceBackend, card: Device
) -> None:
    """If the same MIG instance is requested twice, the backend returns the existing instance the
    second time.

    A MIG instance in another place gets another id."""
    first = await backend.make_instance(card.id, smallest(card, 3), [])
    assert first.id.startswith("MIG-")
    assert await backend.make_instance(card.id, smallest(card, 3), []) == first
    other = await backend.make_instance(card.id, smallest(card, 0), [])
    assert other.id != first.id


async def test_a_needed_instance_stays(backend: DeviceBackend, card: Device) -> None:
    """A request for a MIG instance fails if a MIG instance that is still needed occupies its
    slices.

    If the MIG instance in those slices is no longer needed, the backend removes it to make room."""
    needed = smallest(card, 2)
    await backend.make_instance(card.id, needed, [])
    with pytest.raises(InTheWay, match=f"{needed.profile} from slice 2 occupies slices of"):
        await backend.make_instance(card.id, whole(card), [needed])
    await backend.make_instance(card.id, whole(card), [smallest(card, 5)])
    assert (await backend.keep_instances(card.id, [])).gone == (whole(card),)


async def test_an_instance_has_a_load_of_its_own(backend: DeviceBackend, card: Device) -> None:
    """From its creation to its removal, a MIG instance has its own load in the backend's report."""
    wanted = smallest(card, 2)
    await backend.make_instance(card.id, wanted, [])
    cuts = [load.instance for load in await backend.loads() if load.device == card.id]
    assert cuts == [None, wanted]
    await backend.keep_instances(card.id, [])
    cuts = [load.instance for load in await backend.loads() if load.device == card.id]
    assert cuts == [None]


async def test_only_what_is_needed_is_kept(backend: DeviceBackend, card: Device) -> None:
    """The backend removes MIG instances that are no longer needed, and frees their slices."""
    kept = await backend.make_instance(card.id, smallest(card, 1), [])
    await backend.make_instance(card.id, smallest(card, 4), [])
    kept_ones = await backend.keep_instances(card.id, [smallest(card, 1)])
    assert kept_ones == ((smallest(card, 4),), (), ())
    assert await backend.keep_instances(card.id, [smallest(card, 1)]) == ((), (), ())
    assert await backend.make_instance(card.id, smallest(card, 1), []) == kept
    await backend.keep_instances(card.id, [])


async def test_a_device_without_mig_has_no_instances(backend: DeviceBackend) -> None:
    """The backend reports no MIG instances for a device without MIG mode or for an unknown
    device."""
    one = MigInstance(profile="1g.5gb", start=0, size=1)
    others = [each.id for each in await backend.inventory() if each.mode != "mig"]
    for device in [*others, "GPU-nowhere"]:
        with pytest.raises(NotMade):
            await backend.make_instance(device, one, [])
