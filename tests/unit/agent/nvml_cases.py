"""What the NVML backend makes of a driver's answers; run by test_nvml over the fake driver."""

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apportion.agent.nvml import NvmlBackend
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import Device

A100, T4 = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-1111-1111-1111-111111111111"
QUIET_S = 0.3


def happen(*lines: str) -> None:
    """From now on the driver says this."""
    Path(os.environ["FAKE_NVML"]).write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
async def backend() -> AsyncIterator[NvmlBackend]:
    """An open backend over two well cards."""
    happen()
    opened = NvmlBackend(SystemClock(), quiet_s=QUIET_S, probe_s=0.05)
    yield opened
    await opened.close()


async def after_change(backend: NvmlBackend) -> tuple[Device, ...]:
    """The inventory after the next change."""
    await asyncio.wait_for(backend.changed(), 10)
    return await backend.inventory()


async def test_what_a_card_is(backend: NvmlBackend) -> None:
    """Names, amounts and links come from the driver, in the ledger's words."""
    a100, t4 = await backend.inventory()
    assert (a100.id, a100.index, a100.family) == (A100, 0, "nvidia")
    assert (a100.model, t4.model) == ("NVIDIA A100-SXM4-40GB", "NVIDIA Tesla T4")
    assert (a100.memory_mib, a100.physical_memory_mib, a100.cores) == (40_960, 40_960, 100)
    assert (a100.mode, a100.slots) == ("hami-core", 10)
    assert a100.nvlink_lanes == {T4: 2}
    assert t4.nvlink_lanes == {}
    assert a100.healthy
    assert t4.healthy
    assert (backend.driver, backend.simulated) == ("570.00-fake", False)


async def test_mig_mode(backend: NvmlBackend) -> None:
    """A card in MIG mode has as many slots as instances; the change is noticed."""
    await backend.inventory()
    happen("mig 0")
    a100, _ = await after_change(backend)
    assert (a100.mode, a100.slots) == ("mig", 7)


async def test_a_critical_xid_and_quiet_after_it(backend: NvmlBackend) -> None:
    """The card is unhealthy at once, and well again after the quiet time."""
    well = await backend.inventory()
    happen("xid 1 0 79")
    a100, t4 = await after_change(backend)
    assert (a100.healthy, a100.health_reason) == (False, "XID 79")
    assert t4.healthy
    assert await after_change(backend) == well


async def test_the_programs_own_faults_are_ignored(backend: NvmlBackend) -> None:
    """XID 31 is a bad pointer in somebody's kernel; the XID after it still counts."""
    await backend.inventory()
    happen("xid 11 0 31", "xid 12 0 48")
    a100, _ = await after_change(backend)
    assert a100.health_reason == "XID 48"


async def test_a_lost_card_stays_known(backend: NvmlBackend) -> None:
    """It is not forgotten, it is unhealthy; and it may come back."""
    well = await backend.inventory()
    happen("lost 0")
    a100, t4 = await after_change(backend)
    assert (a100.id, a100.healthy) == (A100, False)
    assert "lost" in a100.health_reason.lower()
    assert t4.healthy
    happen()
    assert await after_change(backend) == well


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("action 0 1", "recovery action 1"),
        ("rows 0 1 0", "pending"),
        ("rows 0 0 1", "replace the device"),
    ],
)
async def test_what_the_driver_asks_for(backend: NvmlBackend, line: str, reason: str) -> None:
    """A card that wants a reset takes no work until it had one."""
    await backend.inventory()
    happen(line)
    a100, _ = await after_change(backend)
    assert not a100.healthy
    assert reason in a100.health_reason


async def test_nothing_comes_of_a_closed_backend() -> None:
    """Whoever still asks while the agent ends waits to be cancelled, and is no error."""
    closed = NvmlBackend(SystemClock())
    await closed.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(closed.changed(), 0.05)


async def test_a_closed_backend_gives_back_what_it_took_of_the_driver() -> None:
    """The driver holds events for whoever listens, and nobody frees them later."""
    driver = ctypes.CDLL("libnvidia-ml.so.1")
    backend = NvmlBackend(SystemClock())
    assert driver.fake_event_sets() == 1
    await backend.close()
    assert driver.fake_event_sets() == 0
