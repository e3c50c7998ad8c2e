"""Answers agents' read requests, and attests the schedulers' snapshots.

The agent of a node reads the ledger only through an intake. Invariant: requests to the NATS server
are limited overall and per node; a request over the limit is dropped, and the agent retries.

If a forged snapshot lacked a pod, its devices would be allocated twice. So readers use only
attested snapshots. Invariant: an attested snapshot equals the fold from an earlier attested one."""

import asyncio
import contextlib
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from apportion.core.intake.answers import GROUP, may_be_answered, node_of_subject
from apportion.core.intake.sight import (
    STATE,
    SUBJECT,
    SUBJECTS_OF_ALL,
    NotForAgents,
    call_of,
    part_of,
    read_asked,
    refusal,
    shown,
)
from apportion.core.ledger import snapshot
from apportion.core.ledger.state import State
from apportion.runtime.jetstream.snapshots import KEPT, Key, Snapshots, Stored
from apportion.runtime.jetstream.wire import API_TIMEOUT_S, LostReply, Wire
from apportion.runtime.ledger.port import (
    Ledger,
    LedgerError,
    LedgerUnavailable,
    NotPermitted,
    Request,
)
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.ledger.reading import read_to
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.limits import AtOnce, Pace, TooMany

# An agent sends about forty requests at its start, then two every 30 seconds.
EACH_PER_S: Final = 10.0
EACH_BURST: Final = 200.0
# An agent requests its part of the state once after each start; it costs us milliseconds.
PARTS_PER_S: Final = 0.2
PARTS_BURST: Final = 8.0
# Limits on waiting requests: after a restart of the NATS server all agents send at once.
TOGETHER_MAX: Final = 64
WAITING_MAX: Final = 16_384
WAITING_EACH: Final = 4
PART_BYTES_MAX: Final = 760_000  # in base64 this fits in one NATS message
# Wait about two minutes for the server's new permissions, then reconnect.
LISTEN_AGAIN_S: Final = 10.0
LISTEN_TRIES: Final = 16
LOOK_S: Final = 5.0
TRIES_MAX: Final = 3  # attempts to read a snapshot

_log = get_logger(__name__)


class Showing:
    """Answers read requests of agents, for one run of the intake."""

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
            "Agents' requests to read the ledger, by outcome: "
            "answered, unanswered, refused or dropped.",
            ("outcome",),
        )

    async def run(self) -> None:
        """Answer agents until cancelled. Raises the errors of `_listen` as a group."""
        await self._reader.caught_up()
        async with asyncio.TaskGroup() as self._tasks:
            leave = await self._listen()
            try:
                await asyncio.Event().wait()
            finally:
                await leave()

    async def _listen(self) -> Callable[[], Awaitable[None]]:
        for _ in range(LISTEN_TRIES):
            try:
                return await self._ledger.take_requests(SUBJECTS_OF_ALL, self.take, group=GROUP)
            except NotPermitted as error:  # an earlier build's rights, until a new connection
                _log.warning("cannot answer agents' read requests yet", error=str(error))
            await self._clock.pause(LISTEN_AGAIN_S)
        raise LedgerUnavailable("nats-server does not let this intake receive agents' requests")

    def take(self, request: Request) -> None:
        """Start to answer a request, or drop it if it is over a limit."""
        node = node_of_subject(request.subject, SUBJECT)
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
        except RuntimeError:  # this run has not begun or is ending
            work.close()
            self._waiting.leave(node)

    async def _answer(self, node: str, request: Request) -> None:
        try:
            asked = read_asked(request.payload)
            if asked.api == STATE:
                answer = self._part(node)
            else:
                call = call_of(node, asked)
                async with self._together:
                    reply = await self._wire.request(
                        f"$JS.API.{call.api}", call.body, timeout_s=API_TIMEOUT_S, headers={}
                    )
                answer = shown(node, call, reply.data)
        except NotForAgents as error:
            _log.warning("denied an agent's read", node=node, asked=str(error))
            self._count.labels("refused").inc()
            answer = refusal(str(error))
        except (LedgerError, LostReply) as error:
            self._count.labels("unanswered").inc()
            _log.warning("agent's request not answered", node=node, error=str(error))
            return
        else:
            self._count.labels("answered").inc()
        finally:
            self._waiting.leave(node)
        with contextlib.suppress(LedgerUnavailable):  # the agent retries
            await request.answer(answer)

    def _part(self, node: str) -> bytes:
        if self._reader.halted:  # the state may hold half of a change
            raise LedgerUnavailable(self._reader.halted)
        if not self._parts.allows(node):
            raise LedgerUnavailable("the agent requests its state too often")
        data = zlib.compress(snapshot.take(part_of(self._state(), node)), 1)
        if len(data) > PART_BYTES_MAX:
            raise NotForAgents(
                f"the state of {node} has {len(data):,} bytes; the limit is {PART_BYTES_MAX:,}"
            )
        return msgspec.json.encode({"part": data})


