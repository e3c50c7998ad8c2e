"""A cache of price tables that all schedulers of a run share.

In production, every process computes its own tables. Here, computing them separately would take a
third of a run's time. Equal prices and devices give equal tables, so sharing changes no result."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from apportion.core.placement import classes
from apportion.core.placement.pricing.price_table import PriceTable
from apportion_schemas import Device, PricesLearnt

_encode = msgspec.msgpack.Encoder().encode


@contextmanager
def shared_price_tables() -> Iterator[None]:
    """Let all engines share their price tables until the block ends."""
    made: dict[tuple[bytes, bytes], PriceTable] = {}

    def price_table(
        prices: PricesLearnt, offered: list[Device | None], before: PriceTable | None = None
    ) -> PriceTable:
        del before
        key = (_encode(prices), _encode(offered))
        if key not in made:
            made[key] = PriceTable(prices, offered)
            made[key].learn()
        own = copy.copy(made[key])
        own.prices, own.devices = prices, offered  # an engine compares these by identity
        return own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classes, "PriceTable", price_table)
        patch.setattr(classes, "READ_MAX", 2)  # few nodes, but still read in parts
        yield
