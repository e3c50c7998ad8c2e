"""Tests of the cache of placement classes. A class keeps every node's score for pods of one
shape."""

from typing import Any

import pytest

from apportion.core.configuration import read_configuration
from apportion.core.placement import classes
from apportion.core.placement.classes import ClassCache, PlacementClass
from apportion.core.placement.index.columns import Columns
from apportion_schemas import ConfigurationChanged, PolicyChanged, PricedShape, PricesLearnt
from tests.support.fleet import A30, A100_40, T4, V100, node, rack
from tests.support.fleet import gpu as card
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod

ONE_SHARE = PricedShape(ask=ask(1000), cpu_milli=0, memory_mib=0, pods=1, size=30_000, value=30_000)
PRICES = PricesLearnt(pods=1, shapes=(ONE_SHARE,))
ONE_GROUP = {"group": "g1", "geometries": [{"name": "1g.5gb", "memory": 5120, "count": 7}]}
GEOMETRIES = [{"models": ["A100-SXM4-40GB"], "allowedGeometries": [ONE_GROUP]}]


class Asked:
    """A cache of placement classes, with the ledger that the cache follows. Tests get a class by
    the memory that its pods request."""

    def __init__(self, *payloads: Any) -> None:
        self.ledger = Ledger(*payloads)
        self.columns = Columns(self.ledger.state)
        self.cache = ClassCache(self.ledger.state, self.columns)

    def play(self, data: Any) -> None:
        """Fold one event, and report the changed node to the cache's index."""
        change = self.ledger.take(data)
        if change.node is not None:
            self.columns.touch(change.node, change.shares)

    def class_of(self, memory_mib: int) -> PlacementClass:
        """Return the cached class for pods that request a share with this memory."""
        about = pod("p", ask(memory_mib))
        return self.cache.class_of(str(memory_mib).encode(), about.shape)


def test_the_class_not_asked_for_longest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many classes, the cache drops the least recently used one."""
    monkeypatch.setattr(classes, "CLASSES_MAX", 2)
    asked = Asked(rack("n1", 1))
    first, second = asked.class_of(1), asked.class_of(2)
    assert asked.class_of(1) is first
    asked.class_of(3)
    assert asked.class_of(1) is first
    assert asked.class_of(2) is not second


PRICE = PolicyChanged(by="ada", node_policy="price", device_policy="price")
SPREAD = PolicyChanged(by="ada", node_policy="spread", device_policy="binpack")
ANY_CUT = read_configuration({})
OTHERWISE_CUT = ConfigurationChanged(
    by="ada", configuration=read_configuration({"nvidia": {"knownMigGeometries": GEOMETRIES}})
)


def test_a_class_knows_how_cards_may_be_cut_now() -> None:
    """If the configuration changes how MIG devices may be split, a cached placement class counts
    again how many nodes fit."""
    asked = Asked(node("n1", card("m1", model=A100_40, mode="mig")))
    class_ = asked.class_of(20_000)
    found = [class_.fitting]
    for data in (OTHERWISE_CUT, ConfigurationChanged(by="ada", configuration=ANY_CUT)):
        asked.play(data)
        assert asked.class_of(20_000) is class_
        found.append(class_.fitting)
    assert found == [1, 0, 1]


def test_where_nodes_are_preferred_otherwise_a_class_stays() -> None:
    """If the node policy changes, the cache keeps a placement class and computes only its scores
    again."""
    asked = Asked(PRICE, rack("n1", 1))
    before = asked.class_of(1)
    found = [before.node_score.policy]
    for data in (PRICES, SPREAD, PRICE):
        board = before.board
        asked.play(data)
        assert asked.class_of(1) is before
        assert before.board is not board
        found.append(before.node_score.policy)
    assert found == ["bestfit", "price", "spread", "price"]


def test_who_does_not_weigh_by_prices_does_not_mind_others() -> None:
    """New prices change the scores of a placement class only if its policy uses prices."""
    asked = Asked(SPREAD, rack("n1", 1))
    board = asked.class_of(1).board
    asked.play(PRICES)
    assert asked.class_of(1).board is board


def parts(cache: ClassCache) -> int:
    """Return how many calls of `prepare` the cache needs until all prices are prepared."""
    return next(number for number in range(100) if cache.prepare())


def test_prices_are_made_ready_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache prepares new prices in small steps, so that no single call takes long. The
    resulting scores are the same."""
    monkeypatch.setattr(classes, "READ_MAX", 2)
    asked = Asked(SPREAD, PRICES, *(rack(f"n{n}", 1) for n in range(1, 7)))
    assert asked.cache.prepare()  # no class uses prices
    asked.play(PRICE)
    assert parts(asked.cache) > 6 // 2
    assert parts(asked.cache) == 0
    asked.play(node("n7", card("m1", model=A100_40)))
    assert parts(asked.cache) > 7 // 2
    kept, anew = asked.class_of(1), Asked(*asked.ledger.events)
    assert kept.board.points.tolist() == anew.class_of(1).board.points.tolist()


def test_kinds_that_are_worked_out_are_not_worked_out_again() -> None:
    """If a new kind of device joins, the cache computes prices only for that kind."""
    cards = [card(f"m{n}", model=model) for n, model in enumerate((A100_40, A30, T4))]
    asked = Asked(PRICE, PRICES, *(node(f"n{n}", each) for n, each in enumerate(cards)))
    before = parts(asked.cache)
    asked.play(node("n9", card("m9", model=V100)))
    assert 2 * parts(asked.cache) < before


def test_another_kind_of_device_weighs_with_prices() -> None:
    """If the policy uses prices and a node reports a new kind of device, cached scores are computed
    again."""
    asked = Asked(PRICE, rack("n1", 1))
    asked.play(node("n2", card("m1", model=A100_40)))
    rows = len(asked.class_of(1).board.points)
    asked.play(PRICES)
    board = asked.class_of(1).board
    asked.play(node("n1", card("m2", model="Tesla V100-SXM2-32GB")))
    assert len(asked.class_of(1).board.points) == rows
    assert asked.class_of(1).board is not board


def test_the_same_geometries_are_no_change() -> None:
    """If a new configuration allows the same MIG geometries, the cache keeps its classes."""
    asked = Asked(rack("n1", 1))
    before = asked.class_of(1)
    asked.play(ConfigurationChanged(by="ada", configuration=ANY_CUT))
    assert asked.class_of(1) is before
