"""The classes that are kept: which, how long, and made of what."""

from typing import Any

import pytest

from apportion.core.configuration import read_configuration
from apportion.core.placement import class_cache
from apportion.core.placement.class_cache import ClassCache
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.index.columns import Columns
from apportion_schemas import ConfigurationChanged, PolicyChanged, PricedShape, PricesLearnt
from tests.support.fleet import A100_40, node, rack
from tests.support.fleet import gpu as card
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod

ONE_SHARE = PricedShape(ask=ask(1000), cpu_milli=0, memory_mib=0, pods=1, size=30_000, value=30_000)
PRICES = PricesLearnt(pods=1, shapes=(ONE_SHARE,))
ONE_GROUP = {"group": "g1", "geometries": [{"name": "1g.5gb", "memory": 5120, "count": 7}]}
GEOMETRIES = [{"models": ["A100-SXM4-40GB"], "allowedGeometries": [ONE_GROUP]}]


class Asked:
    """A cache over a ledger's state, asked by the memory of one share."""

    def __init__(self, *payloads: Any) -> None:
        self.ledger = Ledger(*payloads)
        self.columns = Columns(self.ledger.state)
        self.cache = ClassCache(self.ledger.state, self.columns)

    def play(self, data: Any) -> None:
        """Fold one event."""
        change = self.ledger.take(data)
        if change.node is not None:
            self.columns.touch(change.node, change.shares)

    def class_of(self, memory_mib: int) -> PlacementClass:
        """The class of a share of so much memory."""
        about = pod("p", ask(memory_mib))
        return self.cache.class_of(str(memory_mib).encode(), about.shape)


def test_the_class_not_asked_for_longest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was asked for meanwhile stays."""
    monkeypatch.setattr(class_cache, "CLASSES_MAX", 2)
    asked = Asked(rack("n1", 1))
    first, second = asked.class_of(1), asked.class_of(2)
    assert asked.class_of(1) is first
    asked.class_of(3)
    assert asked.class_of(1) is first
    assert asked.class_of(2) is not second


@pytest.mark.parametrize(
    "data",
    [
        PolicyChanged(by="ada", node_policy="spread", device_policy="binpack"),
        PRICES,
        ConfigurationChanged(
            by="ada",
            configuration=read_configuration({"nvidia": {"knownMigGeometries": GEOMETRIES}}),
        ),
    ],
    ids=lambda data: type(data).__name__,
)
def test_what_all_classes_are_made_of_may_change(data: Any) -> None:
    """A class is made anew when it is asked for next, and once."""
    asked = Asked(rack("n1", 1))
    before = asked.class_of(1)
    asked.play(data)
    after = asked.class_of(1)
    assert after is not before
    assert asked.class_of(1) is after


def test_another_kind_of_device_weighs_with_prices() -> None:
    """Tables are of all kinds that there are; without prices nobody asks for tables."""
    asked = Asked(rack("n1", 1))
    before = asked.class_of(1)
    asked.play(node("n2", card("m1", model=A100_40)))
    assert asked.class_of(1) is before
    asked.play(PRICES)
    priced = asked.class_of(1)
    asked.play(node("n3", card("m2", model="Tesla V100-SXM2-32GB")))
    assert asked.class_of(1) is not priced


def test_the_same_geometries_are_no_change() -> None:
    """A configuration that says the same of how cards are cut concerns no class."""
    asked = Asked(rack("n1", 1))
    before = asked.class_of(1)
    asked.play(ConfigurationChanged(by="ada", configuration=read_configuration({})))
    assert asked.class_of(1) is before