class Attesting:
    """Attests snapshots, for one run of the intake."""

    def __init__(
        self,
        ledger: Ledger,
        snapshots: Snapshots,
        reader: Reader[Any],
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._ledger = ledger
        self._snapshots = snapshots
        self._reader = reader
        self._clock = clock
        self._verdicts: dict[Key, bool] = {}
        self._tries: Counter[Key] = Counter()
        self._forged: list[int] = []
        self._gone = False
        self._newest = 0
        metrics.gauge(
            "apportion_snapshots_forged",
            "Number of snapshots that differ from the ledger; /readyz lists them.",
        ).set_function(lambda: len(self._forged))
        metrics.gauge(
            "apportion_snapshots_missing",
            "1 if a snapshot that the intake had verified is missing, else 0.",
        ).set_function(lambda: int(self._gone))
        metrics.gauge(
            "apportion_snapshot_attested_revision",
            "Revision of the newest snapshot that the intake has verified.",
        ).set_function(lambda: self._newest)

    def not_ready(self) -> list[str]:
        """Return a reason for each forged snapshot, and one more if attested snapshots vanished."""
        reasons = [
            f"the snapshot at revision {revision} differs from the ledger; replace the "
            "schedulers' key, then delete the snapshot from the bucket APPORTION_SNAPSHOTS"
            for revision in self._forged
        ]
        if self._gone:
            reasons.append("attested snapshots are missing; the next snapshot clears this")
        return reasons

    async def run(self) -> None:
        """Attest the schedulers' snapshots until cancelled."""
        await self._reader.caught_up()
        while True:
            if not self._reader.halted:
                try:
                    await self.look()
                except LedgerError as trouble:
                    _log.warning("attesting failed, retrying", error=str(trouble))
            await self._clock.pause(LOOK_S)

    async def look(self) -> None:
        """Check new snapshots, and attest those that are correct. Raises LedgerError."""
        written, attested = await self._snapshots.written(), await self._snapshots.attested()
        last = await self._ledger.last_revision()
        forged = [each for each in written if each.revision > last]
        reached = [each for each in written if each.revision <= self._reader.revision]
        sound: set[Key] = set()
        judged = reached[: 2 * KEPT]
        keys = {each.key for each in judged}
        for key in self._verdicts.keys() - keys:
            del self._verdicts[key]
        for key in self._tries.keys() - keys:
            del self._tries[key]
        for each in reversed(judged):
            good = each.key in attested or await self._verdict(each)
            if good:
                sound.add(each.key)
            elif good is False:
                forged.append(each)
        if not sound <= attested:
            await self._snapshots.attest(sound)
        revisions = [each.revision for each in forged]
        if new := sorted(set(revisions) - set(self._forged)):
            _log.critical("forged snapshot ignored", revisions=new)
        self._forged = revisions
        self._gone = not sound and self._newest > 0
        self._newest = max((revision for revision, _ in sound), default=self._newest)

    async def _verdict(self, stored: Stored) -> bool | None:
        """Return True if the snapshot equals the ledger's state, or None if that is unknown."""
        if stored.key not in self._verdicts and self._tries[stored.key] < TRIES_MAX:
            found = await self._snapshots.load(stored)
            if found is None:
                self._tries[stored.key] += 1
                return None
            upto = stored.revision
            cluster = StateFold(await self._snapshots.restore(at_most=upto), quiet=True)
            await read_to(self._ledger, upto, cluster.take, start=cluster.state.revision + 1)
            same = await asyncio.to_thread(_same, found, cluster.state)
            self._verdicts[stored.key] = same
        return self._verdicts.get(stored.key)


def _same(left: State, right: State) -> bool:
    return _bytes(left) == _bytes(right)


# A restored state may have another order, so both sides are restored before they are compared.
def _bytes(state: State) -> bytes:
    return snapshot.take(snapshot.restore(snapshot.take(state)))
