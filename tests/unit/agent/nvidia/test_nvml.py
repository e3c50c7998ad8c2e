"""Tests of how the NVML backend interprets the driver's answers. The real NVML bindings run over
the fake driver."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from apportion.agent.backend import DevicesUnavailable, NotMade
from apportion.agent.nvidia.driver import NOTICE_XIDS, QUIET_S
from apportion.agent.nvidia.nvml import NvmlBackend
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import Device
from tests.support.nvidia.driver import FakeDriver, fake_driver

FAULT_OF_THE_CARD = 48


class Hand(SystemClock):
    """A fake clock that advances only when a test sets it."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def monotonic(self) -> float:
        return self.at_s


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    """Provide a driver with two healthy GPUs."""
    with fake_driver(tmp_path, "1xA100-40GB+1xT4") as made:
        yield made


@pytest.fixture
async def backend(driver: FakeDriver) -> AsyncIterator[NvmlBackend]:
    """Provide an open backend that probes the driver often."""
    opened = NvmlBackend(SystemClock(), quiet_s=0.3, probe_s=0.05)
    yield opened
    await opened.close()


@pytest.fixture
def hand() -> Hand:
    """Provide the clock that `listener` uses."""
    return Hand()


@pytest.fixture
async def listener(driver: FakeDriver, hand: Hand) -> AsyncIterator[NvmlBackend]:
    """Provide an open backend whose clock stands still. The backend therefore makes no periodic
    probes and learns of changes from driver events only."""
    opened = NvmlBackend(hand)
    yield opened
    await opened.close()


async def after_change(backend: NvmlBackend) -> tuple[Device, ...]:
    """Wait until the backend reports a change, then return the inventory."""
    await asyncio.wait_for(backend.changed(), 10)
    return await backend.inventory()


async def inventory_that(
    backend: NvmlBackend, holds: Callable[[tuple[Device, ...]], bool]
) -> tuple[Device, ...]:
    async with asyncio.timeout(10):
        while not holds(seen := await backend.inventory()):
            await backend.changed()
    return seen


def all_well(devices: tuple[Device, ...]) -> bool:
    return all(device.healthy for device in devices)


# ---------------------------------------------------------------- properties of a GPU


async def test_what_a_card_is(driver: FakeDriver, backend: NvmlBackend) -> None:
    """The inventory reports the names and sizes of the driver's GPUs in the fields that the ledger
    uses."""
    a100, t4 = await backend.inventory()
    assert [a100.id, t4.id] == driver.ids
    assert (a100.index, a100.family) == (0, "nvidia")
    assert (a100.model, t4.model) == ("NVIDIA A100-SXM4-40GB", "NVIDIA Tesla T4")
    assert (a100.memory_mib, a100.physical_memory_mib, a100.cores) == (40_960, 40_960, 100)
    assert (a100.mode, a100.slots) == ("hami-core", 10)
    assert all_well((a100, t4))
    assert (backend.driver, backend.simulated) == ("580.00-fake", False)


async def test_mig_mode(driver: FakeDriver, backend: NvmlBackend) -> None:
    """When a GPU switches to MIG mode, the backend notices and reports one slot for each instance
    that fits."""
    await backend.inventory()
    driver.mig(0, on=True)
    a100, _ = await after_change(backend)
    assert (a100.mode, a100.slots, a100.memory_mib) == ("mig", 7, 40_960)


async def test_links_to_a_card_and_to_a_switch(tmp_path: Path) -> None:
    """The backend adds up the NVLink lanes between two GPUs. A GPU with lanes to a switch is linked
    to every other GPU on a switch."""
    with fake_driver(tmp_path, "4xA100-40GB") as driver:
        driver.link(0, 1, 1, None, 1)
        driver.link(1, 0, 0, None, 0)
        backend = NvmlBackend(SystemClock(), probe_s=0.05)
        try:
            one, two, three, four = await backend.inventory()
        finally:
            await backend.close()
    assert one.nvlink_lanes == {two.id: 3}
    assert two.nvlink_lanes == {one.id: 3}
    assert three.nvlink_lanes == {four.id: 12}
    assert four.nvlink_lanes == {three.id: 12}


