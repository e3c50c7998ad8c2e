"""The ledger put together: appends, readers and shared queues over one connection.

Invariant: every append is told to whoever watches, with its outcome and how long it took.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from apportion.runtime.jetstream import following, stream, work_queue
from apportion.runtime.jetstream.appending import Appender
from apportion.runtime.jetstream.wire import LostReply, Message, Wire
from apportion.runtime.ledger.port import (
    ALL_SUBJECTS,
    Draft,
    DuplicateRefused,
    FenceRefused,
    Handler,
    LedgerError,
    LedgerFull,
    LedgerUnavailable,
    OutcomeUnknown,
    Record,
    Request,
    Subscription,
    WorkQueue,
)
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.logs import get_logger

_log = get_logger(__name__)
_acknowledged = logging.getLogger(f"{__name__}.acknowledged")
AppendWatch = Callable[[str, int, float], None]
"""Told of each append: outcome, number of drafts, seconds. Metrics.appended is one."""

_OUTCOMES: dict[type[LedgerError], str] = {
    FenceRefused: "fence",
    DuplicateRefused: "duplicate",
    OutcomeUnknown: "unknown",
    LedgerUnavailable: "unavailable",
    LedgerFull: "full",
}


def unwatched(_outcome: str, _drafts: int, _seconds: float) -> None:
    """What is told of each append where nobody wants to know: nothing."""


class JetStreamLedger:
    """See ledger.Ledger; as `async with` it closes at the end."""

    def __init__(self, wire: Wire, appender: Appender, *, watch: AppendWatch) -> None:
        self._wire = wire
        self._watch = watch
        self._clock = SystemClock()
        self._appender = appender
        self._followers: list[following.Follower] = []
        self._queues: list[work_queue.Queue] = []
        self._held = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def wire(self) -> Wire:
        """The connection, for the stream's own set-up."""
        return self._wire

    @property
    def connected(self) -> bool:
        """Whether the server can be reached at the moment."""
        return self._wire.connected

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """See ledger.Ledger."""
        began = self._clock.monotonic()
        outcome = "ok"
        try:
            if self._held:
                raise LedgerUnavailable(self._held)
            revisions = await self._appender.append(drafts)
        except LedgerError as failure:
            outcome = _OUTCOMES.get(type(failure), "refused")
            raise
        else:
            if _acknowledged.isEnabledFor(logging.DEBUG):
                for revision, draft in zip(revisions, drafts, strict=True):
                    _acknowledged.debug("acknowledged %d %s", revision, draft.id)
            return revisions
        finally:
            self._watch(outcome, len(drafts), self._clock.monotonic() - began)

    async def follow(
        self,
        deliver: Callable[[Record], None],
        *,
        start: int = 1,
        subjects: Sequence[str] = (ALL_SUBJECTS,),
    ) -> Subscription:
        """See ledger.Ledger. Raises LedgerUnavailable, LedgerHole, NotPermitted."""
        follower = following.Follower(self._wire, deliver, start=max(start, 1), subjects=subjects)
        await follower.begin()
        self._followers = [old for old in self._followers if old.running]
        self._followers.append(follower)
        return follower

    async def last_revision(self) -> int:
        """See ledger.Ledger. Raises LedgerUnavailable."""
        return (await stream.read_info(self._wire)).state.last_seq

    async def first_revision(self) -> int:
        """See ledger.Ledger. Raises LedgerUnavailable."""
        return max((await stream.read_info(self._wire)).state.first_seq, 1)

    async def holds(self, drafts: Sequence[Draft]) -> bool:
        """See ledger.Ledger. Raises LedgerUnavailable."""
        return await self._appender.holds(drafts)

    async def last_on_subject(self, subject: str) -> int:
        """See ledger.Ledger. Raises LedgerUnavailable."""
        return await stream.newest_on(self._wire, subject)

    async def record_at(self, revision: int) -> Record | None:
        """See ledger.Ledger. Raises LedgerUnavailable."""
        return await stream.read_record(self._wire, revision)

    async def work_queue(
        self, durable: str, subjects: Sequence[str], *, ack_wait_s: float, max_in_flight: int
    ) -> WorkQueue:
        """See ledger.Ledger. Raises LedgerDrifted, LedgerUnavailable, NotPermitted."""
        queue = await work_queue.open_queue(
            self._wire, durable, subjects, ack_wait_s=ack_wait_s, max_in_flight=max_in_flight
        )
        self._queues.append(queue)
        return queue

    async def look(self) -> stream.Look:
        """What of the stream and of our consumers is not as it must be. Raises LedgerUnavailable.

        A reader whose consumer somebody has changed goes on with a new one.
        """
        info = await stream.read_info(self._wire)
        drifted = stream.stream_drift(info)
        for follower in self._followers:
            drifted += await follower.drift()
        for queue in self._queues:
            drifted += await queue.drift()
        room_bytes = max(info.config.get("max_bytes", 0), 0)
        return stream.Look(tuple(str(each) for each in drifted), info.lost, info.free, room_bytes)

    def hold(self, why: str) -> None:
        """Append nothing, for this reason; the empty one ends it."""
        self._held = why

    async def publish(self, subject: str, payload: bytes) -> None:
        """See ledger.Ledger. Raises LedgerUnavailable."""
        await self._wire.publish(subject, payload, headers={})

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """See ledger.Ledger."""
        try:
            reply = await self._wire.request(subject, payload, timeout_s=timeout_s, headers={})
        except LostReply as lost:
            raise LedgerUnavailable(f"no reply to {subject}: {lost}") from lost
        return reply.data

    async def serve(self, subject: str, handler: Handler) -> None:
        """See ledger.Ledger. Raises LedgerUnavailable, NotPermitted."""

        async def receive(message: Message) -> None:
            try:
                answer = await handler(message.subject, message.data)
                if answer is not None and message.reply:
                    await self._wire.publish(message.reply, answer, headers={})
            except Exception:  # noqa: BLE001
                # One bad message must not end the serving of the next.
                _log.exception("could not answer a message", subject=message.subject)

        await self._wire.subscribe(subject, receive, waits=True)

    async def take_requests(
        self, subject: str, take: Callable[[Request], None], *, group: str
    ) -> Callable[[], Awaitable[None]]:
        """See ledger.Ledger. Raises LedgerUnavailable, NotPermitted."""

        async def receive(message: Message) -> None:
            take(_Request(self._wire, message))

        return await self._wire.subscribe(subject, receive, group=group)

    async def close(self) -> None:
        """See ledger.Ledger."""
        for follower in self._followers:
            await follower.stop()
        await self._wire.close()


class _Request:
    __slots__ = ("_wire", "payload", "reply", "subject")

    def __init__(self, wire: Wire, message: Message) -> None:
        self._wire = wire
        self.subject = message.subject
        self.reply = message.reply
        self.payload = message.data

    async def answer(self, payload: bytes) -> None:
        """See ledger.Request."""
        await self._wire.publish(self.reply, payload, headers={})
