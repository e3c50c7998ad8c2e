"""Price tables that are worked out once in a run, however many readers need them.

A process of its own would work them out for itself; here all schedulers, and the auditor with each
engine that is new to the state, live in one process, and the tables are a third of what a run
costs. Invariant: the tables of equal prices and equal devices are equal, so nobody can tell."""

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
    """Let engines share their tables for the length of a `with`."""
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
        own.prices, own.devices = prices, offered  # an engine asks whether they are its very own
        return own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classes, "PriceTable", price_table)
        patch.setattr(classes, "READ_MAX", 2)  # few nodes, and read in parts all the same
        yield
