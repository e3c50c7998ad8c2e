"""Tests of the fake driver: GPUs, memory, usage, errors and events as NVML and CUDA programs see
them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.nvidia.build import built
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.support.nvidia.probe import holding, probe
from tests.tidy.tree import ROOT

MIB = 1 << 20
CONTEXT_MIB = 300
NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    """Provide a fake driver with an A100 and a T4, with NVML initialized."""
    with fake_driver(tmp_path, "1xA100-40GB+1xT4") as made:
        pynvml.nvmlInit()
        yield made


@pytest.fixture
def card(driver: FakeDriver) -> Any:
    """Provide the NVML handle of the A100."""
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def used_mib(card: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(card).used) // MIB


def own_cgroup(cgroups: Path) -> bytes:
    """Make the folder of this process's cgroup below `cgroups`, and return its path."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next((line[3:] for line in lines if line.startswith("0::")), "")
    folder = cgroups / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    return bytes(folder)


# ---------------------------------------------------------------- isolation


def test_drivers_in_one_process_are_kept_apart(tmp_path: Path) -> None:
    """If a process has several fake drivers, each has its own GPUs."""
    one, other = FakeDriver(tmp_path, "1xT4"), FakeDriver(tmp_path, "2xL40S")
    for driver, count in ((one, 1), (other, 2), (one, 1)):
        with driver.in_process():
            pynvml.nvmlInit()
            assert pynvml.nvmlDeviceGetCount() == count
    other.close()
    one.close()
    assert list(tmp_path.iterdir()) == []


def test_who_has_another_driver_must_initialise_again(tmp_path: Path) -> None:
    """A process has to initialize NVML again after it switches to another fake driver."""
    for _ in range(2):
        with fake_driver(tmp_path):
            with pytest.raises(pynvml.NVMLError_Uninitialized):
                pynvml.nvmlDeviceGetCount()
            pynvml.nvmlInit()


BESIDE_A_REAL_DRIVER = """
import pathlib, sys, pynvml
from tests.support.nvidia.build import built
from tests.support.nvidia.driver import fake_driver

def count():
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetCount()

with fake_driver(pathlib.Path(sys.argv[1]), "1xL40S"):
    counts = [count()]
counts.append(count())
with fake_driver(pathlib.Path(sys.argv[1]), "2xL40S"):
    counts.append(count())
print(counts, count())
"""


