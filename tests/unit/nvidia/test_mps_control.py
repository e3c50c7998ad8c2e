"""Tests of the fake `nvidia-cuda-mps-control`, which starts, controls and stops an MPS daemon."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvidia.driver import FakeDriver
from tests.support.nvidia.probe import holding, probe
from tests.support.polling import wait_until


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    """Provide a fake driver with one GPU in exclusive process mode, which MPS requires."""
    made = FakeDriver(tmp_path, "1xT4")
    made.compute_mode(0, 3)
    yield made
    made.close()


@pytest.fixture
def pipes(tmp_path: Path) -> str:
    """Provide the folder of the daemon's pipes."""
    return str(tmp_path / "mps")


def control(driver: FakeDriver, pipes: str, *arguments: str, said: str = "") -> tuple[int, str]:
    """Run `nvidia-cuda-mps-control` with `said` as its input. Return its exit status and output."""
    done = subprocess.run(
        [driver.mps_control, *arguments],
        env=os.environ | driver.environment | {"CUDA_MPS_PIPE_DIRECTORY": pipes},
        input=said,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.fixture
def daemon(driver: FakeDriver, pipes: str) -> Iterator[None]:
    assert control(driver, pipes, "-d") == (0, "")
    yield
    control(driver, pipes, said="quit")


@pytest.mark.usefixtures("daemon")
def test_a_folder_has_one_daemon(driver: FakeDriver, pipes: str) -> None:
    """If a folder already has a daemon, starting a second one there fails with an error message."""
    status, said = control(driver, pipes, "-d")
    assert status != 0
    assert "already running" in said


def test_without_a_daemon_nobody_answers(driver: FakeDriver, pipes: str) -> None:
    """A command fails if the daemon has not started yet or has already quit."""
    assert control(driver, pipes, said="get_server_list")[0] != 0
    control(driver, pipes, "-d")
    assert control(driver, pipes, said="get_server_list") == (0, "")
    assert control(driver, pipes, said="quit") == (0, "")
    status, said = control(driver, pipes, said="get_server_list")
    assert status != 0
    assert "MPS control daemon" in said


def test_a_killed_daemon_can_be_started_again(driver: FakeDriver, pipes: str) -> None:
    """After a daemon was killed, another one can start in the same folder."""
    control(driver, pipes, "-d")
    os.kill(int((Path(pipes) / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    wait_until(lambda: control(driver, pipes, said="get_server_list")[0], "the daemon to be gone")
    assert control(driver, pipes, "-d") == (0, "")
    assert control(driver, pipes, said="quit") == (0, "")


def test_a_folder_without_a_daemon_is_no_mps(driver: FakeDriver, pipes: str) -> None:
    """If the pipe folder has no daemon, MPS is off. The GPU in exclusive mode then refuses a second
    process."""
    with holding(driver, "alloc:1"):
        said = probe(driver, CUDA_MPS_PIPE_DIRECTORY=pipes)
    assert said == ["context CUDA_ERROR_DEVICE_UNAVAILABLE"]


@pytest.mark.usefixtures("daemon")
def test_defaults_are_kept(driver: FakeDriver, pipes: str) -> None:
    """The daemon returns a default value that was set before."""
    commands = "set_default_active_thread_percentage 40\nget_default_active_thread_percentage\n"
    assert control(driver, pipes, said=commands) == (0, "40.0\n40.0")
    commands = (
        "get_default_device_pinned_mem_limit 0\n"
        "set_default_device_pinned_mem_limit 0 2G\n"
        "get_default_device_pinned_mem_limit 0\n"
    )
    assert control(driver, pipes, said=commands) == (0, "0\n2G")


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(
    "command", ["make_coffee", "set_default_device_pinned_mem_limit 0 much", "quit now please"]
)
def test_what_it_does_not_know_is_an_error(driver: FakeDriver, pipes: str, command: str) -> None:
    """The daemon returns an error for an unknown command."""
    status, said = control(driver, pipes, said=command)
    assert status != 0
    assert "Unknown command" in said


@pytest.mark.usefixtures("daemon")
def test_clients_share_a_card_and_have_their_limits(driver: FakeDriver, pipes: str) -> None:
    """Several MPS clients can use the same GPU. Each has the default memory limit or a lower one of
    its own."""
    control(driver, pipes, said="set_default_device_pinned_mem_limit 0 2G")
    with holding(driver, "alloc:1500", CUDA_MPS_PIPE_DIRECTORY=pipes):
        said = probe(driver, "alloc:1600", "alloc:3000", CUDA_MPS_PIPE_DIRECTORY=pipes)
        assert said[1:] == ["alloc:1600 CUDA_SUCCESS", "alloc:3000 CUDA_ERROR_OUT_OF_MEMORY"]
        for limit, outcome in (("0=1G", "CUDA_ERROR_OUT_OF_MEMORY"), ("0=9G", "CUDA_SUCCESS")):
            own = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit}
            said = probe(driver, "alloc:1600", CUDA_MPS_PIPE_DIRECTORY=pipes, **own)
            assert said[1] == f"alloc:1600 {outcome}"
