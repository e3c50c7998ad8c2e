"""Tests of how the agent starts, limits, adopts and stops one MPS daemon per GPU. They use the fake
driver."""

import asyncio
import os
import select
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pynvml
import pytest
from msgspec import structs

from apportion.agent.backend import NotMade
from apportion.agent.nvidia.nvml import NvmlBackend
from apportion.agent.shares.cards import Daemons
from apportion.core.grants import Held, Node, Part, grant
from apportion.core.grants.granting import PIPES
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import Device, Share
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.support.nvidia.probe import holding, probe
from tests.support.polling import WAIT_S

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a mount of its own needs root")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Provide a fake driver with one GPU, and put the driver's command-line programs on PATH."""
    with fake_driver(tmp_path, "1xT4") as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
async def backend(driver: FakeDriver) -> AsyncIterator[NvmlBackend]:
    assert driver.ids
    opened = NvmlBackend(SystemClock())
    yield opened
    await opened.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provide the folder for the daemons' pipes and remove it after the test."""
    with tempfile.TemporaryDirectory(prefix="mps") as name:
        yield Path(name)


@pytest.fixture
async def daemons(folder: Path, backend: NvmlBackend) -> AsyncIterator[Daemons]:
    """Provide an MPS daemon manager and stop its daemons after the test."""
    made = Daemons(folder, backend)
    yield made
    await made.keep({})


def compute_mode() -> int:
    return int(pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByIndex(0)))


def process_of(folder: Path, card: str) -> int:
    return int((folder / card / "pipe" / "nvidia-cuda-mps-control.pid").read_text())


def kill(pid: int) -> None:
    ended = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([ended], [], [], WAIT_S)[0]
    finally:
        os.close(ended)


def variables(folder: Path, card: Device, memory_mib: int, cores: int) -> dict[str, str]:
    """Return the environment of a container with this share. Paths inside the container are
    replaced by paths of the host."""
    share = Share(container="c", device=card.id, memory_mib=memory_mib, cores=cores)
    edits = grant(Held("p", "c", (Part(share, card),)), Node(mps=str(folder))).edits
    mounts = {mount.container_path: mount.host_path for mount in edits.mounts}
    return {**edits.env, "CUDA_MPS_PIPE_DIRECTORY": mounts[PIPES]}


@pytest.fixture
async def card(backend: NvmlBackend) -> Device:
    """Provide the GPU in MPS mode."""
    (device,) = await backend.inventory()
    return structs.replace(device, mode="mps")


async def test_C3_two_clients_have_sixty_and_forty_percent(
    daemons: Daemons, folder: Path, driver: FakeDriver, card: Device
) -> None:
    """Two MPS clients with shares of 60 % and 40 % get these parts of a GPU's memory and threads.
    No client can exceed its limit."""
    large = variables(folder, card, 9_216, 60)
    small = variables(folder, card, 6_144, 40)
    assert large["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    assert small["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    await daemons.ensure(card.id, 9_216)
    with holding(driver, "alloc:8800", **large):
        said = probe(driver, "alloc:5800", "alloc:400", **small)
        assert said[1:] == ["alloc:5800 CUDA_SUCCESS", "alloc:400 CUDA_ERROR_OUT_OF_MEMORY"]


async def test_an_emptied_environment_gets_no_more_than_the_largest_share(
    daemons: Daemons, folder: Path, driver: FakeDriver, card: Device
) -> None:
    """An MPS client that clears its environment still gets no more than the largest share on the
    GPU."""
    await daemons.ensure(card.id, 4_000)
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / card.id / "pipe")}
    said = probe(driver, "alloc:3000", "alloc:1000", **pipes)
    assert said[1:] == ["alloc:3000 CUDA_SUCCESS", "alloc:1000 CUDA_ERROR_OUT_OF_MEMORY"]
    await daemons.ensure(card.id, 6_000)
    assert probe(driver, "alloc:5000", **pipes)[1:] == ["alloc:5000 CUDA_SUCCESS"]


async def test_a_daemon_outlives_the_agent(
    daemons: Daemons, folder: Path, backend: NvmlBackend, card: Device
) -> None:
    """A restarted agent adopts the MPS daemon that is still running, and stops it once no share
    uses it."""
    await daemons.ensure(card.id, 4_000)
    assert compute_mode() == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    before = process_of(folder, card.id)
    after = Daemons(folder, backend)
    await after.ensure(card.id, 4_000)
    await after.keep({card.id: 4_000})
    assert process_of(folder, card.id) == before
    await after.keep({})
    assert compute_mode() == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert not await asyncio.to_thread(lambda: list(folder.iterdir()))


async def test_a_daemon_that_died_is_started_again(
    daemons: Daemons, folder: Path, driver: FakeDriver, card: Device
) -> None:
    """If an MPS daemon dies while a share uses it, the agent restarts the daemon with the same
    limit."""
    await daemons.ensure(card.id, 4_000)
    assert await daemons.keep({card.id: 4_000}) == {}
    kill(process_of(folder, card.id))
    assert await daemons.keep({card.id: 4_000}) == {card.id: True}
    assert await daemons.keep({card.id: 4_000}) == {}
    said = probe(driver, "alloc:5000", **variables(folder, card, 5_000, 50))
    assert said == ["context CUDA_SUCCESS", "alloc:5000 CUDA_ERROR_OUT_OF_MEMORY"]


async def test_a_daemon_that_cannot_be_asked_ends_no_round(
    daemons: Daemons, card: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the MPS control program is missing, the agent reports the daemon as not running and
    completes its cleanup round."""
    await daemons.ensure(card.id, 4_000)
    with monkeypatch.context() as gone:
        gone.setenv("PATH", "/nowhere")
        assert await daemons.keep({card.id: 4_000}) == {card.id: False}
        assert await daemons.keep({}) == {}
    assert await daemons.keep({card.id: 4_000}) == {}


async def test_a_program_that_is_not_here_is_named(
    folder: Path, backend: NvmlBackend, card: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an MPS daemon fails to start, the error contains the output of the launcher."""
    with pytest.raises(NotMade, match=f"daemon of {card.id} does not start: no bus"):
        await Daemons(folder, backend, ("sh", "-c", "echo no bus; exit 3")).ensure(card.id, 1_000)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotMade, match=r"cannot start|does not start"):
        await Daemons(folder, backend).ensure(card.id, 1_000)
