"""The classes that somebody asks for, each kept until it is the one not asked for longest.

What a class is made of may change: the policy, the prices, the kinds of device that there are, how
cards may be cut. A class follows when it is asked for again. So an event that concerns all classes
costs nothing by itself, and each decision pays for the classes that it needs. What they share, the
prices, is made ready before (`prepare`).

`looks` counts what that costs, so that whoever asks for many may stop in time.

Invariant: `class_of` answers as a class that is made of the state as it is now.
"""

from collections.abc import Callable
from typing import Final

from apportion.core.ledger.state import State
from apportion.core.placement.affinity.relations import Relations
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.pricing.price_table import PriceTable
from apportion.core.placement.scores import WEIGH_SHAPES
from apportion.core.placement.volumes import VolumeNeeds
from apportion_schemas import Shape

CLASSES_MAX: Final = 512  # shapes kept indexed
READ_MAX: Final = 2_500  # nodes that a decision reads by new prices


class ClassCache:
    """The classes over one state; `looks` is what asking has cost, see `PlacementClass.refresh`."""

    def __init__(self, state: State, columns: Columns) -> None:
        self._state = state
        self._columns = columns
        self._classes: dict[bytes, PlacementClass] = {}
        self._price_table: PriceTable | None = None
        self._weighs_shapes = False  # whether any class ever did
        self.looks: Int64 = 0

    def prepare(self) -> bool:
        """Get new prices ready for the classes that weigh by them, a part at a time; whether it is
        done.

        Whoever asks for such a class before waits until it is.
        """
        if not self._weighs_shapes and self._state.policy.node_policy not in WEIGH_SHAPES:
            return True
        self._columns.sync()
        price_table = self._price_table_now()
        return price_table is None or price_table.prepare(self._columns, READ_MAX)

    def class_of(
        self,
        key: bytes,
        shape: Shape,
        relate: Callable[[], Relations] | None = None,
        without: frozenset[int] = frozenset(),
        volumes: VolumeNeeds | None = None,
    ) -> PlacementClass:
        """The class of this key, up to date; one that is not kept is made of the other arguments.

        They are those of `PlacementClass`, `relate` makes its relations. Equal keys mean equal
        arguments.
        """
        columns = self._columns
        columns.sync()
        policy, price_table = self._state.policy, None
        if (shape.node_policy or policy.node_policy) in WEIGH_SHAPES:
            self._weighs_shapes = True
            price_table = self._price_table_now()
        found: PlacementClass | None = self._classes.pop(key, None)
        if found is not None:
            found.follow(policy, price_table, columns.geometries)
        else:
            found = PlacementClass(
                shape,
                policy,
                price_table,
                columns.geometries,
                relations=None if relate is None else relate(),
                volumes=volumes,
                without=without,
            )
            if len(self._classes) >= CLASSES_MAX:
                del self._classes[next(iter(self._classes))]
        self._classes[key] = found  # the one asked for last comes last
        self.looks += found.refresh(columns)
        return found

    def _price_table_now(self) -> PriceTable | None:
        prices = self._state.prices
        if prices is None:
            return None
        offered = self._columns.offered()
        if self._price_table is None or not self._price_table.covers(prices, offered):
            self._price_table = PriceTable(prices, offered, self._price_table)
        return self._price_table
