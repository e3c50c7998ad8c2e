"""Tests of MIG in the fake driver, which follows the geometry of real GPUs. They use the real NVML
bindings."""

from collections.abc import Iterator
from ctypes import byref, c_uint
from math import gcd
from pathlib import Path
from typing import Any

import pynvml
import pytest

from apportion.core.devices.catalogue import MigProfile, mig_profiles
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.support.nvidia.models import MODELS, Profile

CUT = [name for name, model in MODELS.items() if model.profiles]
MEMORY_TOLERANCE_MIB = 8
"""The catalogue's memory may be below the driver's by this much, and never above."""
GUESSED = ("RTX-PRO-6000",)
"""Models whose catalogue memory comes from the profile name, not from a driver."""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    """Provide a fake driver with one GPU in MIG mode and two without MIG, with NVML initialized."""
    with fake_driver(tmp_path, "1xA100-40GB:mig+1xA100-40GB+1xT4") as made:
        pynvml.nvmlInit()
        yield made


@pytest.fixture
def card(driver: FakeDriver) -> Any:
    """Provide the GPU in MIG mode."""
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def profile_id(name: str) -> int:
    return next(each.id for each in MODELS["A100-40GB"].profiles if each.name == name)


def created(card: Any, name: str, start: int | None = None) -> Any:
    """Make a GPU instance of this profile, at slice `start` if that is given."""
    number = profile_id(name)
    if start is None:
        return pynvml.nvmlDeviceCreateGpuInstance(card, number)
    size = next(each.span for each in MODELS["A100-40GB"].profiles if each.name == name)
    placement = byref(pynvml.c_nvmlGpuInstancePlacement_t(start, size))
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, number, placement)


def placements(card: Any, number: int) -> list[tuple[int, int]]:
    """Return where the driver allows instances of a profile, as (start, size) pairs."""
    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, number, None, byref(count))
    found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, number, found, byref(count))
    return [(each.start, each.size) for each in found]


def instances(card: Any, name: str) -> list[Any]:
    count = c_uint()
    found = (pynvml.c_nvmlGpuInstance_t * 8)()
    pynvml.nvmlDeviceGetGpuInstances(card, profile_id(name), found, byref(count))
    return list(found[: count.value])


# ---------------------------------------------------------------- geometry


@pytest.mark.parametrize("model", CUT)
def test_our_catalogue_agrees_with_the_driver(model: str) -> None:
    """Each MIG profile in our catalogue has the same placements as the driver's profile, and at
    most as much memory."""
    known: dict[str, Profile] = {each.name: each for each in MODELS[model].profiles}
    ours: tuple[MigProfile, ...] = mig_profiles("nvidia", MODELS[model].name)
    assert ours
    unit = gcd(*(each.span for each in known.values()))
    for profile in ours:
        drivers = known[profile.name]
        starts = sorted(start * unit for start in profile.starts)
        assert (profile.size * unit, starts) == (drivers.span, list(drivers.starts))
        assert drivers.memory_mib >= profile.memory_mib
        if model not in GUESSED:
            assert drivers.memory_mib - profile.memory_mib <= MEMORY_TOLERANCE_MIB


@pytest.mark.parametrize("model", CUT)
def test_the_driver_lists_its_profiles(tmp_path: Path, model: str) -> None:
    """The fake driver lists its profiles through NVML with their names, amounts and placements."""
    with fake_driver(tmp_path, f"1x{model}:mig"):
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        for profile in MODELS[model].profiles:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card, profile.kind)
            assert info.name == f"MIG {profile.name}"
            assert (info.id, info.sliceCount) == (profile.id, profile.slices)
            assert (info.instanceCount, info.memorySizeMB) == (profile.at_most, profile.memory_mib)
            assert placements(card, info.id) == [(at, profile.span) for at in profile.starts]
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card, 5)  # eight slices: no GPU has it


def test_instances_stand_where_they_are_told(card: Any) -> None:
    """An instance is created at the slices that the caller chose. As in the real driver, it must
    not overlap another instance."""
    half = created(card, "3g.20gb", 4)
    info = pynvml.nvmlGpuInstanceGetInfo(half)
    assert (info.profileId, info.placement.start, info.placement.size) == (9, 4, 4)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        created(card, "1g.5gb", 6)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        created(card, "7g.40gb", 0)
    created(card, "4g.20gb", 0)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        created(card, "1g.5gb")