def test_a_fake_driver_is_never_taken_for_the_real_one(tmp_path: Path) -> None:
    """While a fake driver is active, a process uses the fake NVML library. Before and after that,
    the process uses the real NVML library."""
    real = FakeDriver(tmp_path, "8xT4")
    elsewhere = tmp_path / "lib"
    elsewhere.mkdir()
    shutil.copy(built() / "libnvidia-ml.so.1", elsewhere)
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_A_REAL_DRIVER, tmp_path],
        env={**os.environ, **real.environment, "LD_LIBRARY_PATH": str(elsewhere)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    real.close()
    assert done.stdout.strip() == "[1, 8, 2] 8", done.stderr


def test_ids_differ_between_hosts_and_stay(tmp_path: Path) -> None:
    """A GPU has the same id when its fake driver is created again. GPUs of two hosts never have the
    same id."""
    made = [FakeDriver(tmp_path, "2xT4", host=host) for host in ("n1", "n1", "n2")]
    assert made[0].ids == made[1].ids
    assert not set(made[0].ids) & set(made[2].ids)
    for driver in made:
        driver.close()


# ---------------------------------------------------------------- memory


def test_processes_see_one_anothers_memory(driver: FakeDriver, card: Any) -> None:
    """A process cannot allocate memory that another process uses. NVML reports how much memory each
    process uses."""
    with holding(driver, "alloc:30000") as process:
        assert used_mib(card) == 30_000 + CONTEXT_MIB
        (running,) = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
        assert (running.pid, running.usedGpuMemory // MIB) == (process.pid, 30_000 + CONTEXT_MIB)
        assert probe(driver, "alloc:11000", "alloc:10000")[1:] == [
            f"alloc:11000 {NO_MEMORY}",
            "alloc:10000 CUDA_SUCCESS",
        ]


def test_memory_of_a_killed_process_is_free(driver: FakeDriver, card: Any) -> None:
    """The memory of a killed process is free at once, even if its parent has not waited for it
    yet."""
    with holding(driver, "alloc:30000") as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped
        assert used_mib(card) == 0
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(card) == []


def test_what_is_freed_can_be_had_again(driver: FakeDriver) -> None:
    """Memory that a program frees can be allocated again. Each CUDA context uses some memory
    itself."""
    said = probe(driver, "info", "alloc:40000", "info", "free", "info")
    free = [line.split()[3] for line in said if line.startswith("info")]
    assert free == ["free_mib=40660", "free_mib=660", "free_mib=40660"]


def test_a_program_sees_the_devices_that_it_was_given(driver: FakeDriver) -> None:
    """A program sees the devices that CUDA_VISIBLE_DEVICES lists by index or id, in that order. If
    the variable is empty, the program sees no device."""
    given = f"{driver.ids[1]},0"
    assert "devices=2" in probe(driver, "info", CUDA_VISIBLE_DEVICES=given)[1]
    assert "name=Tesla T4" in probe(driver, "info", CUDA_VISIBLE_DEVICES=given)[1]
    assert "devices=1" in probe(driver, "info", NVIDIA_VISIBLE_DEVICES="1")[1]
    assert probe(driver, CUDA_VISIBLE_DEVICES="") == ["context CUDA_ERROR_NO_DEVICE"]


def test_a_program_on_a_mig_device_has_its_memory(tmp_path: Path) -> None:
    """A program on a MIG device can use no more than the memory of the MIG instance."""
    with fake_driver(tmp_path, "1xA100-40GB:mig") as driver:
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        instance = pynvml.nvmlDeviceCreateGpuInstance(card, 19)
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
        name = pynvml.nvmlDeviceGetUUID(device)
        with holding(driver, "alloc:4000", NVIDIA_VISIBLE_DEVICES=name) as process:
            assert used_mib(device) == 4_000 + CONTEXT_MIB
            (running,) = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
            number = pynvml.nvmlGpuInstanceGetInfo(instance).id
            assert (running.pid, running.gpuInstanceId) == (process.pid, number)
            said = probe(driver, "info", "alloc:600", NVIDIA_VISIBLE_DEVICES=name)
            assert "total_mib=4864" in said[1]
            assert said[2] == f"alloc:600 {NO_MEMORY}"


# ---------------------------------------------------------------- permissions


def test_an_exclusive_card_takes_one_process(driver: FakeDriver, card: Any) -> None:
    """A GPU in exclusive mode admits a single process. A GPU in prohibited mode admits none."""
    pynvml.nvmlDeviceSetComputeMode(card, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    with holding(driver, "alloc:1"):
        assert probe(driver) == ["context CUDA_ERROR_DEVICE_UNAVAILABLE"]
    assert probe(driver) == ["context CUDA_SUCCESS"]
    driver.compute_mode(0, pynvml.NVML_COMPUTEMODE_PROHIBITED)
    assert probe(driver) == ["context CUDA_ERROR_DEVICE_UNAVAILABLE"]


def test_memory_limits_of_cgroups_are_off_by_default(driver: FakeDriver, card: Any) -> None:
    """Unless a test enables them, the fake driver does not support memory limits of cgroups."""
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(b"/pod", 0, MIB)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceSetMemoryLimits_v1(card, limits)
    driver.no_memory_limits(driver_too=True)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceSetMemoryLimits_v1(card, limits)


def test_memory_limits_of_cgroups_hold(driver: FakeDriver, card: Any, tmp_path: Path) -> None:
    """A cgroup's memory limit applies to all its processes together. The cgroup's memory usage can
    be read."""
    driver.memory_limits(tmp_path)
    path = own_cgroup(tmp_path)
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(path, 1_000 * MIB, 1_000 * MIB)
    pynvml.nvmlDeviceSetMemoryLimits_v1(card, limits)
    with holding(driver, "alloc:200"):
        said = pynvml.c_nvmlGetMemoryLimits_v1_t(path)
        pynvml.nvmlDeviceGetMemoryLimits_v1(card, said)
        assert (said.hardLimit, said.currentUsed) == (1_000 * MIB, (200 + CONTEXT_MIB) * MIB)
        assert probe(driver, "alloc:300")[1] == f"alloc:300 {NO_MEMORY}"
        assert probe(driver, "alloc:200")[1] == "alloc:200 CUDA_SUCCESS"


# ---------------------------------------------------------------- work


def test_work_is_seen_as_utilisation(driver: FakeDriver, card: Any) -> None:
    """If a process runs kernels, NVML reports that as utilization of the process and of the GPU."""
    driver.costs(kernel_us=50_000)
    with holding(driver, "launch:6") as process:
        (sample,) = pynvml.nvmlDeviceGetProcessUtilization(card, 0)
        assert sample.pid == process.pid
        assert sample.smUtil > 50
        assert pynvml.nvmlDeviceGetUtilizationRates(card).gpu == sample.smUtil


def test_planted_processes_and_utilisation(driver: FakeDriver, card: Any) -> None:
    """A test can add processes and utilization, and NVML reports them."""
    driver.process(0, 11, 1_000, 30)
    driver.process(0, 12, 2_000, 50)
    driver.process(0, 13, 10, kinds=("graphics",))
    compute = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
    assert [(each.pid, each.usedGpuMemory // MIB) for each in compute] == [(11, 1_000), (12, 2_000)]
    assert [each.pid for each in pynvml.nvmlDeviceGetGraphicsRunningProcesses(card)] == [13]
    samples = pynvml.nvmlDeviceGetProcessUtilization(card, 0)
    assert [(each.pid, each.smUtil) for each in samples] == [(11, 30), (12, 50)]
    assert pynvml.nvmlDeviceGetUtilizationRates(card).gpu == 80
    driver.utilisation(0, 95, 40)
    assert pynvml.nvmlDeviceGetUtilizationRates(card).memory == 40
    driver.end_process(11)
    assert used_mib(card) == 2_010
    memory = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    assert (memory.total // MIB, memory.used // MIB) == (40_960, 2_010)


def test_no_process_has_used_an_idle_card(card: Any) -> None:
    """For an idle GPU, NVML answers a query for process utilization with "not found" instead of an
    empty list."""
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(card, 0)


# ---------------------------------------------------------------- faults


def calls(card: Any) -> list[Callable[[], Any]]:
    """Return a sample of NVML calls that need a working GPU."""
    return [
        lambda: pynvml.nvmlDeviceGetUUID(card),
        lambda: pynvml.nvmlDeviceGetMemoryInfo(card),
        lambda: pynvml.nvmlDeviceGetRemappedRows(card),
        lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(card),
        lambda: pynvml.nvmlDeviceGetHandleByIndex(0),
    ]


def test_every_call_about_a_lost_card_fails(driver: FakeDriver, card: Any) -> None:
    """Each NVML call about a lost GPU fails, although the GPU is still counted. Calls about other
    GPUs succeed."""
    driver.fall_off(0)
    for call in calls(card):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call()
    assert pynvml.nvmlDeviceGetCount() == 2
    pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(1))
    driver.come_back(0)
    assert pynvml.nvmlDeviceGetUUID(card) == driver.ids[0]


def test_every_call_fails_without_a_driver(driver: FakeDriver, card: Any) -> None:
    """While the driver is stopped, each NVML call fails. After it starts again, calls fail until
    NVML is initialized again."""
    driver.stop()
    for call in [*calls(card), pynvml.nvmlInit, pynvml.nvmlDeviceGetCount]:
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            call()
    driver.start()
    for call in [*calls(card), pynvml.nvmlDeviceGetCount]:
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            call()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2


def test_an_event_comes_once_and_only_to_who_asked_before(driver: FakeDriver, card: Any) -> None:
    """An event set gets the events of its GPUs and types that occur after the registration. Each
    comes once, in order."""
    driver.xid(0, 13)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(card, pynvml.nvmlEventTypeXidCriticalError, events)
    driver.ecc(0, uncorrected=1)
    driver.xid(1, 79)
    driver.xid(0, 48)
    driver.xid(0, 63)
    for xid in (48, 63):
        event = pynvml.nvmlEventSetWait_v2(events, 1)
        assert (event.eventType, event.eventData) == (pynvml.nvmlEventTypeXidCriticalError, xid)
        assert pynvml.nvmlDeviceGetUUID(event.device) == driver.ids[0]
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 1)
    pynvml.nvmlEventSetFree(events)


def test_counted_errors(driver: FakeDriver, card: Any) -> None:
    """NVML reports the ECC errors, remapped rows and recovery action that a test has set."""
    driver.ecc(0, corrected=7, uncorrected=2)
    driver.remap_rows(0, corrected=3, uncorrected=1, pending=True)
    driver.recovery_action(0, 4)
    volatile = pynvml.NVML_VOLATILE_ECC
    assert pynvml.nvmlDeviceGetTotalEccErrors(card, 0, volatile) == 7
    assert pynvml.nvmlDeviceGetTotalEccErrors(card, 1, volatile) == 2
    assert pynvml.nvmlDeviceGetRemappedRows(card) == (3, 1, 1, 0)
    wanted = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    assert pynvml.nvmlDeviceGetFieldValues(card, [wanted])[0].value.uiVal == 4
    driver.lacks(0, "ecc")
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetEccMode(card)


def test_the_fabric_is_told_in_the_bindings_own_structure(driver: FakeDriver, card: Any) -> None:
    """NVML fills in fabric information only if the caller passes the structure of version 2."""
    driver.fabric(0, pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_ERROR_TIMEOUT)
    found = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(card, pynvml.byref(found))
    assert (found.state, found.status) == (3, pynvml.NVML_ERROR_TIMEOUT)
    assert (found.version, found.cliqueId, found.healthMask) == (pynvml.nvmlGpuFabricInfo_v2, 0, 0)
    newer = pynvml.c_nvmlGpuFabricInfo_v3_t()
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlDeviceGetGpuFabricInfoV(card, pynvml.byref(newer))


def test_work_on_a_lost_card_fails(driver: FakeDriver) -> None:
    """A program cannot use a lost GPU, but it can still use the other GPU of the driver."""
    driver.fall_off(0)
    assert probe(driver, CUDA_VISIBLE_DEVICES="0") == ["context CUDA_ERROR_NO_DEVICE"]
    assert "name=Tesla T4" in probe(driver, "info")[1]


def test_what_cannot_be_planted_is_an_error(driver: FakeDriver) -> None:
    """A test cannot set a fault on a GPU that does not exist."""
    with pytest.raises(ValueError, match="cannot: xid"):
        driver.xid(2, 79)


def test_links_go_where_they_were_led(driver: FakeDriver, card: Any) -> None:
    """NVLinks connect the GPUs that a test has connected. A T4 has no NVLinks."""
    driver.link(0, 1, None)
    assert [pynvml.nvmlDeviceGetNvLinkState(card, link) for link in (0, 1)] == [1, 0]
    remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(card, 0)
    t4 = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert remote.busId == pynvml.nvmlDeviceGetPciInfo(t4).busId
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetNvLinkState(card, 2)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNvLinkState(t4, 0)


def test_cards_are_found_by_bus_and_id(driver: FakeDriver, card: Any) -> None:
    """NVML finds a GPU by its id, and by its PCI address in the long and the short form. An unknown
    id is an error."""
    address = pynvml.nvmlDeviceGetPciInfo(card).busId
    for written in (address, address[4:], address.lower()):
        found = pynvml.nvmlDeviceGetHandleByPciBusId(written.encode())
        assert pynvml.nvmlDeviceGetUUID(found) == driver.ids[0]
    found = pynvml.nvmlDeviceGetHandleByUUID(driver.ids[1].encode())
    assert pynvml.nvmlDeviceGetMinorNumber(found) == 1
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(b"GPU-nobody")


def test_limits_are_of_folders_that_are_there(
    driver: FakeDriver, card: Any, tmp_path: Path
) -> None:
    """The driver accepts a memory limit only for an existing folder of the cgroup tree."""
    cgroups = tmp_path / "cgroup"
    cgroups.mkdir()
    driver.memory_limits(cgroups)
    for path in (tmp_path, cgroups / "gone"):
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(bytes(path), 0, MIB)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceSetMemoryLimits_v1(card, limits)


def test_pointers_of_limits_are_not_kept(driver: FakeDriver, card: Any, tmp_path: Path) -> None:
    """The driver copies the path when a memory limit is set, so the caller may free its buffer
    afterwards."""
    driver.memory_limits(tmp_path)
    path = bytes(tmp_path)
    pynvml.nvmlDeviceSetMemoryLimits_v1(card, pynvml.c_nvmlSetMemoryLimits_v1_t(path, 1, 2))
    said = pynvml.c_nvmlGetMemoryLimits_v1_t(bytes(bytearray(path)))
    pynvml.nvmlDeviceGetMemoryLimits_v1(card, said)
    assert (said.softLimit, said.hardLimit, said.currentUsed) == (1, 2, 0)
