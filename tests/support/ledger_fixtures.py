"""Fixtures for tests that need their own nats-server and ledger."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.facts import Facts
from tests.support.nats import Bus, running_bus


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Run a new nats-server with an empty ledger for one test."""
    async with running_bus(tmp_path / "nats") as running:
        yield running


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Return a reader and writer of the ledger of `bus`."""
    opened = Facts(bus)
    await opened.open()
    return opened
