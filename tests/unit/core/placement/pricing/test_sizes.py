"""Tests of the size of a device request: the percentage of a device that one share takes.

The sizes must allow exactly as many equal shares on a device as really fit."""

import pytest

from apportion.core.placement.pricing.sizes import NEVER, Sort, hardest, size_percent
from apportion_schemas import Ask
from tests.support.fleet import A100_40, gpu, npu
from tests.support.pods import ask, cards

CARD = gpu("g0", memory_mib=10_000)


@pytest.mark.parametrize(
    ("wanted", "percent"),
    [
        (ask(2_300), 23),
        (ask(2_300, cores=40), 40),
        (ask(None, memory_percent=23, cores=23), 23),
        (ask(3_333), 33),
        (ask(1_666), 16),
        (ask(1_220), 12),
        (ask(1_428), 14),
        (ask(560), 6),
        (ask(10), 1),
        (ask(10_000), 100),
        (ask(10_001), NEVER),
        (ask(1, cores=100), 100),
        (cards(), 100),
        (ask(1, family="ascend310p"), NEVER),
    ],
)
def test_size_of_a_share(wanted: Ask, percent: int) -> None:
    """A request's size is the largest percentage that it needs of a device's memory or cores.

    The size is rounded so that the right number of shares fits."""
    assert size_percent(wanted, CARD) == percent


def test_a_share_of_a_percent_of_a_real_card_is_that_percent() -> None:
    """A request for 23 % of a GPU has size 23, although its memory is rounded down to whole MiB."""
    card = gpu("g0", memory_mib=16_384)
    sizes = [size_percent(ask(None, memory_percent=n, cores=n), card) for n in range(1, 100)]
    assert sizes == list(range(1, 100))


def test_a_sort_keeps_to_its_modes() -> None:
    """If a pod accepts only MIG, its request has the size NEVER on a device in another mode."""
    cut = gpu("g0", model=A100_40, mode="mig")
    only_cut = Sort(ask(4_000), ("mig",), 0)
    assert only_cut.size_on(cut) == 12
    assert only_cut.size_on(CARD) == NEVER
    assert Sort(None, (), 1000).size_on(CARD) == NEVER


def test_the_hardest_ask_takes_most() -> None:
    """Of several device requests, the hardest is the one that takes the largest percentage of a
    device. If two are equal, it is the first."""
    devices = [None, CARD, npu()]
    assert hardest((ask(100), ask(200), ask(300, family="ascend310p")), devices) == 2
    assert hardest((ask(100), ask(60, count=2)), devices) == 1
    assert hardest((ask(100), ask(200)), [None]) == 0
