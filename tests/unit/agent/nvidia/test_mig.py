"""Tests of GPUs in MIG mode whose instances were left in odd states by a crash, an operator or a
container."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from apportion.agent.backend import InTheWay, NotMade
from apportion.agent.boot_book import BootBook
from apportion.agent.nvidia import mig as nvml_mig
from apportion.agent.nvidia.driver import QUIET_S
from apportion.agent.nvidia.mig import OurInstances
from apportion.agent.nvidia.nvml import NvmlBackend
from apportion.agent.shares.cards import Instances
from apportion.core.grants import DeviceNode
from apportion.core.grants.mig import named
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import Device, MigInstance, Share
from tests.support.fleet import gpu
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.unit.agent.nvidia.test_nvml import Hand

HALF = MigInstance(profile="3g.20gb", start=4, size=4)
OTHER_HALF = MigInstance(profile="3g.20gb", start=0, size=4)
SMALL = MigInstance(profile="1g.5gb", start=6, size=1)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    """Provide a driver with one GPU in MIG mode."""
    with fake_driver(tmp_path, "1xA100-40GB:mig") as made:
        yield made


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Provide a fake /proc whose boot id is `boot-1`."""
    boot(tmp_path / "proc", "boot-1")
    return tmp_path / "proc"


@pytest.fixture
async def backend(driver: FakeDriver, tmp_path: Path, proc: Path) -> AsyncIterator[NvmlBackend]:
    """Provide an open backend that keeps its record of instances on disk."""
    assert driver.ids
    opened = NvmlBackend(SystemClock(), ours=ours(tmp_path, proc))
    yield opened
    await opened.close()


def boot(proc: Path, name: str) -> None:
    """Write this boot id to the fake /proc, as if the machine had booted again."""
    folder = proc / "sys/kernel/random"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "boot_id").write_text(name)


def ours(folder: Path, proc: Path) -> OurInstances:
    """Read the agent's record of its own instances from disk, as a starting agent does."""
    return OurInstances(BootBook(folder / "instances.json", proc, MigInstance))


def made_by_hand(card: Any, cut: MigInstance) -> Any:
    """Make a GPU instance outside the agent, as an operator or another program would."""
    number = nvml_mig.profiles(card)[cut.profile].id
    at = pynvml.c_nvmlGpuInstancePlacement_t(cut.start, cut.size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, number, pynvml.byref(at))


@pytest.fixture
def card(backend: NvmlBackend) -> Any:
    """Provide the GPU's NVML handle, for changes made outside the agent."""
    assert backend.driver
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def there(card: Any) -> list[MigInstance]:
    return [each.cut for each in nvml_mig.instances(card, nvml_mig.profiles(card))]


async def test_an_instance_without_its_inside_is_finished(
    driver: FakeDriver, card: Any, tmp_path: Path, proc: Path
) -> None:
    """If the agent is killed while making a MIG instance, the GPU instance has no compute instance.
    The restarted agent adds the missing compute instance."""
    ours(tmp_path, proc).note(driver.ids[0], HALF)
    made_by_hand(card, HALF)
    backend = NvmlBackend(SystemClock(), ours=ours(tmp_path, proc))
    made = await backend.make_instance(driver.ids[0], HALF, [])
    device = pynvml.nvmlDeviceGetHandleByUUID(made.id.encode())
    assert pynvml.nvmlDeviceGetAttributes(device).computeInstanceSliceCount == 3
    assert there(card) == [HALF]
    await backend.close()


async def test_an_instance_that_was_cut_within_is_made_whole(
    backend: NvmlBackend, driver: FakeDriver, card: Any
) -> None:
    """An operator may split a GPU instance into several compute instances. If the agent needs the
    MIG instance, it replaces them with a single compute instance."""
    await backend.make_instance(driver.ids[0], HALF, [])
    (one,) = nvml_mig.instances(card, nvml_mig.profiles(card))
    half = one.handle
    (whole,) = nvml_mig._computes(one)
    pynvml.nvmlComputeInstanceDestroy(whole)
    for _ in range(3):
        pynvml.nvmlGpuInstanceCreateComputeInstance(half, 0)
    made = await backend.make_instance(driver.ids[0], HALF, [])
    device = pynvml.nvmlDeviceGetHandleByUUID(made.id.encode())
    assert pynvml.nvmlDeviceGetAttributes(device).computeInstanceSliceCount == 3


