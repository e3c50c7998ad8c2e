"""Simulate the ledger in memory: a server, its connections, and the network between them.

Invariant: one contract suite passes against this module and nats-server, so that results of the
simulation hold for the real ledger."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from apportion.runtime.jetstream.wire import LostReply
from apportion.runtime.ledger.batching import check_batch
from apportion.runtime.ledger.port import (
    ALL_SUBJECTS,
    Delivery,
    Draft,
    Handler,
    LedgerHole,
    LedgerUnavailable,
    NotPermitted,
    OutcomeUnknown,
    Record,
    Request,
    Subscription,
    WorkQueue,
)
from tests.support.memory_follower import MemoryFollower
from tests.support.memory_queue import Handed, MemoryQueue
from tests.support.memory_server import MemoryServer, Take

T = TypeVar("T")


class Link(Protocol):
    """The simulated network between one connection and the server."""

    async def ask(self, what: str, act: Callable[[], T]) -> T:
        """Let the server run `act` once, several times or never, and return its answer.

        Raises what `act` raises. Raises LedgerUnavailable if the request was not sent, and
        LostReply if the answer was lost."""

    async def send(self, what: str, act: Callable[[], object]) -> None:
        """Let the server run `act`, without an answer. The message may be lost.

        Raises LedgerUnavailable if the message was not sent."""

    async def carry(self) -> int:
        """Wait until the link can deliver records, and return how many it can deliver at once."""


class PerfectLink:
    """A network that loses nothing and takes no time."""

    async def ask(self, what: str, act: Callable[[], T]) -> T:  # noqa: ARG002 - all alike
        await asyncio.sleep(0)
        return act()

    async def send(self, what: str, act: Callable[[], object]) -> None:  # noqa: ARG002 - all alike
        await asyncio.sleep(0)
        act()

    async def carry(self) -> int:
        await asyncio.sleep(0)
        return 256


class MemoryLedger:
    """One connection to the in-memory ledger, in one role."""

    def __init__(
        self, server: MemoryServer, *, role: str, writer: str = "", link: Link | None = None
    ) -> None:
        self.server = server
        self.role = role
        self.writer = writer or role
        self.followers: list[MemoryFollower] = []
        self._link: Link = link or PerfectLink()
        self._served: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        if not drafts:
            return []
        fences = check_batch(drafts)
        kept = list(drafts)
        try:
            return await self.ask(
                "append",
                lambda: self.server.append(kept, fences, role=self.role, writer=self.writer),
            )
        except LostReply as lost:
            raise OutcomeUnknown([draft.subject for draft in drafts], str(lost)) from lost

    async def follow(
        self,
        deliver: Callable[[Record], None],
        *,
        start: int = 1,
        subjects: Sequence[str] = (ALL_SUBJECTS,),
    ) -> Subscription:
        last = await self._question("follow", lambda: self.server.last_revision)
        if last < start - 1:
            raise LedgerHole("the newest revision moved back", start - 1, last)
        follower = MemoryFollower(
            self.server, self._link, deliver, start=max(start, 1), subjects=subjects, goal=last
        )
        self.followers.append(follower)
        return follower

    async def last_revision(self) -> int:
        return await self._question("last revision", lambda: self.server.last_revision)

    async def first_revision(self) -> int:
        return await self._question("first revision", lambda: self.server.first_revision)

    async def holds(self, drafts: Sequence[Draft]) -> bool:
        kept = list(drafts)
        return await self._question("holds", lambda: self.server.holds(kept))

    async def last_on_subject(self, subject: str) -> int:
        return await self._question("last on subject", lambda: self.server.last_on_subject(subject))

    async def record_at(self, revision: int) -> Record | None:
        return await self._question("record at", lambda: self.server.record_at(revision))

    async def work_queue(
        self, durable: str, subjects: Sequence[str], *, ack_wait_s: float, max_in_flight: int
    ) -> WorkQueue:
        if durable == "binder" != self.role:
            raise NotPermitted(f"the server forbids user {self.role!r} to open queue {durable}")
        queue = await self._question(
            "open queue",
            lambda: self.server.queue(
                durable, subjects, ack_wait_s=ack_wait_s, max_in_flight=max_in_flight
            ),
        )
        return _Worker(self, queue)

    async def publish(self, subject: str, payload: bytes) -> None:
        await self.send("publish", lambda: self.server.send(subject, payload))

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        if subject.startswith("apportion.command.") and self.role != "operator":
            raise NotPermitted(f"the server forbids user {self.role!r} to send to {subject}")
        if subject.startswith("apportion.intake.") and self.role != "agent":
            raise NotPermitted(f"the server forbids user {self.role!r} to send to {subject}")
        inbox = f"_INBOX_{self.role}.1"
        reply = await self._question(
            "request", lambda: self.server.send(subject, payload, reply=inbox)
        )
        if reply is None:
            raise LedgerUnavailable(f"no service answers {subject}")
        try:
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            raise LedgerUnavailable(
                f"no reply to {subject}: no answer within {timeout_s:g} s"
            ) from None

    async def serve(self, subject: str, handler: Handler) -> None:
        def take(found: str, payload: bytes, _inbox: str) -> asyncio.Future[bytes]:
            reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self.spawn(_answer(handler, found, payload, reply, self._link))
            return reply

        await self._listen(subject, take)

    async def take_requests(
        self, subject: str, take: Callable[[Request], None], *, group: str
    ) -> Callable[[], Awaitable[None]]:
        def hand_over(found: str, payload: bytes, inbox: str) -> asyncio.Future[bytes]:
            reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            request = _Asked(found, inbox, payload, reply, self)
            self.spawn(_hand_over(take, request, self._link))
            return reply

        await self._listen(subject, hand_over, group)
        number = self._served[-1]

        async def end() -> None:
            self.server.handlers.pop(number, None)

        return end

    async def _listen(self, subject: str, take: Take, group: str = "") -> None:
        def listen() -> None:
            if not self._closed:  # a closed connection has taken its subscriptions with it
                self._served.append(self.server.serve(subject, take, group=group))

        await self._question("serve", listen)

    async def close(self) -> None:
        self.vanish()
        for follower in self.followers:
            await follower.stop()

    def vanish(self) -> None:
        """Close the connection as the server does when its client's process disappears."""
        self._closed = True
        for number in self._served:
            self.server.handlers.pop(number, None)
        for task in list(self._tasks):
            task.cancel()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that is cancelled when this connection closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ask(self, what: str, act: Callable[[], T]) -> T:
        """Call `Link.ask`. Raises LedgerUnavailable once this connection is closed."""
        self._check_open()
        return await self._link.ask(what, act)

    async def send(self, what: str, act: Callable[[], object]) -> None:
        """Call `Link.send`. Raises LedgerUnavailable once this connection is closed."""
        self._check_open()
        await self._link.send(what, act)

    async def _question(self, what: str, act: Callable[[], T]) -> T:
        """Send a request that the caller may repeat. A lost answer raises LedgerUnavailable."""
        try:
            return await self.ask(what, act)
        except LostReply as lost:
            raise LedgerUnavailable(f"no answer to {what}: {lost}") from lost

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerUnavailable("the connection is closed")


