"""A reader of the in-memory ledger.

Invariant: each record is delivered once and in revision order. If a record is missing, a reader of
the whole ledger ends with LedgerHole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from apportion.runtime.ledger.port import (
    ALL_SUBJECTS,
    LedgerHole,
    LedgerTrimmed,
    LedgerUnavailable,
    Record,
)
from tests.support.memory_server import MemoryServer
from tests.support.memory_subjects import matches

if TYPE_CHECKING:
    from tests.support.memory_ledger import Link


class MemoryFollower:
    """One reader of the in-memory ledger."""

    def __init__(
        self,
        server: MemoryServer,
        link: Link,
        deliver: Callable[[Record], None],
        *,
        start: int,
        subjects: Sequence[str],
        goal: int,
    ) -> None:
        self.deliver = deliver
        self.position = start - 1
        self._server = server
        self._link = link
        self._subjects = list(subjects)
        self._whole = self._subjects == [ALL_SUBJECTS]
        self._read = start - 1
        self._goal = goal
        self._failure: Exception | None = None
        self._caught_up = asyncio.Event()
        self._news = asyncio.Event()
        self._number = server.on_news(self._news.set)
        self._note_goal()
        self._task = asyncio.create_task(self._run(), name="follow")

    @property
    def stored_ns(self) -> int:
        return 0

    @property
    def stalled(self) -> bool:
        return False

    @property
    def lag(self) -> int:
        return sum(
            record is not None and self._wants(record)
            for record in self._server.records[self._read :]
        )

    async def caught_up(self) -> None:
        waiting = asyncio.ensure_future(self._caught_up.wait())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._caught_up.is_set():
            return
        if self._failure is not None:
            raise self._failure
        raise LedgerUnavailable("stopped reading before the end of the ledger was reached")

    async def join(self) -> None:
        await asyncio.wait({self._task})
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        self._server.forget(self._number)
        self._task.cancel()
        await asyncio.wait({self._task})

    def _wants(self, record: Record) -> bool:
        return self._whole or any(matches(each, record.subject) for each in self._subjects)

    def _note_goal(self) -> None:
        if self._read >= self._goal:
            self._caught_up.set()

    async def _run(self) -> None:
        try:
            while True:
                self._news.clear()
                while self._read < self._server.last_revision:
                    for _ in range(await self._link.carry()):
                        if self._read >= self._server.last_revision:
                            break
                        self._take(self._server.records[self._read])
                await self._news.wait()
        except Exception as failure:  # noqa: BLE001 - handed to whoever joins
            self._failure = failure

    def _take(self, record: Record | None) -> None:
        if self._read + 1 < self._server.first_revision:
            first = self._server.first_revision
            raise LedgerTrimmed("the oldest events were dropped", self._read + 1, first)
        if record is None:
            if self._whole:
                raise LedgerHole("a record is missing", self._read + 1, self._read + 2)
        elif self._wants(record):
            self.deliver(record)
            self.position = record.revision
        self._read += 1
        self._note_goal()
