"""Simulate the ledger's server in memory: the stream, its queues, and plain messages.

One contract suite runs against this server and nats-server. Invariants: an append is stored whole
or not at all. Revisions count from 1 without a gap. An id is accepted once within the duplicate
window. An append can name the last revision of a subject, and is refused if that is outdated."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from apportion.runtime.jetstream.stream import DUPLICATE_WINDOW_S
from apportion.runtime.ledger.batching import is_same
from apportion.runtime.ledger.port import (
    Draft,
    DuplicateRefused,
    FenceRefused,
    LedgerDrifted,
    LedgerFull,
    NotPermitted,
    Record,
)
from apportion_schemas import CATALOGUE
from tests.support.memory_queue import MemoryQueue
from tests.support.memory_subjects import matches

STANDALONE_CHANNELS = {"workload", "cluster"}
"""Channels that the operator may also write to if there is no Kubernetes to watch."""
STORED_OVERHEAD_BYTES = 64
"""The approximate size that the server stores for an event in addition to its content."""
EVENT_DEPTH = 3  # tokens before the name: apportion, v1, the channel

WRITERS = {
    row.channel: {other.appender for other in CATALOGUE if other.channel == row.channel}
    | ({"operator"} if row.channel in STANDALONE_CHANNELS else set())
    for row in CATALOGUE
}


Take = Callable[[str, bytes, str], asyncio.Future[bytes]]
"""Handles a plain message (subject, payload, reply subject). The answer may never come."""


class Stored(NamedTuple):
    """One stored append: its records and ids, and the role and name of their writer."""

    records: list[Record]
    ids: list[str]
    role: str
    writer: str


class MemoryServer:
    """The in-memory NATS server: one stream, and what all connections share."""

    def __init__(
        self, *, max_bytes: int = -1, duplicate_window_s: float = DUPLICATE_WINDOW_S
    ) -> None:
        self.records: list[Record | None] = []
        self.ids: list[str] = []
        self.queues: dict[str, MemoryQueue] = {}
        self.handlers: dict[int, tuple[str, str, Take]] = {}
        self.bytes = 0
        self.full = False  # Simulates a full disk.
        self.first_revision = 1
        self._max_bytes = max_bytes
        self._window_s = duplicate_window_s
        self._on_subject: dict[str, list[int]] = {}
        self._taken: dict[str, int] = {}
        self._ages: deque[tuple[float, str]] = deque()
        self._watchers: list[Callable[[Stored], None]] = []
        self._news: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count(1)
        self._sent = 0

    @property
    def last_revision(self) -> int:
        return len(self.records)

    def last_on_subject(self, subject: str) -> int:
        """Return the newest revision on one subject, or 0 if there is none or it was dropped."""
        last = self._on_subject.get(subject, [0])[-1]
        return last if last >= self.first_revision else 0

    def record_at(self, revision: int) -> Record | None:
        """Return the record at that revision, or None if it does not exist."""
        return self.records[revision - 1] if 0 < revision <= len(self.records) else None

    def drop(self, last: int) -> None:
        """Drop all records up to revision `last`, as `apportion ledger trim` does."""
        for revision in range(self.first_revision, last + 1):
            self.records[revision - 1] = None
        self.first_revision = max(self.first_revision, last + 1)
        for queue in self.queues.values():
            queue.drop(last)

    def lose_subject(self, subject: str) -> None:
        """Forget the last revision of this subject."""
        self._on_subject.pop(subject, None)

    def watch(self, call: Callable[[Stored], None]) -> None:
        """Call `call` with every later append, as soon as it is stored."""
        self._watchers.append(call)

    def on_news(self, call: Callable[[], None]) -> int:
        """Call `call` after every later append.

        Return a number; `forget` with that number ends the calls."""
        number = next(self._numbers)
        self._news[number] = call
        return number

    def forget(self, number: int) -> None:
        """Stop the calls that `on_news` registered under this number."""
        self._news.pop(number, None)

    # ------------------------------------------------------------------ appending

    def append(
        self, drafts: Sequence[Draft], fences: dict[str, int], *, role: str, writer: str
    ) -> list[int]:
        """Store all drafts or none.

        Raises the errors that a real ledger's `append` raises if the server refuses."""
        for draft in drafts:
            check_writer(role, draft.subject)
        self._check_window(drafts, fences)
        size = sum(
            len(d.payload) + len(d.subject) + len(d.id) + STORED_OVERHEAD_BYTES for d in drafts
        )
        if self.full or 0 <= self._max_bytes < self.bytes + size:
            raise LedgerFull("maximum bytes exceeded (10077)")
        self.bytes += size
        return self._store(drafts, role, writer)

    def _check_window(self, drafts: Sequence[Draft], fences: dict[str, int]) -> None:
        """Check fences and duplicate ids in the server's order.

        For a single draft, the server checks the fence first; for a batch, it checks the ids first.
        """
        self._forget_old_ids()
        if len(drafts) == 1:
            self._check_fences(fences, drafts[0])
            revision = self._taken.get(drafts[0].id)
            if revision is not None:
                raise self._duplicate(drafts[0], revision)
            return
        if any(draft.id in self._taken for draft in drafts):
            raise DuplicateRefused([draft.id for draft in drafts])
        self._check_fences(fences)

    def _duplicate(self, draft: Draft, revision: int) -> DuplicateRefused:
        found = self.records[revision - 1]
        same = found is None or is_same(draft, found.subject, found.payload)
        return DuplicateRefused((draft.id,), revision, same=same)

    def holds(self, drafts: Sequence[Draft]) -> bool:
        """Implement `Ledger.holds`: return True if these drafts are stored as one append."""
        wanted = [draft.id for draft in drafts]
        for first in self._on_subject.get(drafts[0].subject, []):
            if self.ids[first - 1 : first - 1 + len(wanted)] == wanted:
                return all(self._duplicate(each, at).same for at, each in enumerate(drafts, first))
        return False

    def _check_fences(self, fences: dict[str, int], lone: Draft | None = None) -> None:
        for subject, expected in fences.items():
            found = self.last_on_subject(subject)
            if found == expected:
                continue
            behind = [r for r in self._on_subject.get(subject, []) if r > expected][:1]
            if behind and lone and self.ids[behind[0] - 1] == lone.id:
                raise self._duplicate(lone, behind[0])
            raise FenceRefused(subject, expected, found)

    def _forget_old_ids(self) -> None:
        oldest = asyncio.get_running_loop().time() - self._window_s
        while self._ages and self._ages[0][0] < oldest:
            del self._taken[self._ages.popleft()[1]]

    def _store(self, drafts: Sequence[Draft], role: str, writer: str) -> list[int]:
        now = asyncio.get_running_loop().time()
        records = []
        for draft in drafts:
            record = Record(len(self.records) + 1, draft.subject, draft.payload)
            records.append(record)
            self.records.append(record)
            self.ids.append(draft.id)
            self._on_subject.setdefault(draft.subject, []).append(record.revision)
            self._taken[draft.id] = record.revision
            self._ages.append((now, draft.id))
        stored = Stored(records, [draft.id for draft in drafts], role, writer)
        for watcher in self._watchers:
            watcher(stored)
        for call in list(self._news.values()):
            call()
        return [record.revision for record in records]

    def lose(self, revision: int) -> None:
        """Delete a single record from the stream. On a real ledger, only an administrator with too
        many permissions could do this."""
        self.records[revision - 1] = None

    # ------------------------------------------------------------------ queues and messages

    def queue(
        self, durable: str, subjects: Sequence[str], *, ack_wait_s: float, max_in_flight: int
    ) -> MemoryQueue:
        """Return the shared queue with this name, which is created on first use.

        Raises LedgerDrifted if it exists with other settings."""
        queue = self.queues.get(durable)
        if queue is None:
            queue = MemoryQueue(
                self, list(subjects), ack_wait_s=ack_wait_s, max_in_flight=max_in_flight
            )
            self.queues[durable] = queue
            self.on_news(queue.wake)
        for setting, found, wanted in (
            ("ack_wait", int(queue.ack_wait_s * 1e9), int(ack_wait_s * 1e9)),
            ("max_ack_pending", queue.max_in_flight, max_in_flight),
            ("filter_subjects", queue.subjects, list(subjects)),
        ):
            if found != wanted:
                raise LedgerDrifted(f"consumer {durable} {setting}", found, wanted)
        return queue

    def serve(self, pattern: str, take: Take, *, group: str = "") -> int:
        """Deliver plain messages that match `pattern` to `take`. Return the subscription's number.

        Of all subscribers in a `group`, only one receives each message."""
        number = next(self._numbers)
        self.handlers[number] = (pattern, group, take)
        return number

    def send(
        self, subject: str, payload: bytes, *, reply: str = ""
    ) -> asyncio.Future[bytes] | None:
        """Deliver a plain message. Return a future for the reply, or None if no client listens."""
        grouped: dict[str, list[Take]] = {}
        takes: list[Take] = []
        for pattern, group, take in self.handlers.values():
            if matches(pattern, subject):
                (grouped.setdefault(group, []) if group else takes).append(take)
        for members in grouped.values():
            self._sent += 1
            takes.append(members[self._sent % len(members)])
        replies = [take(subject, payload, reply) for take in takes]
        return replies[0] if replies else None


def check_writer(role: str, subject: str) -> None:
    """Raise NotPermitted unless nats.conf permits this role to append to the subject."""
    channel = subject.split(".")[EVENT_DEPTH - 1]
    if role not in WRITERS.get(channel, ()):
        raise NotPermitted(f"the server forbids user {role!r} to send to {subject}")
