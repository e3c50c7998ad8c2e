"""What a death, a person or a container may leave on a card in MIG mode, over the fake driver."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from apportion.agent import nvml_mig
from apportion.agent.backend import InTheWay, NotMade
from apportion.agent.nvml import NvmlBackend
from apportion.core.devices.catalogue import MigProfile
from apportion.core.grants import DeviceNode
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import MigInstance
from tests.support.nvidia.driver import FakeDriver, fake_driver

HALF = MigInstance(profile="3g.20gb", start=4, size=4)
SMALL = MigInstance(profile="1g.5gb", start=6, size=1)
HALF_ID = 9


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    """A driver with one card in MIG mode."""
    with fake_driver(tmp_path, "1xA100-40GB:mig") as made:
        yield made


@pytest.fixture
async def backend(driver: FakeDriver) -> AsyncIterator[NvmlBackend]:
    """An open backend."""
    assert driver.ids
    opened = NvmlBackend(SystemClock())
    yield opened
    await opened.close()


@pytest.fixture
def card(backend: NvmlBackend) -> Any:
    """The card's handle, for what others do to it."""
    assert backend.driver
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def there(card: Any) -> list[MigInstance]:
    """The instances on the card."""
    return [each.cut for each in nvml_mig.instances(card, nvml_mig.profiles(card))]


async def test_an_instance_without_its_inside_is_finished(
    backend: NvmlBackend, driver: FakeDriver, card: Any
) -> None:
    """The agent was killed between the two steps."""
    at = pynvml.c_nvmlGpuInstancePlacement_t(HALF.start, HALF.size)
    pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, HALF_ID, pynvml.byref(at))
    made = await backend.make_instance(driver.ids[0], HALF, [])
    device = pynvml.nvmlDeviceGetHandleByUUID(made.id.encode())
    assert pynvml.nvmlDeviceGetAttributes(device).computeInstanceSliceCount == 3
    assert there(card) == [HALF]


async def test_an_instance_that_was_cut_within_is_made_whole(
    backend: NvmlBackend, driver: FakeDriver, card: Any
) -> None:
    """By a person: the container would have a third of what the ledger says."""
    at = pynvml.c_nvmlGpuInstancePlacement_t(HALF.start, HALF.size)
    half = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, HALF_ID, pynvml.byref(at))
    for _ in range(3):
        pynvml.nvmlGpuInstanceCreateComputeInstance(half, 0)
    made = await backend.make_instance(driver.ids[0], HALF, [])
    device = pynvml.nvmlDeviceGetHandleByUUID(made.id.encode())
    assert pynvml.nvmlDeviceGetAttributes(device).computeInstanceSliceCount == 3


async def test_what_a_process_runs_on_stays(
    backend: NvmlBackend, driver: FakeDriver, card: Any
) -> None:
    """Whoever needs it or not; it makes way once the process has ended."""
    await backend.make_instance(driver.ids[0], SMALL, [])
    (one,) = nvml_mig.instances(card, nvml_mig.profiles(card))
    driver.process(0, 4242, 100, instance=one.id)
    assert await backend.keep_instances(driver.ids[0], []) == []
    with pytest.raises(InTheWay, match="a process runs on it still"):
        await backend.make_instance(driver.ids[0], HALF, [])
    assert there(card) == [SMALL]
    driver.end_process(4242)
    await backend.make_instance(driver.ids[0], HALF, [])
    assert there(card) == [HALF]


async def test_a_size_that_the_card_does_not_have_is_named(
    backend: NvmlBackend, driver: FakeDriver
) -> None:
    """With those that it has."""
    wanted = MigInstance(profile="1g.24gb", start=0, size=1)
    with pytest.raises(NotMade, match=r"no MIG profile 1g\.24gb; it has 1g\.5gb, 2g\.10gb"):
        await backend.make_instance(driver.ids[0], wanted, [])


async def test_a_container_gets_the_device_nodes_of_its_instance(
    backend: NvmlBackend, driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the card and of the two instances, by their numbers; none of its neighbours."""
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


async def test_no_instance_is_smaller_than_what_pods_are_promised(
    backend: NvmlBackend, driver: FakeDriver, card: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may make a profile smaller than the catalogue knows it: nothing is made."""
    larger = MigProfile(HALF.profile, 30_000, 42, HALF.size, (0, 4))
    await backend.inventory()
    monkeypatch.setattr("apportion.agent.nvml.mig_profiles", lambda *_: (larger,))
    with pytest.raises(NotMade, match="20096 MiB"):
        await backend.make_instance(driver.ids[0], HALF, [])
    assert there(card) == []