async def test_what_a_process_runs_on_stays(
    backend: NvmlBackend, driver: FakeDriver, card: Any
) -> None:
    """The agent keeps a MIG instance in which a process runs. Requests for the instance's slices
    fail until the process ends."""
    await backend.make_instance(driver.ids[0], SMALL, [])
    (one,) = nvml_mig.instances(card, nvml_mig.profiles(card))
    driver.process(0, 4242, 100, instance=one.id)
    kept = await backend.keep_instances(driver.ids[0], [])
    assert (kept.gone, kept.held, kept.foreign) == ((), (SMALL,), ())
    with pytest.raises(InTheWay, match="still uses it"):
        await backend.make_instance(driver.ids[0], HALF, [])
    assert there(card) == [SMALL]
    driver.end_process(4242)
    await backend.make_instance(driver.ids[0], HALF, [])
    assert there(card) == [HALF]


async def test_a_card_is_listed_without_the_right_to_cut_it(
    driver: FakeDriver, tmp_path: Path, proc: Path
) -> None:
    """An agent without CAP_SYS_ADMIN still reports a MIG GPU as healthy, with every slice
    available."""
    driver.unprivileged(0)
    backend = NvmlBackend(SystemClock(), ours=ours(tmp_path, proc))
    try:
        (device,) = await backend.inventory()
        assert (device.mode, device.healthy, device.closed_slices) == ("mig", True, 0)
    finally:
        await backend.close()


