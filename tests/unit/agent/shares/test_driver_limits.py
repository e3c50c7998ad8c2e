"""Tests of memory limits that the driver enforces per cgroup. The agent sets them for a container
and updates them on resize."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pynvml
import pytest
from msgspec import structs

from apportion.agent.nvidia.nvml import NvmlBackend
from apportion.agent.shares.cards import DriverLimits, Limit, limits_of
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import Share
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.unit.agent.usage.processes import UID
from tests.unit.agent.usage.test_uses import CARD, card, claim

MIB = 1 << 20
POD = "kubepods-burstable-pod1.slice/crio-4f1c.scope"
WHOLE = f"/kubepods.slice/kubepods-burstable.slice/{POD}"
SEEN = {
    "from the node's own cgroup namespace": WHOLE,
    "from a pod beside it": f"/../../{POD}",
    "from a pod of another class": f"/../../../kubepods-burstable.slice/{POD}",
    "from a service of the node": f"/../..{WHOLE}",
}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    """Provide a driver with a shared GPU and a GPU in MIG mode."""
    with fake_driver(tmp_path, "1xT4+1xA100-40GB:mig") as made:
        yield made


@pytest.fixture
async def backend(driver: FakeDriver) -> AsyncIterator[NvmlBackend]:
    """Provide a backend over the fake driver, through the real bindings."""
    assert driver.ids
    opened = NvmlBackend(SystemClock())
    yield opened
    await opened.close()


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    """Provide a fake cgroup tree with the cgroup of one container."""
    folder = tmp_path / "cgroup"
    (folder / WHOLE.lstrip("/")).mkdir(parents=True)
    (folder / "cgroup.controllers").write_text("cpu memory\n")
    (folder / "system.slice" / "ssh.service").mkdir(parents=True)
    return folder


def held(device: str, folder: Path) -> tuple[int, int]:
    """Return the cgroup's soft and hard memory limit on the device, in bytes."""
    told = pynvml.c_nvmlGetMemoryLimits_v1_t(bytes(folder))
    pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(device.encode()), told)
    return told.softLimit, told.hardLimit


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
async def test_the_cgroup_is_found_and_held(
    driver: FakeDriver, backend: NvmlBackend, cgroups: Path, seen: str
) -> None:
    """The agent sets the memory limit on the container's cgroup and updates the limit on resize. It
    handles each form in which /proc may show the cgroup's path."""
    driver.memory_limits(cgroups)
    device, folder = driver.ids[0], cgroups / WHOLE.lstrip("/")
    for memory in (700 * MIB, 700 * MIB, 1300 * MIB):
        await DriverLimits(backend, cgroups).hold([Limit(device, seen, memory)])
        assert held(device, folder) == (0, memory)


@pytest.mark.parametrize("driver_too", [False, True])
async def test_a_driver_without_limits_is_told_of_once(
    driver: FakeDriver,
    backend: NvmlBackend,
    cgroups: Path,
    caplog: pytest.LogCaptureFixture,
    driver_too: bool,
) -> None:
    """If the driver or a GPU does not support memory limits, the agent logs that once per
    device."""
    driver.no_memory_limits(driver_too=driver_too)
    caplog.set_level(logging.INFO, "apportion.agent.shares.cards")
    hands = DriverLimits(backend, cgroups)
    for _ in range(3):
        await hands.hold([Limit(driver.ids[0], WHOLE, MIB), Limit(driver.ids[1], WHOLE, MIB)])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert [id_ in each for id_, each in zip(driver.ids, said, strict=True)] == [True, True]


async def test_a_container_that_is_nowhere_to_be_found_is_told_of_once(
    driver: FakeDriver, backend: NvmlBackend, cgroups: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the agent cannot set a limit, it logs that once per device. Causes are a missing cgroup, a
    GPU in MIG mode and an unknown GPU."""
    driver.memory_limits(cgroups)
    caplog.set_level(logging.INFO, "apportion.agent.shares.cards")
    hands = DriverLimits(backend, cgroups)
    for number in range(3):
        await hands.hold([Limit(driver.ids[0], f"/../../pod{number}/4f1c", MIB)])
    await hands.hold([Limit(driver.ids[1], WHOLE, MIB), Limit("GPU-gone", WHOLE, MIB)])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert "see --cgroups" in said[0]
    assert "does not support memory limits" in said[1]
    assert "GPU-gone" in said[2]


async def test_cgroups_of_version_1_are_told_once(
    backend: NvmlBackend, cgroups: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory limits need cgroup v2. On a node with cgroup v1 the agent logs that once."""
    caplog.set_level(logging.INFO)
    (cgroups / "cgroup.controllers").unlink()
    limits = DriverLimits(backend, cgroups)
    for _ in range(2):
        await limits.hold(())
    (said,) = (record.getMessage() for record in caplog.records)
    assert str(cgroups) in said
    assert "version 2" in said


def test_what_hami_core_holds_is_held() -> None:
    """If HAMi-core limits a container's GPU memory, the agent also sets the driver's limit on the
    container's cgroup. GPUs under MPS get no such limit."""
    mps = structs.replace(card("GPU-2", 1), mode="mps")
    devices = {CARD: card(), "GPU-2": mps}
    shares = Share("main", CARD, 700, 30), Share("main", "GPU-2", 900, 30)
    borrowed = (Share("init", CARD, 700, 30),)
    cgroups = {(UID, "main"): "/a", (UID, "init"): "/b"}
    claims = [claim(UID, *shares, borrowed=borrowed), claim("other", Share("main", CARD, 1, 1))]
    assert list(limits_of(claims, cgroups, devices)) == [
        Limit(CARD, "/a", 700 * MIB),
        Limit(CARD, "/b", 700 * MIB),
    ]