async def test_a_lost_card_is_nobodys_peer(tmp_path: Path) -> None:
    """A lost GPU is not an NVLink peer of any GPU, so no pod gets it as a linked GPU."""
    with fake_driver(tmp_path, "3xA100-40GB") as driver:
        backend = NvmlBackend(SystemClock(), probe_s=0.05)
        try:
            driver.fall_off(2)
            one, two = (await backend.inventory())[:2]
        finally:
            await backend.close()
    assert (one.nvlink_lanes, two.nvlink_lanes) == ({two.id: 12}, {one.id: 12})


# ---------------------------------------------------------------- XIDs


async def test_a_critical_xid_is_known_within_one_wait(
    driver: FakeDriver, listener: NvmlBackend
) -> None:
    """A critical XID (driver error) makes its GPU unhealthy at once, without a probe of any other
    GPU."""
    await listener.inventory()
    driver.xid(0, 79)
    a100, t4 = await after_change(listener)
    assert (a100.healthy, a100.health_reason) == (False, "XID 79")
    assert t4.healthy


async def test_a_card_is_well_again_after_the_quiet_time(
    driver: FakeDriver, listener: NvmlBackend, hand: Hand
) -> None:
    """A GPU recovers from a critical XID (driver error) after a quiet time. Another critical XID
    restarts the quiet time."""
    well = await listener.inventory()
    driver.xid(0, 79)
    await after_change(listener)
    hand.at_s += QUIET_S - 1
    driver.xid(0, 119)
    assert (await after_change(listener))[0].health_reason == "XID 119"
    hand.at_s += QUIET_S - 1
    assert not (await listener.inventory())[0].healthy
    hand.at_s += 1
    assert await listener.inventory() == well


async def test_the_end_of_the_quiet_time_is_noticed(
    driver: FakeDriver, backend: NvmlBackend
) -> None:
    """The backend reports a change when the quiet time after a critical XID ends."""
    well = await backend.inventory()
    driver.xid(0, 79)
    assert not (await after_change(backend))[0].healthy
    assert await after_change(backend) == well


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 94, 109, 154])
async def test_a_card_stays_healthy_after_these_xids(
    driver: FakeDriver, listener: NvmlBackend, xid: int
) -> None:
    """A GPU stays healthy after an XID (driver error) that means an application fault, a contained
    error or a notice. Later XIDs still take effect."""
    await listener.inventory()
    driver.xid(0, xid)
    driver.xid(1, FAULT_OF_THE_CARD)
    a100, t4 = await inventory_that(listener, lambda found: not found[1].healthy)
    assert a100.healthy
    assert t4.health_reason == f"XID {FAULT_OF_THE_CARD}"


