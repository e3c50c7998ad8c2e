"""Simulate a work queue of the in-memory ledger, as NATS implements it: a durable consumer with
explicit acknowledgements.

Invariant: a record leaves the queue only when it is acknowledged. A record that a worker returns,
or does not acknowledge in time, is delivered again with a higher attempt number."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from apportion.runtime.ledger.port import Record
from tests.support.memory_subjects import matches

if TYPE_CHECKING:
    from tests.support.memory_server import MemoryServer


class Handed(NamedTuple):
    """A delivered record, and how often it was delivered."""

    record: Record
    attempt: int


class MemoryQueue:
    """The server's side of one durable queue that several workers share."""

    def __init__(
        self, server: MemoryServer, subjects: list[str], *, ack_wait_s: float, max_in_flight: int
    ) -> None:
        self.subjects = subjects
        self.ack_wait_s = ack_wait_s
        self.max_in_flight = max_in_flight
        self._server = server
        self._cursor = 0
        self._held: dict[int, asyncio.TimerHandle] = {}
        self._again: list[int] = []
        self._attempts: dict[int, int] = {}
        self._done: list[int] = []
        self._waiting: list[asyncio.Future[None]] = []

    def take(self, batch: int) -> list[Handed]:
        """Deliver the records that are due: redeliveries first, then new ones."""
        taken: list[Handed] = []
        while len(taken) < batch and (record := self._next()) is not None:
            attempt = self._attempts.get(record.revision, 0) + 1
            self._attempts[record.revision] = attempt
            self._held[record.revision] = self._timer(record.revision, self.ack_wait_s)
            taken.append(Handed(record, attempt))
        return taken

    def _next(self) -> Record | None:
        if len(self._held) >= self.max_in_flight:
            return None
        if self._again:
            return self._server.records[heapq.heappop(self._again) - 1]
        while self._cursor < self._server.last_revision:
            record = self._server.records[self._cursor]
            self._cursor += 1
            if record is not None and self._wants(record):
                return record
        return None

    def _wants(self, record: Record) -> bool:
        return any(matches(pattern, record.subject) for pattern in self.subjects)

    def _timer(self, revision: int, delay_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, self._expire, revision)

    def _expire(self, revision: int) -> None:
        if self._held.pop(revision, None) is not None:
            heapq.heappush(self._again, revision)
            self.wake()

    def drop(self, last: int) -> None:
        """Forget records up to `last`, which the ledger has dropped."""
        self._cursor = max(self._cursor, last)
        self._again = [revision for revision in self._again if revision > last]
        heapq.heapify(self._again)
        self._done = [revision for revision in self._done if revision > last]
        for revision in [revision for revision in self._held if revision <= last]:
            self._held.pop(revision).cancel()

    def ack(self, revision: int) -> None:
        """Acknowledge a record; any worker may do this."""
        held = self._held.pop(revision, None)
        if held is not None:
            held.cancel()
        elif revision in self._again:
            self._again.remove(revision)
            heapq.heapify(self._again)
        else:
            return
        self._done.append(revision)
        self.wake()

    def restart(self, revision: int, delay_s: float) -> None:
        """Restart a record's redelivery timer with this delay. Any worker may do this."""
        if revision in self._held:
            self._held[revision].cancel()
            self._held[revision] = self._timer(revision, delay_s)

    def forget_acks(self, count: int) -> int:
        """Redeliver the newest `count` acknowledged records, as after a server crash.

        Return the number of redelivered records."""
        forgotten = self._done[-count:]
        del self._done[-count:]
        for revision in forgotten:
            heapq.heappush(self._again, revision)
        self.wake()
        return len(forgotten)

    def hasten(self, choose: Callable[[int], int]) -> bool:
        """Redeliver one unacknowledged record before its timer expires.

        `choose` gets the number of unacknowledged records, and returns the index of the record to
        redeliver. Return False if there are no such records."""
        if not self._held:
            return False
        revision = sorted(self._held)[choose(len(self._held))]
        self._held[revision].cancel()
        self._expire(revision)
        return True

    @property
    def waiting(self) -> int:
        """Return how many records are not acknowledged yet, including undelivered ones."""
        beyond = self._server.records[self._cursor :]
        new = sum(record is not None and self._wants(record) for record in beyond)
        return new + len(self._held) + len(self._again)

    def news(self) -> asyncio.Future[None]:
        """Return a future that is done when there may be a record to deliver."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def wake(self) -> None:
        """Wake the workers that wait for records."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
