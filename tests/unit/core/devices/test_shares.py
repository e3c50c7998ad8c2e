"""Tests of allocating and releasing a share of a device: a release restores exactly what the share
used, and no device is oversold."""

import pytest

from apportion.core.devices.shares import (
    DeviceState,
    Oversold,
    occupy,
    release,
    slice_mask,
    template_cpu,
    template_cpu_of,
)
from apportion_schemas import Device, Share
from tests.support.fleet import A100_40, gpu, npu
from tests.support.pods import instance, share


def state_of(device: Device) -> DeviceState:
    return DeviceState(
        device=device,
        memory_free_mib=device.memory_mib,
        cores_free=device.cores,
        slots_free=device.slots,
        template_cpu_free=template_cpu_of(device),
    )


def amounts(state: DeviceState) -> tuple[int, int, int, int, int]:
    """Return the device's free amounts and its mask of MIG slices."""
    return (
        state.memory_free_mib,
        state.cores_free,
        state.slots_free,
        state.template_cpu_free,
        state.slices,
    )


MIG = gpu(model=A100_40, mode="mig")
CASES = [
    ("a share", gpu(), share("g0", 3000, cores=30), (78920, 70, 9, 0, 0)),
    ("a whole card", gpu(), share("g0", 81920, cores=100), (0, 0, 9, 0, 0)),
    (
        "an instance",
        MIG,
        share("g0", 5120, cores=0, instance=instance("1g.5gb", 6, 1)),
        (35840, 100, 9, 0, 0b1000000),
    ),
    (
        "the largest instance",
        MIG,
        share("g0", 40960, cores=0, instance=instance("7g.40gb", 0, 8)),
        (0, 100, 9, 0, 0b11111111),
    ),
    ("a template", npu(), share("npu0", 6144, cores=2, template="vir02"), (15383, 6, 6, 5, 0)),
    (
        "a template nobody knows",
        npu(),
        share("npu0", 1, cores=1, template="x"),
        (21526, 7, 6, 7, 0),
    ),
    ("a whole NPU", npu(), share("npu0", 21527, cores=8), (0, 0, 6, 7, 0)),
]


@pytest.mark.parametrize(
    ("device", "held", "left"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_release_undoes_occupy(device: Device, held: Share, left: tuple[int, ...]) -> None:
    """Releasing a share restores every amount that the share had used."""
    state = state_of(device)
    before = amounts(state)
    occupy(state, held)
    assert amounts(state) == left
    release(state, held)
    assert amounts(state) == before


@pytest.mark.parametrize(
    ("taken", "asked", "because"),
    [
        ([share(memory_mib=81000)], share(memory_mib=921), "memory_mib needed 921, available 920"),
        ([share(cores=60)], share(cores=41), "cores needed 41, available 40"),
        ([share()] * 10, share(), "slots needed 1, available 0"),
    ],
)
def test_oversold_charges_nothing(taken: list[Share], asked: Share, because: str) -> None:
    """If a share needs more than its device has free, allocating it raises an error and changes
    nothing."""
    state = state_of(gpu())
    for held in taken:
        occupy(state, held)
    before = amounts(state)
    with pytest.raises(Oversold, match=f"device g0: {because}"):
        occupy(state, asked)
    assert amounts(state) == before


@pytest.mark.parametrize(
    ("start", "size", "mask"), [(0, 1, 0b1), (6, 1, 0b1000000), (4, 4, 0b11110000), (0, 8, 0xFF)]
)
def test_slices_of_an_instance(start: int, size: int, mask: int) -> None:
    """The slice mask of a MIG instance has one bit for each slice in `[start, start + size)`."""
    assert slice_mask(share(instance=instance("p", start, size))) == mask


def test_only_templates_take_ai_cpus() -> None:
    """A share uses AI CPUs only if it has a vNPU template on an NPU."""
    assert slice_mask(share()) == 0
    assert template_cpu(share(), state_of(npu())) == 0
    assert template_cpu(share(template="vir04"), state_of(npu())) == 4
    assert template_cpu(share(template="vir04"), state_of(gpu())) == 0
    assert (template_cpu_of(npu()), template_cpu_of(gpu(family="nobody's"))) == (7, 0)