@pytest.mark.parametrize("xid", sorted(NOTICE_XIDS))
async def test_a_notice_is_followed_by_a_look_at_once(
    driver: FakeDriver, listener: NvmlBackend, xid: int
) -> None:
    """After an XID that is only a notice, the backend probes the GPU at once, since the driver may
    now recommend a reset."""
    await listener.inventory()
    driver.recovery_action(0, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    driver.xid(0, xid)
    assert "recovery action 1" in (await after_change(listener))[0].health_reason
    driver.recovery_action(0, pynvml.NVML_GPU_RECOVERY_ACTION_NONE)
    assert (await listener.inventory())[0].healthy


async def test_an_operator_says_which_xids_count(driver: FakeDriver) -> None:
    """If an operator configures which XIDs (driver errors) are ignored, that list replaces the
    default list."""
    backend = NvmlBackend(SystemClock(), ignored=frozenset({48}))
    try:
        await backend.inventory()
        driver.xid(0, 48)
        driver.xid(1, 13)
        a100, t4 = await inventory_that(backend, lambda found: not found[1].healthy)
        assert (a100.healthy, t4.health_reason) == (True, "XID 13")
    finally:
        await backend.close()


async def test_a_card_without_events_is_a_card(driver: FakeDriver, backend: NvmlBackend) -> None:
    """If a GPU does not support events, the backend polls its health."""
    driver.lacks(1, "events")
    assert all_well(await backend.inventory())
    driver.recovery_action(1, 1)
    assert not (await after_change(backend))[1].healthy


# ---------------------------------------------------------------- the NVLink fabric


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[tuple[FakeDriver, NvmlBackend]]:
    """Provide a GPU with an NVSwitch fabric and a GPU without one."""
    with fake_driver(tmp_path, "1xH100-80GB+1xT4") as driver:
        opened = NvmlBackend(SystemClock(), probe_s=0.05)
        yield driver, opened
        await opened.close()


@pytest.mark.parametrize(
    ("state", "status", "expected"),
    [
        (pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, 0, "has not started"),
        (pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS, 0, "in progress"),
        (pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_ERROR_UNKNOWN, "Unknown Error"),
    ],
)
async def test_a_card_that_is_not_registered_with_its_fabric_is_unhealthy(
    fabric: tuple[FakeDriver, NvmlBackend], state: int, status: int, expected: str
) -> None:
    """A GPU is unhealthy until it is registered with its NVLink fabric. Other GPUs stay healthy."""
    driver, backend = fabric
    well = await backend.inventory()
    assert all_well(well)
    driver.fabric(0, state, status)
    h100, t4 = await after_change(backend)
    assert not h100.healthy
    assert "fabric" in h100.health_reason
    assert expected in h100.health_reason
    assert t4.healthy
    driver.fabric(0, pynvml.NVML_GPU_FABRIC_STATE_COMPLETED)
    assert await after_change(backend) == well


async def test_a_card_without_a_fabric_is_healthy(fabric: tuple[FakeDriver, NvmlBackend]) -> None:
    """The backend ignores the fabric state if the GPU has no NVSwitch or the driver lacks the
    function."""
    driver, backend = fabric
    driver.fabric(1, pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED)
    assert all_well(await backend.inventory())
    driver.fabric(0, pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS)
    assert not (await backend.inventory())[0].healthy
    for predated in (False, True):
        driver.lacks(0, "fabric", driver_too=predated)
        assert all_well(await backend.inventory())


async def test_a_card_in_mig_mode_needs_no_fabric(fabric: tuple[FakeDriver, NvmlBackend]) -> None:
    """A GPU in MIG mode is healthy without a fabric, since its instances do not use NVLink."""
    driver, backend = fabric
    driver.fabric(0, pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS)
    driver.mig(0, on=True)
    assert all_well(await backend.inventory())


# ---------------------------------------------------------------- lost GPUs


async def test_a_lost_card_stays_known_and_may_come_back(
    driver: FakeDriver, backend: NvmlBackend
) -> None:
    """A lost GPU stays in the inventory as unhealthy and recovers without a restart of the
    agent."""
    well = await backend.inventory()
    driver.fall_off(0)
    a100, t4 = await after_change(backend)
    assert (a100.id, a100.healthy) == (driver.ids[0], False)
    assert "lost" in a100.health_reason.lower()
    assert t4.healthy
    driver.come_back(0)
    assert await inventory_that(backend, all_well) == well


async def test_a_lost_card_is_known_within_one_wait(
    driver: FakeDriver, listener: NvmlBackend
) -> None:
    """If a GPU is lost, the driver's event tells the backend at once, before the next probe."""
    await listener.inventory()
    driver.fall_off(0)
    assert [device.healthy for device in await after_change(listener)] == [False, True]


async def test_a_lost_card_does_not_make_deaf_to_the_others(
    driver: FakeDriver, listener: NvmlBackend
) -> None:
    """While one GPU is lost, the backend still receives XIDs (driver errors) of the other GPU."""
    await listener.inventory()
    driver.fall_off(0)
    await after_change(listener)
    driver.xid(1, FAULT_OF_THE_CARD)
    assert (await after_change(listener))[1].health_reason == f"XID {FAULT_OF_THE_CARD}"


async def test_a_card_that_came_back_is_listened_to(
    driver: FakeDriver, listener: NvmlBackend
) -> None:
    """The backend registers again for events of a GPU that came back."""
    await listener.inventory()
    driver.fall_off(0)
    await after_change(listener)
    driver.come_back(0)
    assert all_well(await listener.inventory())
    driver.xid(0, FAULT_OF_THE_CARD)
    assert (await after_change(listener))[0].health_reason == f"XID {FAULT_OF_THE_CARD}"


async def test_an_xid_of_a_card_that_falls_off_with_it(
    driver: FakeDriver, listener: NvmlBackend
) -> None:
    """The driver error XID 79 means that a GPU fell off the bus. The error names no GPU, but the
    backend still marks the right one unhealthy."""
    await listener.inventory()
    driver.xid(0, 79)
    driver.fall_off(0)
    assert [device.healthy for device in await after_change(listener)] == [False, True]


# ---------------------------------------------------------------- a driver that restarts


async def test_a_driver_that_restarts_is_opened_anew(
    driver: FakeDriver, listener: NvmlBackend
) -> None:
    """After a driver restart the backend reports the same GPUs, receives events again, and has
    leaked no driver handles."""
    well = await listener.inventory()
    driver.restart()
    assert await after_change(listener) == well
    assert (driver.clients, driver.event_sets) == (1, 1)
    driver.xid(1, FAULT_OF_THE_CARD)
    assert (await after_change(listener))[1].health_reason == f"XID {FAULT_OF_THE_CARD}"


async def test_a_driver_that_restarts_between_looks(
    driver: FakeDriver, backend: NvmlBackend
) -> None:
    """If the driver restarts between two readings of the inventory, both readings are equal."""
    well = await backend.inventory()
    driver.restart()
    assert await backend.inventory() == well


async def test_while_the_driver_is_away_its_cards_are_unhealthy(
    driver: FakeDriver, backend: NvmlBackend
) -> None:
    """GPUs are unhealthy while the driver is stopped. After the driver restarts, they recover and
    the backend receives their events again."""
    well = await backend.inventory()
    driver.stop()
    away = await after_change(backend)
    assert [device.id for device in away] == driver.ids
    assert [device.health_reason[:6] for device in away] == ["NVML: "] * len(away)
    driver.start()
    assert await inventory_that(backend, all_well) == well
    driver.xid(0, FAULT_OF_THE_CARD)
    ill = await inventory_that(backend, lambda devices: not all_well(devices))
    assert ill[0].health_reason == f"XID {FAULT_OF_THE_CARD}"


async def test_a_restarted_driver_that_lists_a_card_no_more(
    driver: FakeDriver, backend: NvmlBackend
) -> None:
    """A GPU that the restarted driver no longer lists stays in the inventory as unhealthy. It gets
    an index that no listed GPU has."""
    well = await backend.inventory()
    driver.fall_off(0)
    driver.restart()
    t4, a100 = await backend.inventory()
    assert [(t4.id, t4.index), (a100.id, a100.index)] == [(driver.ids[1], 0), (driver.ids[0], 1)]
    assert (t4.healthy, a100.healthy) == (True, False)
    assert await backend.inventory() == (t4, a100)
    driver.come_back(0)
    assert await backend.inventory() == well


async def test_without_a_driver_there_is_no_backend(driver: FakeDriver) -> None:
    """Without a driver the backend fails with an error that says what is missing."""
    driver.stop()
    with pytest.raises(DevicesUnavailable, match="Driver Not Loaded"):
        NvmlBackend(SystemClock())


async def test_a_driver_that_never_listed_a_card_is_an_error(driver: FakeDriver) -> None:
    """A driver that stops before it ever listed a GPU is an error, not an empty inventory."""
    backend = NvmlBackend(SystemClock(), probe_s=0.05)
    driver.stop()
    with pytest.raises(DevicesUnavailable, match="nvidia-smi"):
        await backend.inventory()
    await backend.close()


# ---------------------------------------------------------------- recovery actions


@pytest.mark.parametrize(
    ("happen", "reason"),
    [
        (lambda driver: driver.recovery_action(0, 1), "recovery action 1: reset the device"),
        (lambda driver: driver.recovery_action(0, 2), "recovery action 2: reboot the node"),
        (lambda driver: driver.recovery_action(0, 6), "recovery action 6: see nvidia-smi"),
        (lambda driver: driver.remap_rows(0, uncorrected=1, pending=True), "pending"),
        (lambda driver: driver.remap_rows(0, uncorrected=9, failed=True), "replace the device"),
    ],
)
async def test_what_the_driver_asks_for(
    driver: FakeDriver, backend: NvmlBackend, happen: Callable[[FakeDriver], None], reason: str
) -> None:
    """If the driver asks for a GPU's reset, reboot or replacement, the GPU is unhealthy and that
    action is the reason."""
    await backend.inventory()
    happen(driver)
    a100, t4 = await after_change(backend)
    assert not a100.healthy
    assert reason in a100.health_reason
    assert t4.healthy


async def test_errors_that_were_dealt_with_are_no_trouble(
    driver: FakeDriver, backend: NvmlBackend
) -> None:
    """A GPU stays healthy if its memory errors were corrected or the faulty rows were remapped."""
    well = await backend.inventory()
    driver.ecc(0, corrected=100, uncorrected=1)
    driver.remap_rows(0, corrected=2, uncorrected=1)
    assert await backend.inventory() == well


async def test_a_card_without_row_remapping_is_well(
    driver: FakeDriver, backend: NvmlBackend
) -> None:
    """A GPU without row remapping is healthy. If the driver recommends a recovery action, it
    becomes unhealthy."""
    driver.lacks(1, "rows")
    assert all_well(await backend.inventory())
    driver.recovery_action(1, 1)
    assert not (await backend.inventory())[1].healthy


async def test_a_driver_that_lacks_a_function(driver: FakeDriver, backend: NvmlBackend) -> None:
    """GPUs are healthy under an old driver that has no functions for row remapping and events."""
    for card in (0, 1):
        driver.lacks(card, "rows", driver_too=True)
        driver.lacks(card, "events", driver_too=True)
    assert all_well(await backend.inventory())


# ---------------------------------------------------------------- closing


async def test_nothing_comes_of_a_closed_backend(driver: FakeDriver) -> None:
    """If the backend is closed, a call that waits for a change does not return."""
    closed = NvmlBackend(SystemClock())
    await closed.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(closed.changed(), 0.05)


async def test_a_closed_backend_gives_back_what_it_took_of_the_driver(driver: FakeDriver) -> None:
    """A backend releases its NVML client and event set when it closes."""
    backend = NvmlBackend(SystemClock())
    assert (driver.clients, driver.event_sets) == (1, 1)
    await backend.close()
    assert (driver.clients, driver.event_sets) == (0, 0)


# ---------------------------------------------------------------- calls that do not return


@pytest.fixture
async def hasty(driver: FakeDriver) -> AsyncIterator[NvmlBackend]:
    """Provide an open backend whose driver calls time out after a fraction of a second."""
    opened = NvmlBackend(SystemClock(), probe_s=0.05, call_s=0.3)
    yield opened
    for card in range(len(driver.ids)):
        driver.let_go(card)
    await opened.close()


async def test_a_call_that_hangs_stops_its_own_card_alone(
    driver: FakeDriver, hasty: NvmlBackend
) -> None:
    """A driver call that hangs makes only its own GPU unhealthy. The other GPU still reports XIDs
    and loads, and accepts changes."""
    assert all_well(await hasty.inventory())
    driver.hang(0)
    hung, well = await inventory_that(hasty, lambda seen: not all_well(seen))
    assert (hung.healthy, well.healthy) == (False, True)
    assert hung.health_reason.startswith("NVML: ")
    assert "0.3 s" in hung.health_reason
    assert hasty.hung() == (driver.ids[0],)
    assert [load.device for load in await hasty.loads()] == [driver.ids[1]]
    await hasty.set_exclusive(driver.ids[1], exclusive=True)
    with pytest.raises(NotMade):
        await hasty.set_exclusive(driver.ids[0], exclusive=True)
    driver.xid(1, FAULT_OF_THE_CARD)
    await inventory_that(hasty, lambda seen: not seen[1].healthy)
    driver.let_go(0)
    await inventory_that(hasty, lambda seen: seen[0].healthy)
    assert hasty.hung() == ()


async def test_an_xid_of_a_card_whose_calls_hang(driver: FakeDriver, hasty: NvmlBackend) -> None:
    """The backend handles the XID of a GPU whose driver calls hang, because it makes no further
    call to that GPU."""
    await hasty.inventory()
    driver.hang(0)
    driver.xid(0, FAULT_OF_THE_CARD)
    driver.xid(1, FAULT_OF_THE_CARD)
    seen = await inventory_that(hasty, lambda seen: not seen[1].healthy)
    assert not seen[0].healthy


async def test_a_call_that_was_given_up_is_not_made_later(
    driver: FakeDriver, hasty: NvmlBackend
) -> None:
    """If a change to a GPU times out, the backend does not make the change later, even after the
    GPU responds again."""
    await hasty.inventory()
    driver.hang(0)
    with pytest.raises(NotMade):
        await hasty.set_exclusive(driver.ids[0], exclusive=False)
    for _ in range(2):
        with pytest.raises(NotMade):
            await hasty.set_exclusive(driver.ids[0], exclusive=True)
    driver.let_go(0)
    await inventory_that(hasty, all_well)
    handle = pynvml.nvmlDeviceGetHandleByUUID(driver.ids[0].encode())
    assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT


async def test_a_backend_closes_while_a_call_hangs(driver: FakeDriver) -> None:
    """A backend closes within seconds, even while a driver call hangs."""
    backend = NvmlBackend(SystemClock(), call_s=0.2)
    await backend.inventory()
    driver.hang(0)
    await backend.inventory()
    await asyncio.wait_for(backend.close(), 5)
    driver.let_go(0)
