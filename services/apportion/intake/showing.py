"""Agents of one node read the ledger through an intake: each request is judged, asked, answered.

Invariant: as many are asked of the server together as it is to bear, and few of one node wait for
that; what comes beyond is not answered, and its agent asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from apportion.core.intake.answers import GROUP, may_be_answered
from apportion.core.intake.sight import (
    STATE,
    SUBJECTS_OF_ALL,
    Asked,
    NotForAgents,
    call_of,
    node_of_subject,
    part_of,
    read_asked,
    refusal,
    shown,
)
from apportion.core.ledger import snapshot
from apportion.core.ledger.state import State
from apportion.runtime.jetstream.wire import API_TIMEOUT_S, LostReply, Wire
from apportion.runtime.ledger.port import (
    Ledger,
    LedgerError,
    LedgerUnavailable,
    NotPermitted,
    Request,
)
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.limits import AtOnce, Pace, TooMany

EACH_PER_S: Final = 10.0
EACH_BURST: Final = 200.0
"""An agent that begins asks some forty times, and then twice in half a minute."""
PARTS_PER_S: Final = 0.2
PARTS_BURST: Final = 8.0
"""For its part of the state, which costs milliseconds, an agent asks once in each life."""
TOGETHER_MAX: Final = 64
WAITING_MAX: Final = 16_384
WAITING_EACH: Final = 4
"""Requests that wait, of all nodes and of each: after a restart of the server all agents ask."""
PART_BYTES_MAX: Final = 760_000
"""In base 64 it is one message."""
LISTEN_AGAIN_S: Final = 10.0
LISTEN_TRIES: Final = 16
"""For two minutes an intake waits for the server's new rules, then it connects again."""

_log = get_logger(__name__)


class Showing:
    """What one life of an intake answers to agents that read."""

    def __init__(
        self,
        state: Callable[[], State],
        reader: Reader[Any],
        ledger: Ledger,
        wire: Wire,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._state = state
        self._reader = reader
        self._ledger = ledger
        self._wire = wire
        self._clock = clock
        self._pace = Pace(EACH_PER_S, EACH_BURST, now=clock.monotonic)
        self._parts = Pace(PARTS_PER_S, PARTS_BURST, now=clock.monotonic)
        self._waiting = AtOnce(WAITING_MAX, each=WAITING_EACH)
        self._together = asyncio.Semaphore(TOGETHER_MAX)
        self._tasks: asyncio.TaskGroup | None = None
        self._count = metrics.counter(
            "apportion_intake_reads_total",
            "Requests of agents that read through the intake, by what became of them.",
            ("outcome",),
        )

    async def run(self) -> None:
        """Answer agents, once the ledger is read, until cancelled.

        Raises a group with what `_listen` raises.
        """
        await self._reader.caught_up()
        async with asyncio.TaskGroup() as self._tasks:
            leave = await self._listen()
            try:
                await asyncio.Event().wait()
            finally:
                await leave()

    async def _listen(self) -> Callable[[], Awaitable[None]]:
        """Listen to agents, and return what ends it.

        Raises LedgerUnavailable: the rules of an earlier build forbid it. A callout gives the new
        ones to a new connection only.
        """
        for _ in range(LISTEN_TRIES):
            try:
                return await self._ledger.take_requests(SUBJECTS_OF_ALL, self.take, group=GROUP)
            except NotPermitted as error:
                _log.warning("agents cannot read through this intake yet", error=str(error))
            await self._clock.pause(LISTEN_AGAIN_S)
        raise LedgerUnavailable("the server does not let this intake listen to agents that read")

    def take(self, request: Request) -> None:
        """Answer one request beside the others, or drop it."""
        node = node_of_subject(request.subject)
        if not (node and may_be_answered(request.reply) and self._pace.allows(node)):
            self._count.labels("dropped").inc()
            return
        try:
            self._waiting.enter(node)
        except TooMany:
            self._count.labels("dropped").inc()
            return
        work = self._answer(node, request)
        try:
            if self._tasks is None:
                raise RuntimeError
            self._tasks.create_task(work, name=f"reading of {node}")
        except RuntimeError:  # this life ends
            work.close()
            self._waiting.leave(node)

    async def _answer(self, node: str, request: Request) -> None:
        try:
            asked = read_asked(request.payload)
            answer = self._part(node) if asked.api == STATE else await self._asked(node, asked)
        except NotForAgents as error:
            _log.warning("an agent asked for what it may not read", node=node, asked=str(error))
            self._count.labels("refused").inc()
            answer = refusal(str(error))
        except (LedgerError, LostReply) as error:
            self._count.labels("unanswered").inc()
            _log.warning("an agent's request got no answer", node=node, error=str(error))
            return
        else:
            self._count.labels("answered").inc()
        finally:
            self._waiting.leave(node)
        with contextlib.suppress(LedgerUnavailable):  # it asks again
            await request.answer(answer)

    async def _asked(self, node: str, asked: Asked) -> bytes:
        """Raises NotForAgents, LedgerError."""
        call = call_of(node, asked)
        async with self._together:
            reply = await self._wire.request(
                f"$JS.API.{call.api}", call.body, timeout_s=API_TIMEOUT_S, headers={}
            )
        return shown(node, call, reply.data)

    def _part(self, node: str) -> bytes:
        """Raises NotForAgents, LedgerUnavailable."""
        if self._reader.halted:  # the state may hold half of a change
            raise LedgerUnavailable(self._reader.halted)
        if not self._parts.allows(node):
            raise LedgerUnavailable("it asked for its part of the state too often")
        data = zlib.compress(snapshot.take(part_of(self._state(), node)), 1)
        if len(data) > PART_BYTES_MAX:
            raise NotForAgents(f"the state of {node} has {len(data)} bytes, over {PART_BYTES_MAX}")
        return msgspec.json.encode({"part": data})