@pytest.mark.parametrize(("name", "start"), [("2g.10gb", 1), ("3g.20gb", 2), ("1g.5gb", 7)])
def test_a_start_that_no_card_has_is_an_invalid_argument(card: Any, name: str, start: int) -> None:
    """A start slice that the profile does not allow is an invalid argument, even on an empty
    GPU."""
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        created(card, name, start)


def test_compute_slices_run_out_before_memory(card: Any) -> None:
    """Seven small instances use all compute slices of a GPU. The driver refuses an eighth, although
    memory is left."""
    for _ in range(7):
        created(card, "1g.5gb")
    starts = [
        pynvml.nvmlGpuInstanceGetInfo(each).placement.start for each in instances(card, "1g.5gb")
    ]
    assert sorted(starts) == list(range(7))
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        created(card, "1g.5gb")


def test_one_instance_only_has_the_media_engines(card: Any) -> None:
    """Only one instance of a GPU can have the media engines. The driver refuses a second one."""
    created(card, "1g.5gb+me")
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        created(card, "1g.5gb+me")


# ---------------------------------------------------------------- instances and devices


def test_a_mig_device_is_a_compute_instance(driver: FakeDriver, card: Any) -> None:
    """A GPU instance becomes a MIG device once it has a compute instance. The device has its own
    name, id and memory."""
    instance = created(card, "2g.10gb", 2)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
    name = pynvml.nvmlDeviceGetUUID(device)
    assert name.startswith("MIG-")
    assert pynvml.nvmlDeviceGetName(device) == f"{pynvml.nvmlDeviceGetName(card)} MIG 2g.10gb"
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total >> 20 == 9_984
    assert pynvml.nvmlDeviceGetAttributes(device).gpuInstanceSliceCount == 2
    found = pynvml.nvmlDeviceGetHandleByUUID(name.encode())
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found)
    assert pynvml.nvmlDeviceGetUUID(parent) == driver.ids[0]
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    assert pynvml.nvmlDeviceGetGpuInstanceId(found) == info.id


def test_compute_instances_share_an_instance(card: Any) -> None:
    """All compute instances of a GPU instance together cannot have more slices than the GPU
    instance."""
    instance = created(card, "3g.20gb")
    for _ in range(3):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    ids = [
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, at))
        for at in range(3)
    ]
    assert len(set(ids)) == 3


def test_instances_go_from_the_inside_out(driver: FakeDriver, card: Any) -> None:
    """The driver refuses to destroy a compute instance that a process uses, and a GPU instance that
    has compute instances."""
    instance = created(card, "1g.5gb", 6)
    number = pynvml.nvmlGpuInstanceGetInfo(instance).id
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    driver.process(0, 4242, 100, instance=number)
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(compute)
    driver.end_process(4242)
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert instances(card, "1g.5gb") == []


def test_the_same_instance_has_the_same_id_again(card: Any) -> None:
    """If an instance is destroyed and made again at the same slices, it has the same id."""
    seen = set()
    for _ in range(2):
        instance = created(card, "1g.5gb", 3)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
        seen.add(pynvml.nvmlDeviceGetUUID(device))
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
    assert len(seen) == 1


# ---------------------------------------------------------------- mode


def test_mode_changes_only_on_a_card_that_is_free(driver: FakeDriver) -> None:
    """MIG mode changes at once on an idle GPU. On a GPU in use, the change is pending."""
    card = pynvml.nvmlDeviceGetHandleByIndex(1)
    driver.process(1, 4242, 100)
    assert pynvml.nvmlDeviceSetMigMode(card, 1) == pynvml.NVML_ERROR_IN_USE
    assert pynvml.nvmlDeviceGetMigMode(card) == [0, 1]
    driver.end_process(4242)
    assert pynvml.nvmlDeviceSetMigMode(card, 1) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(card) == [1, 1]


def test_a_card_without_mig_says_so(driver: FakeDriver) -> None:
    """A GPU that does not support MIG reports no MIG mode and no profiles."""
    card = pynvml.nvmlDeviceGetHandleByIndex(2)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMigMode(card)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card, 0)


def test_instances_end_with_the_driver(driver: FakeDriver, card: Any) -> None:
    """After a driver restart, MIG mode is kept, all instances are gone and old handles are
    invalid."""
    created(card, "7g.40gb")
    driver.restart()
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetUUID(card)
    again = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMigMode(again) == [1, 1]
    assert instances(again, "7g.40gb") == []