async def test_a_card_whose_instances_cannot_be_listed_is_logged_once(
    backend: NvmlBackend, driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """If the agent cannot list a GPU's instances, it logs each cause once, not at every check."""
    instances = Instances(backend)
    driver.unprivileged(0)
    for _ in range(3):
        await instances.keep(driver.ids, [])
    assert len(caplog.records) == 1
    driver.fall_off(0)
    for _ in range(2):
        await instances.keep(driver.ids, [])
    assert len(caplog.records) == 2


async def test_a_size_that_the_card_does_not_have_is_named(
    backend: NvmlBackend, driver: FakeDriver
) -> None:
    """The agent refuses an unknown MIG profile with an error that lists the available profiles."""
    wanted = MigInstance(profile="1g.24gb", start=0, size=1)
    with pytest.raises(NotMade, match=r"no MIG profile 1g\.24gb; available: 1g\.5gb, 2g\.10gb"):
        await backend.make_instance(driver.ids[0], wanted, [])


async def test_a_container_gets_the_device_nodes_of_its_instance(
    backend: NvmlBackend, driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with a MIG share gets only the device nodes of its GPU, GPU instance and compute
    instance."""
    minors, devices = tmp_path / "mig-minors", tmp_path / "devices"
    lines = [f"gpu0/gi{gi}/access {3 + gi * 9}" for gi in range(8)]
    lines += [f"gpu0/gi{gi}/ci{ci}/access {4 + gi * 9 + ci}" for gi in range(8) for ci in range(8)]
    minors.write_text("\n".join(["config 1", "monitor 2", *lines, ""]))
    devices.write_text(
        "Character devices:\n  1 mem\n195 nvidia\n237 nvidia-caps\n\nBlock devices:\n"
    )
    monkeypatch.setattr(nvml_mig, "CAPABILITIES", minors)
    monkeypatch.setattr(nvml_mig, "DEVICES", devices)
    made = await backend.make_instance(driver.ids[0], SMALL, [])
    device = pynvml.nvmlDeviceGetHandleByUUID(made.id.encode())
    gi = pynvml.nvmlDeviceGetGpuInstanceId(device)
    ci = pynvml.nvmlDeviceGetComputeInstanceId(device)
    first, second = 3 + gi * 9, 4 + gi * 9 + ci
    assert made.device_nodes == (
        DeviceNode("/dev/nvidia0", 195, 0),
        DeviceNode(f"/dev/nvidia-caps/nvidia-cap{first}", 237, first),
        DeviceNode(f"/dev/nvidia-caps/nvidia-cap{second}", 237, second),
    )


async def test_the_inventory_has_the_sizes_of_the_driver(backend: NvmlBackend) -> None:
    """The agent's inventory has the MIG profile sizes that the driver reports."""
    (device,) = await backend.inventory()
    sizes = {each.profile: each.memory_mib for each in device.mig_sizes}
    assert (sizes["1g.5gb"], sizes["2g.10gb"], sizes["3g.20gb"]) == (4864, 9984, 20096)


async def test_a_share_that_was_placed_for_more_than_the_driver_makes_is_refused(
    backend: NvmlBackend, driver: FakeDriver, card: Any
) -> None:
    """The agent refuses a share that was placed with more memory than the driver's MIG instance
    has. The error states the instance's real size."""
    hands = Instances(backend)
    wanted = Share(
        container="main", device=driver.ids[0], memory_mib=20_224, cores=0, instance=HALF
    )
    with pytest.raises(NotMade, match="20096 MiB"):
        await hands.ensure([wanted], [])
    assert there(card) == []
    await hands.ensure([msgspec.structs.replace(wanted, memory_mib=20_096)], [])
    assert there(card) == [HALF]


async def test_a_driver_may_count_in_smaller_slices(tmp_path: Path, proc: Path) -> None:
    """The RTX PRO 6000 driver divides a GPU into twelve slices. The agent converts positions in
    these slices to its own, larger slices."""
    with fake_driver(tmp_path, "1xRTX-PRO-6000:mig") as driver:
        (device,) = driver.ids
        backend = NvmlBackend(SystemClock(), ours=ours(tmp_path, proc))
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        quarter = MigInstance(profile="1g.24gb", start=1, size=1)
        half = MigInstance(profile="2g.48gb", start=2, size=2)
        await backend.make_instance(device, quarter, [])
        made_by_hand(card, MigInstance(profile="2g.48gb", start=6, size=6))
        at = [
            pynvml.nvmlGpuInstanceGetInfo(each.handle).placement
            for each in nvml_mig.instances(card, nvml_mig.profiles(card))
        ]
        assert [(each.start, each.size) for each in at] == [(3, 3), (6, 6)]
        assert there(card) == [quarter, half]
        kept = await backend.keep_instances(device, [])
        assert (kept.gone, kept.foreign) == ((quarter,), (half,))
        await backend.close()


# ---------------------------------------------------------------- foreign instances


async def test_instances_that_the_agent_did_not_make_stay(
    backend: NvmlBackend, driver: FakeDriver, card: Any
) -> None:
    """The agent keeps and reports an instance that another program made, and removes an unused
    instance of its own."""
    made_by_hand(card, HALF)
    small = MigInstance(profile="1g.5gb", start=0, size=1)
    await backend.make_instance(driver.ids[0], small, [])
    kept = await backend.keep_instances(driver.ids[0], [])
    assert (kept.gone, kept.held, kept.foreign) == ((small,), (), (HALF,))
    assert there(card) == [HALF]


@pytest.mark.parametrize("wanted", [HALF, SMALL, MigInstance(profile="7g.40gb", start=0, size=8)])
async def test_no_share_is_cut_where_an_instance_of_another_is(
    backend: NvmlBackend, driver: FakeDriver, card: Any, wanted: MigInstance
) -> None:
    """The agent refuses a share whose slices overlap an instance that another program made. It
    still makes shares in free slices."""
    made_by_hand(card, HALF)
    with pytest.raises(NotMade, match=r"3g\.20gb from slice 4") as refused:
        await backend.make_instance(driver.ids[0], wanted, [])
    assert not isinstance(refused.value, InTheWay)
    assert there(card) == [HALF]
    await backend.make_instance(driver.ids[0], MigInstance(profile="1g.5gb", start=0, size=1), [])


async def test_an_agent_that_starts_again_knows_its_instances(
    backend: NvmlBackend, driver: FakeDriver, card: Any, tmp_path: Path, proc: Path
) -> None:
    """A restarted agent reads from disk which instances it has made. It keeps every other instance,
    because another program made that instance."""
    first = await backend.make_instance(driver.ids[0], SMALL, [])
    small = MigInstance(profile="1g.5gb", start=0, size=1)
    made_by_hand(card, small)
    again = NvmlBackend(SystemClock(), ours=ours(tmp_path, proc))
    assert await again.make_instance(driver.ids[0], SMALL, []) == first
    kept = await again.keep_instances(driver.ids[0], [])
    assert (kept.gone, kept.foreign) == ((SMALL,), (small,))
    assert there(card) == [small]
    await again.close()


@pytest.mark.parametrize("exists", [True, False])
async def test_a_death_between_the_note_and_the_making_forgets_nothing(
    driver: FakeDriver, card: Any, tmp_path: Path, proc: Path, exists: bool
) -> None:
    """The agent may crash after it records a MIG instance and before it makes the instance or a pod
    uses it. The restarted agent deletes the record, and the instance if it exists."""
    ours(tmp_path, proc).note(driver.ids[0], HALF)
    if exists:
        made_by_hand(card, HALF)
    backend = NvmlBackend(SystemClock(), ours=ours(tmp_path, proc))
    kept = await backend.keep_instances(driver.ids[0], [])
    assert kept.gone == ((HALF,) if exists else ())
    assert ours(tmp_path, proc).of(driver.ids[0]) == []
    made_by_hand(card, HALF)
    assert (await backend.keep_instances(driver.ids[0], [])).foreign == (HALF,)
    assert there(card) == [HALF]
    await backend.close()


async def test_an_instance_is_noted_before_it_is_made(
    backend: NvmlBackend, driver: FakeDriver, card: Any, tmp_path: Path
) -> None:
    """The agent records an instance on disk before making it. If the write fails, the agent makes
    no instance. If the driver refuses, the agent deletes the record."""
    (tmp_path / "instances.json").mkdir()
    with pytest.raises(OSError, match=r"instances\.json"):
        await backend.make_instance(driver.ids[0], SMALL, [])
    assert there(card) == []
    (tmp_path / "instances.json").rmdir()
    crooked = MigInstance(profile="2g.10gb", start=1, size=2)
    with pytest.raises(NotMade):
        await backend.make_instance(driver.ids[0], crooked, [])
    assert not backend._ours.of(driver.ids[0])


async def test_a_boot_ends_what_is_ours(
    backend: NvmlBackend, driver: FakeDriver, card: Any, tmp_path: Path, proc: Path
) -> None:
    """After a reboot the agent treats no instance as its own, not even one with the id of an
    instance that the agent made before."""
    first = await backend.make_instance(driver.ids[0], SMALL, [])
    driver.restart()
    boot(proc, "boot-2")
    again = NvmlBackend(SystemClock(), ours=ours(tmp_path, proc))
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    one = made_by_hand(card, SMALL)
    pynvml.nvmlGpuInstanceCreateComputeInstance(one, 0)
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
    assert pynvml.nvmlDeviceGetUUID(device) == first.id
    kept = await again.keep_instances(driver.ids[0], [])
    assert (kept.gone, kept.foreign) == ((), (SMALL,))
    assert there(card) == [SMALL]
    await again.close()


async def test_an_instance_that_the_driver_holds_goes_in_a_later_round(
    backend: NvmlBackend, driver: FakeDriver, card: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An instance that a process uses cannot be removed. The agent retries in every round with a
    single warning, and removes other unused instances at once."""
    hands = Instances(backend)
    other = MigInstance(profile="1g.5gb", start=0, size=1)
    await backend.make_instance(driver.ids[0], SMALL, [])
    (one,) = nvml_mig.instances(card, nvml_mig.profiles(card))
    await backend.make_instance(driver.ids[0], other, [])
    driver.process(0, 4242, 0, instance=one.id)
    for _ in range(3):
        await hands.keep([driver.ids[0]], [])
        assert there(card) == [SMALL]
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each.count("1g.5gb from slice 6") for each in told] == [1]
    driver.end_process(4242)
    await hands.keep([driver.ids[0]], [])
    assert there(card) == []


async def test_the_inventory_has_the_slices_of_others(
    backend: NvmlBackend, driver: FakeDriver, card: Any
) -> None:
    """If another program made a MIG instance, the agent's inventory marks the slices of that
    instance as unavailable. The GPU stays healthy."""
    await backend.make_instance(driver.ids[0], SMALL, [])
    (device,) = await backend.inventory()
    assert (device.healthy, device.closed_slices) == (True, 0)
    other = made_by_hand(card, MigInstance(profile="2g.10gb", start=2, size=2))
    (device,) = await backend.inventory()
    assert (device.healthy, device.closed_slices) == (True, 0b1100)
    pynvml.nvmlGpuInstanceDestroy(other)
    (device,) = await backend.inventory()
    assert device.closed_slices == 0


async def test_an_agent_that_hands_nothing_out_knows_no_slices_of_others(
    driver: FakeDriver,
) -> None:
    """An agent that makes no shares reports every MIG slice as available, because a device plugin
    manages the MIG instances on its node."""
    backend = NvmlBackend(SystemClock())
    made_by_hand(pynvml.nvmlDeviceGetHandleByIndex(0), HALF)
    (device,) = await backend.inventory()
    assert (driver.ids[0], device.closed_slices) == (device.id, 0)
    await backend.close()


def test_slices_beyond_those_that_a_report_has_are_left_out() -> None:
    """A report has room for eight MIG slices per GPU. The agent omits any slices beyond the
    eighth."""
    cut = MigInstance(profile="2g.8gb", start=7, size=2)
    assert nvml_mig.slices(cut) == 0b1000_0000
    card = gpu("g0", mode="mig", closed_slices=nvml_mig.slices(cut))
    assert msgspec.json.decode(msgspec.json.encode(card), type=Device) == card


async def test_an_xid_of_an_instance_closes_its_place_alone(
    driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """After a critical XID (driver error) of a MIG instance, only that instance's slices are
    unavailable, for a limited time. The log names the GPU and the instance."""
    hand = Hand()
    backend = NvmlBackend(hand)
    try:
        (well,) = await backend.inventory()
        await backend.make_instance(driver.ids[0], HALF, ())
        info = pynvml.nvmlGpuInstanceGetInfo(instance_handle(HALF))
        driver.xid(0, 13, instance=info.id)
        for _ in range(2):
            driver.xid(0, 48, instance=info.id)
            await asyncio.wait_for(backend.changed(), 10)
        (card,) = await backend.inventory()
        assert (card.healthy, card.closed_slices) == (True, 0b1111_0000)
        (said,) = (each.getMessage() for each in caplog.records if "XID" in each.getMessage())
        assert driver.ids[0] in said
        assert named(HALF) in said

        for refused in (HALF, SMALL):
            with pytest.raises(NotMade, match="XID 48"):
                await backend.make_instance(driver.ids[0], refused, ())
        await backend.make_instance(driver.ids[0], OTHER_HALF, ())
        hand.at_s += QUIET_S
        assert await backend.inventory() == (well,)
        await backend.make_instance(driver.ids[0], HALF, ())
    finally:
        await backend.close()


async def test_an_xid_of_an_instance_that_is_gone_closes_the_card(
    driver: FakeDriver, backend: NvmlBackend
) -> None:
    """A critical XID (driver error) that names an unknown MIG instance makes the whole GPU
    unhealthy."""
    await backend.inventory()
    driver.xid(0, 48, instance=5)
    await asyncio.wait_for(backend.changed(), 10)
    (card,) = await backend.inventory()
    assert card.health_reason == "XID 48"


def instance_handle(cut: MigInstance) -> Any:
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    made = nvml_mig.instances(card, nvml_mig.profiles(card))
    return next(each.handle for each in made if each.cut == cut)
