"""Fixtures for the tests in this folder. Every test runs twice: against the in-memory API server
and against a real kube-apiserver."""

import os
from collections.abc import AsyncIterator

import pytest

from tests.contracts.kube.places import MemoryPlace, Place, real_place
from tests.support.control_plane import REQUIRED, find_binaries
from tests.support.kube_fixtures import control_plane
from tests.support.ledger_fixtures import bus, facts

__all__ = ["bus", "control_plane", "facts"]


@pytest.fixture(params=["memory", "apiserver"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """Provide an empty cluster."""
    if request.param == "memory":
        yield MemoryPlace()
        return
    _, reason = find_binaries()
    if reason and os.environ.get(REQUIRED) != "1":
        pytest.skip(reason)
    async for made in real_place(request.getfixturevalue("control_plane")):
        yield made
