"""A fresh server with the ledger's stream for every test of this folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.nats import Bus, Proxy, running_bus


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a running NATS server with the ledger's stream."""
    async with running_bus(tmp_path / "data") as running:
        yield running


@pytest.fixture
async def proxy(bus: Bus) -> AsyncIterator[Proxy]:
    """Provide a proxy in front of the NATS server."""
    between = Proxy(bus.server.port)
    await between.start()
    yield between
    await between.stop()