async def _answer(
    handler: Handler, subject: str, payload: bytes, reply: asyncio.Future[bytes], link: Link
) -> None:
    await link.carry()
    try:
        answer = await handler(subject, payload)
    except Exception:  # noqa: BLE001 - one bad message must not end the serving of the next
        return

    def arrive() -> None:
        if answer is not None and not reply.done():
            reply.set_result(answer)

    with contextlib.suppress(LedgerUnavailable):
        await link.send("reply", arrive)


async def _hand_over(take: Callable[[Request], None], request: Request, link: Link) -> None:
    await link.carry()
    take(request)


class _Asked:
    """A request that a client sent over the in-memory ledger."""

    def __init__(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        waiting: asyncio.Future[bytes],
        ledger: MemoryLedger,
    ) -> None:
        self.subject = subject
        self.reply = reply
        self.payload = payload
        self._waiting = waiting
        self._ledger = ledger

    async def answer(self, payload: bytes) -> None:
        def arrive() -> None:
            if not self._waiting.done():
                self._waiting.set_result(payload)

        await self._ledger.send("reply", arrive)


class _Worker:
    """A worker that takes records from a shared queue over one connection. It implements
    `WorkQueue` of the ledger's interface."""

    def __init__(self, ledger: MemoryLedger, queue: MemoryQueue) -> None:
        self._ledger = ledger
        self._queue = queue

    async def fetch(self, batch: int, timeout_s: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while True:
            news = self._queue.news()
            try:
                taken = await self._ledger.ask("fetch", lambda: self._queue.take(batch))
            except LostReply:
                return []  # taken records are redelivered when their time is up
            left_s = end - loop.time()
            if taken or left_s <= 0:
                return [_MemoryDelivery(self._ledger, self._queue, handed) for handed in taken]
            await asyncio.wait({news}, timeout=left_s)

    async def leave(self) -> None:
        """Leave the queue. The worker has no records to give back."""

    async def waiting(self) -> int:
        try:
            return await self._ledger.ask("queue info", lambda: self._queue.waiting)
        except LostReply as lost:
            raise LedgerUnavailable(str(lost)) from lost


class _MemoryDelivery:
    """A delivered record; implements `Delivery` of the ledger's interface.

    Its hash depends only on its content, so that sets of deliveries have the same order in every
    run."""

    def __init__(self, ledger: MemoryLedger, queue: MemoryQueue, handed: Handed) -> None:
        self.record, self.attempt = handed
        self._ledger = ledger
        self._queue = queue

    def __hash__(self) -> int:
        return self.record.revision

    def __eq__(self, other: object) -> bool:
        return self is other

    async def ack(self) -> None:
        revision = self.record.revision
        try:
            await self._ledger.ask("ack", lambda: self._queue.ack(revision))
        except LostReply as lost:
            raise LedgerUnavailable(
                f"the acknowledgement of revision {revision} was lost ({lost})"
            ) from lost

    async def retry(self, delay_s: float) -> None:
        revision = self.record.revision
        await self._ledger.send("retry", lambda: self._queue.restart(revision, delay_s))

    async def progress(self) -> None:
        revision, wait_s = self.record.revision, self._queue.ack_wait_s
        await self._ledger.send("progress", lambda: self._queue.restart(revision, wait_s))
