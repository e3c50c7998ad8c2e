"""Tests that each waiting writer gets an answer if a group commit fails."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from apportion.runtime.ledger.batching import Appended, GroupCommit
from apportion.runtime.ledger.port import LedgerUnavailable
from tests.support.memory_ledger import MemoryLedger, PerfectLink
from tests.support.memory_server import MemoryServer
from tests.support.nats import draft

T = TypeVar("T")


class BreakingLink(PerfectLink):
    """A link to the ledger that fails with an unexpected error when a test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.breaks = asyncio.Event()

    async def ask(self, what: str, act: Callable[[], T]) -> T:  # noqa: ARG002 - is not done
        """Wait for the test's signal, and then fail."""
        self.asked.set()
        await self.breaks.wait()
        raise RuntimeError(what)


async def test_whoever_waits_for_a_place_in_the_queue_of_a_writer_that_fails_is_told() -> None:
    """If a group commit fails, all writers get the error. This includes writers whose events are
    queued and writers that wait for room in the queue."""
    link = BreakingLink()
    ledger = MemoryLedger(MemoryServer(), role="watcher", link=link)

    async def write() -> None:
        async with GroupCommit(ledger, queue_limit=1) as commit, asyncio.timeout(10):
            writers.append(asyncio.ensure_future(commit.append(draft())))
            await link.asked.wait()
            writers.extend(asyncio.ensure_future(commit.append(draft())) for _ in range(3))
            await asyncio.wait(writers, timeout=0)
            assert commit.queued == 1
            link.breaks.set()
            await asyncio.wait(writers)

    writers: list[asyncio.Future[Appended]] = []
    with pytest.raises(RuntimeError, match="append"):
        await write()
    failures = [type(writer.exception()) for writer in writers]
    assert failures == [RuntimeError, RuntimeError, LedgerUnavailable, LedgerUnavailable]
