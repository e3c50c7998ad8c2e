"""Tests of GPU usage as the NVIDIA driver reports it. They use the real NVML bindings and a fake
driver."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pynvml
import pytest

from apportion.agent.backend import Load, Running
from apportion.agent.nvidia.nvml import NvmlBackend
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import MigInstance
from tests.support.nvidia.driver import FakeDriver, fake_driver

MIB = 1 << 20
A100_CUT = MigInstance(profile="2g.10gb", start=2, size=2)
H100_CUT = MigInstance(profile="2g.20gb", start=2, size=2)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    """Provide a fake driver with one full GPU and two GPUs in MIG mode. One of the MIG GPUs has a
    performance monitor."""
    with fake_driver(tmp_path, "1xT4+1xA100-40GB:mig+1xH100-80GB:mig") as made:
        yield made


@pytest.fixture
async def backend(driver: FakeDriver) -> AsyncIterator[NvmlBackend]:
    """Provide an open backend that has read the inventory."""
    assert driver.ids
    opened = NvmlBackend(SystemClock())
    await opened.inventory()
    yield opened
    await opened.close()


async def load_of(backend: NvmlBackend, device: str, cut: MigInstance | None = None) -> Load:
    """Return the load of the device, or of the device's MIG instance `cut` if that is given."""
    loads = await backend.loads()
    return next(load for load in loads if (load.device, load.instance) == (device, cut))


async def made(backend: NvmlBackend, device: str, cut: MigInstance) -> int:
    """Make the MIG instance and return the id that the driver gave it."""
    instance = await backend.make_instance(device, cut, [])
    handle = pynvml.nvmlDeviceGetHandleByUUID(instance.id.encode())
    return int(pynvml.nvmlDeviceGetGpuInstanceId(handle))


async def test_processes_of_a_card(backend: NvmlBackend, driver: FakeDriver) -> None:
    """The backend lists every process of a GPU with its memory and compute. An idle process has 0 %
    compute."""
    driver.process(0, 4711, 300, 40)
    driver.process(0, 4712, 100)
    load = await load_of(backend, driver.ids[0])
    assert (load.memory, load.cores) == (400 * MIB, 40)
    assert set(load.processes) == {Running(4711, 300 * MIB, 40), Running(4712, 100 * MIB, 0)}


async def test_processes_that_the_driver_lists_elsewhere(
    backend: NvmlBackend, driver: FakeDriver
) -> None:
    """The backend counts MPS clients and graphics processes towards a GPU's load. If the driver has
    a process in several of its lists, the backend counts the process once."""
    driver.process(0, 4711, 300, 40, kinds=("mps",))
    driver.process(0, 4712, 100, kinds=("graphics",))
    driver.process(0, 4713, 50, 5, kinds=("compute", "graphics", "mps"))
    load = await load_of(backend, driver.ids[0])
    assert load.memory == 450 * MIB
    assert sorted(load.processes) == [
        Running(4711, 300 * MIB, 40), Running(4712, 100 * MIB, 0), Running(4713, 50 * MIB, 5),
    ]  # fmt: skip


async def test_a_client_of_mps_in_an_instance(backend: NvmlBackend, driver: FakeDriver) -> None:
    """The backend counts an MPS client in a MIG instance towards that instance's load."""
    number = await made(backend, driver.ids[1], A100_CUT)
    driver.process(1, 4711, 300, kinds=("compute", "mps"), instance=number)
    load = await load_of(backend, driver.ids[1], A100_CUT)
    assert load.processes == (Running(4711, 300 * MIB, None),)


async def test_processes_of_an_instance(backend: NvmlBackend, driver: FakeDriver) -> None:
    """The backend counts a process of a MIG instance towards the load of the instance, not of the
    whole GPU."""
    number = await made(backend, driver.ids[1], A100_CUT)
    driver.process(1, 4711, 300, 40, instance=number)
    load = await load_of(backend, driver.ids[1], A100_CUT)
    assert (load.memory, load.processes) == (300 * MIB, (Running(4711, 300 * MIB, None),))
    whole = await load_of(backend, driver.ids[1])
    assert (whole.cores, whole.processes) == (None, ())


async def test_an_instances_compute_is_its_monitors(
    backend: NvmlBackend, driver: FakeDriver
) -> None:
    """The backend reports a MIG instance's compute from the GPU's performance monitor, starting
    with the second reading. Without a monitor, the compute is unknown."""
    older = await made(backend, driver.ids[1], A100_CUT)
    newer = await made(backend, driver.ids[2], H100_CUT)
    driver.process(1, 4711, 300, 40, instance=older)
    driver.process(2, 4712, 300, 60, instance=newer)
    assert (await load_of(backend, driver.ids[2], H100_CUT)).cores is None
    assert (await load_of(backend, driver.ids[2], H100_CUT)).cores == 60
    assert (await load_of(backend, driver.ids[1], A100_CUT)).cores is None


async def test_an_instance_that_is_made_again_begins_anew(
    backend: NvmlBackend, driver: FakeDriver
) -> None:
    """If a MIG instance is removed and another one is made in the same slices, the new instance
    does not inherit the performance samples of the old one."""
    await made(backend, driver.ids[2], H100_CUT)
    await backend.loads()
    await backend.keep_instances(driver.ids[2], [])
    await backend.loads()
    await made(backend, driver.ids[2], H100_CUT)
    assert (await load_of(backend, driver.ids[2], H100_CUT)).cores is None
    assert (await load_of(backend, driver.ids[2], H100_CUT)).cores == 0


async def test_a_card_that_is_lost_is_left_out(backend: NvmlBackend, driver: FakeDriver) -> None:
    """The backend omits a lost GPU from the loads until the GPU returns, and still reports the
    other GPUs."""
    driver.fall_off(0)
    assert {load.device for load in await backend.loads()} == set(driver.ids[1:])
    driver.come_back(0)
    driver.restart()
    await backend.inventory()
    assert {load.device for load in await backend.loads()} == set(driver.ids)
