"""Tests of the search for the devices of one node that have the most NVLink lanes between them."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.core.placement.assign.devices import best_linked
from apportion_schemas import Device, NodeReported
from tests.support.fleet import gpu, node
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, pod, shape, share
from tests.support.pods import placed as placement

Pairs = dict[tuple[int, int], int]


def wired(count: int, pairs: Pairs) -> list[Device]:
    """Return `count` devices with these NVLink lanes. Only the first device of a pair reports the
    lanes."""
    lanes: list[dict[str, int]] = [{} for _ in range(count)]
    for (one, other), number in pairs.items():
        lanes[one][f"g{other}"] = number
    return [gpu(f"g{at}", nvlink_lanes=lanes[at]) for at in range(count)]


def lanes_of(pairs: Pairs, positions: tuple[int, ...]) -> int:
    return sum(pairs.get(pair, 0) for pair in itertools.combinations(positions, 2))


HALVES: Pairs = {(0, 2): 4, (1, 3): 4, (0, 1): 1}


def test_the_best_pair_is_found() -> None:
    """The search finds the best linked pair, and the first pair among equals."""
    assert best_linked(wired(4, HALVES), 2) == ((0, 2), 4)
    assert best_linked(wired(3, {}), 2) == ((0, 1), 0)
    assert best_linked(wired(2, HALVES), 2) == ((0, 1), 1)


@settings(deadline=None)  # timing depends on the machine; another test bounds the search
@given(st.data(), st.integers(2, 6))
def test_what_is_said_is_so(data: st.DataObject, count: int) -> None:
    """The search returns as many devices as requested, with the true number of lanes between them.
    For two devices, or for all, no other choice has more lanes."""
    pairs = {
        pair: data.draw(st.integers(1, 18))
        for pair in itertools.combinations(range(6), 2)
        if data.draw(st.booleans())
    }
    found = best_linked(wired(6, pairs), count)
    assert len(set(found.positions)) == count
    assert found.lanes == lanes_of(pairs, found.positions)
    sets = itertools.combinations(range(6), count)
    best = max(lanes_of(pairs, each) for each in sets)
    assert found.lanes == best if count in {2, 6} else found.lanes <= best


def test_the_search_ends() -> None:
    """Choosing 32 of 64 linked devices takes bounded time, and the choice has many links."""
    pairs = {
        (one, other): 1 + (one * 31 + other * 17) % 7
        for one, other in itertools.combinations(range(64), 2)
    }
    found = best_linked(wired(64, pairs), 32)
    assert len(set(found.positions)) == 32
    assert found.lanes == lanes_of(pairs, found.positions) > sum(pairs.values()) / 4


def linked_node() -> NodeReported:
    """Return a node of four GPUs in two linked pairs: 0 and 2, 1 and 3."""
    return node("n1", *wired(4, HALVES))


def test_two_gpus_are_linked_ones() -> None:
    """A pod with two GPUs gets a linked pair, even without a policy."""
    ledger = Ledger(linked_node(), pod("a", cards(2)), pod("b", cards(2))).settle()
    assert ledger.devices("a") == ["g0", "g2"]
    assert ledger.devices("b") == ["g1", "g3"]


def test_topology_aware_takes_the_best_of_those_that_fit() -> None:
    """The topology-aware policy picks the best linked devices among those that fit (HAMi
    `computeBestCombination`)."""
    held = [share("g0", 81920, 100), share("g3", 81920, 100)]
    ledger = Ledger(linked_node(), pod("x", cards(2)), placement("x", "n1", held))
    ledger.submit(pod("strict", shape=shape(cards(2), device_policy="topology-aware"))).settle()
    assert ledger.devices("strict") == ["g1", "g2"]


def test_topology_aware_spares_the_linked_ones() -> None:
    """The topology-aware policy gives a single-GPU pod the GPU with the fewest links (HAMi
    `computeWorstSingleCard`)."""
    ledger = Ledger(node("n1", *wired(3, {(0, 1): 4})))
    ledger.submit(pod("a", shape=shape(cards(1), device_policy="topology-aware"))).settle()
    ledger.submit(pod("b", cards(2))).settle()
    assert ledger.devices("a") == ["g2"]
    assert ledger.devices("b") == ["g0", "g1"]
