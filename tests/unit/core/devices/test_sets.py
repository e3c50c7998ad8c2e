"""Tests of the sets of devices that are handed out together."""

import pytest

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.devices.sets import counts_of, in_sets, sets_of, whole_sets
from apportion_schemas import Device
from apportion_schemas.quantities import COUNT_MAX
from tests.support.fleet import gpu


def devices(family: str, model: str, *indexes: int) -> list[Device]:
    """Return devices with these indexes, in this order of preference."""
    return [gpu(f"d{at}", family=family, model=model, index=at) for at in indexes]


def chosen(family: str, model: str, count: int, *indexes: int) -> list[int]:
    """Return the indexes of the devices that are chosen first, or an empty list if no choice is
    possible."""
    some = devices(family, model, *indexes)
    return sorted(some[at].index for at in next(whole_sets(some, count), []))


def test_most_families_have_no_sets() -> None:
    """Devices of a family without sets may be allocated together in any number."""
    assert not in_sets("nvidia")
    assert not in_sets("unknown")
    assert counts_of("nvidia") == counts_of("unknown") == tuple(range(1, COUNT_MAX + 1))


@pytest.mark.parametrize(
    ("family", "counts"),
    [("ascend910c", (1, 2, 4, 6, 8)), ("kunlun", (1, 2, 4, 8)), ("neuron", (1, 2, 3, 4, 5))],
)
def test_numbers_that_are_handed_out(family: str, counts: tuple[int, ...]) -> None:
    """In a family whose devices are allocated in sets, a request may be for one device, or for the
    number of devices in one of the sets.

    Neuron also allows other numbers, because one of its models allocates devices in rows of any
    length."""
    assert in_sets(family)
    assert counts_of(family)[: len(counts)] == counts


def test_modules_are_filled_in_the_order_of_their_devices() -> None:
    """A request for Ascend 910C devices gets whole modules, first the preferred device's module."""
    assert chosen("ascend910c", "Ascend910C", 2, 5, 0, 4, 1) == [4, 5]
    assert chosen("ascend910c", "Ascend910C", 4, 5, 0, 4, 1, 3) == [0, 1, 4, 5]
    assert chosen("ascend910c", "Ascend910C", 4, 0, 1, 3, 4) == []
    assert sets_of("ascend910c", "", 3) == ()


@pytest.mark.parametrize(
    ("free", "count", "wanted"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7), 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        ((0, 1, 2, 3, 4, 5, 6), 8, []),
        ((0, 4, 5, 6), 2, [4, 5]),
        ((0, 5, 4), 2, [4, 5]),
        ((0, 5), 2, []),
        ((1, 5), 2, [1, 5]),
        ((0, 4, 5, 6, 7), 4, [4, 5, 6, 7]),
        ((1, 2, 5, 6), 4, [1, 2, 5, 6]),
        ((0, 1, 5, 6), 4, []),
        ((), 2, []),
    ],
)
def test_listed_sets_come_in_their_order(
    free: tuple[int, ...], count: int, wanted: list[int]
) -> None:
    """The first listed set whose devices are all free is chosen."""
    assert chosen("kunlun", "kunlun", count, *free) == wanted


@pytest.mark.parametrize(
    ("model", "free", "count", "wanted"),
    [
        ("AWSNeuron trn1", range(2, 16), 4, [4, 5, 6, 7]),
        ("AWSNeuron trn1", range(2, 16), 2, []),
        ("AWSNeuron", range(1, 16), 8, list(range(8, 16))),
        ("AWSNeuron inf2", range(2, 12), 3, [2, 3, 4]),
        ("AWSNeuron inf2", (0, 1, 3, 4), 3, []),
    ],
)
def test_a_model_may_allow_rows(model: str, free: range, count: int, wanted: list[int]) -> None:
    """On a model that allows rows, any free devices in a row are chosen. On the family's other
    models, only listed sets are."""
    assert chosen("neuron", model, count, *free) == wanted


def test_listed_sets_have_as_many_devices_as_they_say() -> None:
    """Every set that is listed for a number of devices has that many different indexes. No set is
    listed twice."""
    for family in FAMILIES.values():
        for count, sets in family.sets.items():
            assert {len(set(some)) for some in sets} == {count}
            assert len(set(sets)) == len(sets)
