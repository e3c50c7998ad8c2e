"""Tests that the price tables equal those of a slow search through every sequence of pods."""

import random

import numpy as np
import pytest

from apportion.core.placement.pricing import price_table as tables
from apportion.core.placement.pricing.sizes import Sort
from apportion.core.placement.pricing.states import (
    IDLE,
    NOWHERE,
    STATES,
    after_share,
    idle_state,
    percent_left,
)
from apportion_schemas import Ask, PricedShape
from tests.support import prices as slow
from tests.support.fleet import A100_40, gpu
from tests.support.pods import ask, cards
from tests.support.prices import piece, priced, whole

CARD = gpu("g0", memory_mib=10_000)
CUT = gpu("g0", model=A100_40, mode="mig")


def random_shapes(seed: int) -> tuple[PricedShape, ...]:
    """Return random priced shapes: shares of a device, whole devices, and a pod without devices."""
    drawn = random.Random(seed)
    shares = [
        priced(piece(size), drawn.randrange(1, 13_000) * size, 1000 * drawn.randrange(1, 9))
        for size in drawn.sample(range(15, 100), 4)
    ]
    wholes = [
        priced(whole(n), drawn.randrange(300_000, 1_200_000) * n, 4000 * n) for n in (1, 2, 4)
    ]
    return *shares, *wholes, priced(None, drawn.randrange(20_000, 90_000), 4000)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_of_a_device_can_earn(seed: int) -> None:
    """The table of share values equals that of the slow reference algorithm, for every free
    percentage."""
    shapes = random_shapes(seed)
    prices = tables.cpu_prices(shapes)
    found = tables.share_values(shapes, CARD, prices)
    for row, price in enumerate(prices.tolist()):
        wanted = [slow.share_value(shapes, left, price) for left in range(101)]
        assert found[row, :101].tolist() == wanted
        assert found[row, IDLE] == wanted[100]


@pytest.mark.parametrize("seed", range(5))
def test_what_idle_devices_can_earn(seed: int) -> None:
    """The table of values of idle devices equals that of the slow reference algorithm."""
    shapes = random_shapes(seed)
    prices = tables.cpu_prices(shapes)
    shared = tables.share_values(shapes, CARD, prices)[:, IDLE]
    found = tables.device_values(shapes, CARD, prices, shared)
    for row, price in enumerate(prices.tolist()):
        wanted = [slow.idle_value(shapes, count, price) for count in range(6)]
        assert found[row, :6].tolist() == wanted


def test_cpu_is_worth_at_least_what_it_earns_alone() -> None:
    """The table's lowest CPU price is the most that any pod without devices pays per unit of CPU.
    The other prices rise from there."""
    alone = priced(None, 40_000, 4000), priced(None, 90_000, 6000)
    assert tables.cpu_prices(alone).tolist() == [15, 17, 23, 47, 143, 527]
    assert tables.cpu_prices(()).tolist() == [0, 2, 8, 32, 128, 512]


def masks(wanted: Ask, occupied: int = 0) -> list[int]:
    """Place MIG instances for this request on a device until no more fit.

    Return the mask of used slices after each instance. `occupied` is the mask at the start."""
    after, found = after_share(wanted, CUT), []
    while after[occupied] != NOWHERE:
        occupied = int(after[occupied])
        found.append(occupied)
    return found


@pytest.mark.parametrize(
    ("wanted", "slices"), [(ask(4_000), 1), (ask(9_000), 2), (ask(19_000), 4), (cards(), 8)]
)
def test_instances_take_slices(wanted: Ask, slices: int) -> None:
    """A 40 GB A100 fits seven instances of 5 GB, or three of 10 GB, or two of 20 GB."""
    found = masks(wanted)
    assert len(found) == {1: 7, 2: 3, 4: 2, 8: 1}[slices]
    assert [mask.bit_count() for mask in found] == [slices * (n + 1) for n in range(len(found))]


def test_what_is_held_stays() -> None:
    """If one slice of a MIG device is in use, one half-size instance still fits on the device, not
    two."""
    assert masks(ask(19_000), 0b1) == [0b11110001]


def test_holes_of_a_cut_card_are_seen() -> None:
    """Two used slices in one half of a MIG device leave room for a large instance in the other
    half. One used slice in each half leaves no room for such an instance."""
    room = tables.share_room(Sort(ask(19_000), (), 0), CUT)
    assert [int(room[mask]) for mask in (0, 0b11, 0b10001, 0xFF)] == [2, 1, 0, 0]
    half = priced(ask(19_000, container="any"), 500_000, 0)
    small = priced(ask(4_000, container="any"), 90_000, 0)
    earned = tables.share_values((half, small), CUT, np.array([0]))[0]
    assert earned[0b11] == 500_000 + 2 * 90_000
    assert earned[0b10001] == 5 * 90_000
    assert earned[0] == 1_000_000


@pytest.mark.parametrize("device", [CARD, CUT], ids=["percent", "slices"])
@pytest.mark.parametrize("wanted", [ask(4_000), ask(9_000), cards()], ids=["small", "more", "all"])
def test_a_share_always_leaves_less(device: object, wanted: Ask) -> None:
    """Every share leaves less of a device free than before, so that the computation of the tables
    ends."""
    assert device in (CARD, CUT)
    card = CARD if device is CARD else CUT
    left, after = percent_left(card), after_share(wanted, card)
    for state in range(STATES):
        assert after[state] == NOWHERE or left[after[state]] < left[state]
    assert left[idle_state(card)] == left.max() == 100


def test_another_family_goes_nowhere() -> None:
    """A request for another device family does not fit the device."""
    assert (after_share(ask(3_000, family="ascend310p"), CARD) == NOWHERE).all()
    assert (after_share(None, CARD) == NOWHERE).all()
