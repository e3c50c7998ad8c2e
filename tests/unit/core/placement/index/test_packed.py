"""Tests of packed amounts: a device's memory, cores, slots and AI CPUs in one integer, with a guard
bit above each field."""

import itertools

import numpy as np
import pytest

from apportion.core.devices.shares import DeviceState
from apportion.core.placement.index import packed
from apportion.core.placement.index.packed import GUARDS, NEVER, amounts, clamped, free_amounts
from apportion_schemas import Device
from tests.support.fleet import gpu, node, npu
from tests.support.ledger_of import Ledger

LARGEST = gpu(memory_mib=1 << 24, physical_memory_mib=1 << 24, cores=10_000, slots=250)


def fits(free: tuple[int, ...], needed: tuple[int, ...]) -> bool:
    """Return True if the packed demand fits into the packed free amounts.

    The check of a single device and the check of an array must give the same result."""
    held, need = GUARDS | amounts(*free), amounts(*needed)
    found = not packed.lacking(held, need)
    each = packed.lacking_each(np.array([held, held]), need) == 0
    assert each.tolist() == [found, found]
    return found


def state_of(device: Device) -> DeviceState:
    return Ledger(node("n1", device)).device(device.id)


@pytest.mark.parametrize("field", range(4))
@pytest.mark.parametrize("shortage", [-1, 0, 1])
def test_one_amount_at_the_border(field: int, shortage: int) -> None:
    """A demand does not fit if one of its amounts exceeds the device's free amount by one."""
    free = [1000, 50, 5, 3]
    needed = list(free)
    needed[field] += shortage
    assert fits(tuple(free), tuple(needed)) is (shortage <= 0)


def test_borders_of_all_fields_at_once() -> None:
    """The fit check is right for all combinations of zero, one and the largest value in every
    field."""
    sizes = (packed.MEMORY_BITS, packed.COMPUTE_BITS, packed.SLOTS_BITS, packed.TEMPLATE_CPU_BITS)
    choices = list(itertools.product(*((0, 1, (1 << bits) - 1) for bits in sizes)))
    for free, needed in itertools.product(choices, choices):
        enough = all(have >= want for have, want in zip(free, needed, strict=True))
        assert fits(free, needed) is enough, (free, needed)


def test_what_is_lacking_is_told_by_its_guard() -> None:
    """If a demand does not fit, the guard bits show which amounts are too small, here slots and
    memory."""
    short = packed.lacking(GUARDS | amounts(10, 5, 1, 2), amounts(11, 5, 2, 2))
    assert short == packed.MEMORY_GUARD | packed.SLOTS_GUARD


def test_guards_lie_outside_of_every_field() -> None:
    """No guard bit is inside a field, and all of them fit a signed 64-bit integer."""
    assert GUARDS.bit_count() == 4
    assert not GUARDS & amounts(-1 & (1 << 60), 1 << 60, 1 << 60, 1 << 60)
    assert GUARDS | amounts(1 << 60, 1 << 60, 1 << 60, 1 << 60) < 1 << 63


@pytest.mark.parametrize(
    ("amount", "bits", "held"), [(-1, 4, 0), (0, 4, 0), (15, 4, 15), (16, 4, 15), (1 << 40, 4, 15)]
)
def test_clamped(amount: int, bits: int, held: int) -> None:
    """An amount larger than its field is clamped to the field's maximum."""
    assert clamped(amount, bits) == held


def test_the_largest_device_of_the_schemas_is_packed_exactly() -> None:
    """The largest device that the schemas allow is packed without clamping its amounts."""
    device = LARGEST
    assert free_amounts(state_of(device)) == GUARDS | (
        device.memory_mib | device.cores << packed.COMPUTE_AT | device.slots << packed.SLOTS_AT
    )
    assert amounts(1 << 25, 1_000_000, 0) == 1 << 25 | 1_000_000 << packed.COMPUTE_AT


def test_never_fits_nowhere() -> None:
    """The demand `NEVER` fits neither the largest device nor the largest host."""
    most = GUARDS | amounts(1 << 30, 1 << 30, 250, 15)
    host = GUARDS | amounts(1 << 30, 1 << 30, 1 << 30, 0)
    assert ((most - NEVER) & GUARDS) != GUARDS
    assert ((host - NEVER) & GUARDS) != GUARDS


@pytest.mark.parametrize(
    "field", ["memory_free_mib", "cores_free", "slots_free", "template_cpu_free"]
)
def test_less_than_nothing_is_nothing(field: str) -> None:
    """A negative free amount is packed as zero. It does not change the next field."""
    state = state_of(npu())
    whole = free_amounts(state)
    setattr(state, field, 0)
    nothing = free_amounts(state)
    setattr(state, field, -7)
    assert free_amounts(state) == nothing != whole


@pytest.mark.parametrize("closing", [{"present": False}, {"healthy": False}, {"cordon": "x"}])
def test_closed_device_has_nothing(closing: dict[str, object]) -> None:
    """A device that is absent, unhealthy or cordoned is packed as having nothing free."""
    state = state_of(gpu())
    for field, value in closing.items():
        setattr(state, field, value)
    assert free_amounts(state) == GUARDS
