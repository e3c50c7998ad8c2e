"""Fixtures with a ledger and the fake kubelet of one node. The tests themselves append the events
of scheduler and binder."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.fake_kubelet import FakeKubelet


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provide a folder with a short path, because a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kubelet") as name:
        yield Path(name)


@pytest.fixture
async def kubelet(folder: Path) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(folder) as running:
        yield running
