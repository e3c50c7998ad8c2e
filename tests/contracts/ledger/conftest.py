"""Fixtures for the tests in this folder. Every test runs twice: against the in-memory ledger and
against nats-server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contracts.ledger.places import (
    LawlessMemory,
    LawlessNats,
    LawlessPlace,
    MemoryPlace,
    NatsPlace,
    Place,
)

FULL_BYTES = 1_000_000


async def _place(kind: str, folder: Path, max_bytes: int) -> Place:
    if kind == "memory":
        return MemoryPlace(max_bytes=max_bytes)
    place = NatsPlace(folder)
    await place.start(max_bytes=max_bytes)
    return place


@pytest.fixture(params=["memory", "nats"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Provide an empty ledger."""
    made = await _place(request.param, tmp_path, -1)
    yield made
    await made.stop()


@pytest.fixture(params=["memory", "nats"])
async def small_place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Provide an empty ledger that holds at most a million bytes."""
    made = await _place(request.param, tmp_path, FULL_BYTES)
    yield made
    await made.stop()


@pytest.fixture(params=["memory", "nats"])
async def lawless(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LawlessPlace]:
    """Provide an empty ledger in which every client has all permissions."""
    made: LawlessMemory | LawlessNats = LawlessMemory()
    if request.param == "nats":
        made = LawlessNats(tmp_path)
        await made.start()
    yield made
    await made.stop()
