"""The services as simulated processes, which run real code and can be killed and restarted.

A process can be killed at any `await`. Invariant: a killed process has no further effect, because
its link dies before its tasks are cancelled. The restarted process has no memory."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from apportion.core.placement.engine import DecisionEvent
from apportion.core.placement.queueing.sharding import Shard, shard
from apportion.runtime.jetstream.wire import LostReply
from apportion.runtime.ledger.membership import Membership
from apportion.runtime.ledger.port import (
    ALL_SUBJECTS,
    Draft,
    Handler,
    Ledger,
    LedgerTrimmed,
    LedgerUnavailable,
    Record,
    Subscription,
)
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.config import Address, ServiceConfig
from apportion.runtime.service import lifecycle
from apportion.runtime.service.lifecycle import Service
from apportion_schemas import LimitsChecked, decode
from tests.simulation.clocks import SkewedClock
from tests.simulation.kube_network import KubeAccess
from tests.simulation.network import FaultyLink
from tests.simulation.snapshots import MemorySnapshots, Shelf
from tests.simulation.weather import Weather
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer

CONFIG = ServiceConfig(
    nats_url="nats://memory:1",
    health=Address("127.0.0.1", 0),
    log_level="warning",
    log_format="console",
    stop_timeout_s=20.0,
)
SKEW_MAX_S = 300.0
Body = Callable[[Service], Coroutine[Any, Any, None]]
Complain = Callable[[str], None]
Folded = Callable[[str, StateFold, int], None]
"""Called with each record that a reader of the whole cluster folded: reader, fold, revision."""


class SimulatedService(Service):
    """A service that reports its unexpected errors to the run, and then restarts as usual."""

    def __init__(
        self, name: str, *, clock: SkewedClock, connect: lifecycle.Connect, complain: Complain
    ) -> None:
        super().__init__(name, CONFIG, clock=clock, connect=connect)
        self._complain = complain

    async def run_body(self, main: Body) -> None:
        """Run the service's body, and report unexpected errors to the run."""
        try:
            await super().run_body(main)
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            leaves = (
                lifecycle._leaves(failure) if isinstance(failure, BaseExceptionGroup) else [failure]
            )
            for leaf in leaves:
                if not isinstance(leaf, LedgerUnavailable | LedgerTrimmed | asyncio.CancelledError):
                    self._complain(f"unexpected error: {type(leaf).__name__}: {leaf}")
            raise


class SimulatedLedger(MemoryLedger):
    """A process's connection to the ledger, which also tracks what the process has folded."""

    folds: list[tuple[Reader[Any], StateFold]]
    told: Folded
    complain: Complain
    snapshots: MemorySnapshots
    shards: dict[bytes, Shard]
    membership: Membership | None = None
    acknowledged = 0
    basis = -1

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append the drafts. Report a problem if the process has not folded its previous decision.

        Appends with the same basis belong to one decision."""
        first = decode(drafts[0].payload, subject=drafts[0].subject)
        decides = isinstance(first.data, DecisionEvent | LimitsChecked)
        if decides and first.basis < self.acknowledged and first.basis != self.basis:
            self.complain(f"decided at {first.basis}, before its own at {self.acknowledged}")
        if decides and self.membership is not None:
            one = self.membership
            self.shards[drafts[0].payload] = shard(one.member, one.members)
        revisions = await super().append(drafts)
        if decides:
            self.acknowledged, self.basis = revisions[-1], first.basis
        return revisions

    async def serve(self, subject: str, handler: Handler) -> None:
        listener = getattr(handler, "__self__", None)
        if isinstance(listener, Membership):
            self.membership = listener
        await super().serve(subject, handler)

    async def follow(
        self,
        deliver: Callable[[Record], None],
        *,
        start: int = 1,
        subjects: Sequence[str] = (ALL_SUBJECTS,),
    ) -> Subscription:
        reader = getattr(deliver, "__self__", None)
        into = getattr(reader, "_fold", None)
        if not isinstance(reader, Reader) or not isinstance(into, StateFold):
            return await super().follow(deliver, start=start, subjects=subjects)
        self.folds.append((reader, into))

        def taken(record: Record) -> None:
            deliver(record)
            self.told(self.writer, into, record.revision)

        return await super().follow(taken, start=start, subjects=subjects)


class Process:
    """A simulated process of one service.

    It has a name, a role on the ledger, and a body: the function that it runs."""

    def __init__(
        self,
        name: str,
        role: str,
        body: Body,
        *,
        server: MemoryServer,
        weather: Weather,
        shelf: Shelf,
        complain: Complain,
        told: Folded,
        shards: dict[bytes, Shard],
        connections: Counter[str],
        access: KubeAccess | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.folds: list[tuple[Reader[Any], StateFold]] = []
        self._body = body
        self._server = server
        self._weather = weather
        self._shelf = shelf
        self._complain = complain
        self._told = told
        self._shards = shards
        self._connections = connections
        self._access = access
        self._chance = weather.stream(f"process {name}")
        self._lives = 0
        self._links: list[FaultyLink] = []
        self._ledgers: list[SimulatedLedger] = []
        self._cut = False
        self._muted = False
        self._task: asyncio.Task[int] | None = None
        self._service: SimulatedService | None = None

    @property
    def running(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Start the process. It remembers nothing of its previous run."""
        if self._task is not None:
            return
        self._lives += 1
        life = f"{self.name}#{self._lives}"
        links: list[FaultyLink] = []
        self._links = links
        skew_s = self._chance.uniform(-SKEW_MAX_S, SKEW_MAX_S)
        if "clock skew" in self._weather.spared:
            skew_s = 0.0
        else:
            self._weather.struck["clock skew"] += 1
        clock = SkewedClock(self._weather.stream(f"pauses {life}"), skew_s=skew_s)
        service = SimulatedService(
            self.name,
            clock=clock,
            connect=self._connector(life, links),
            complain=lambda what: self._heed(links, what),
        )
        self._service = service
        self._task = asyncio.create_task(lifecycle._live(service, self._body), name=life)
        self._task.add_done_callback(lambda task: self._ended(task, links))

    def _connector(self, life: str, links: list[FaultyLink]) -> lifecycle.Connect:
        """Return a function that connects this process to the ledger.

        The function appends each link that it opens to `links`."""
        numbers = itertools.count(1)

        async def connect() -> Ledger:
            chance = self._weather.stream(f"link {life}.{next(numbers)}")
            link = FaultyLink(self._weather, chance)
            link.muted = self._muted
            links.append(link)
            if links is not self._links:
                link.kill()
            elif self._cut:
                link.cut()
            try:
                await link.ask("connect", lambda: None)
            except LostReply as lost:
                raise LedgerUnavailable(str(lost)) from lost
            ledger = SimulatedLedger(self._server, role=self.role, writer=self.name, link=link)
            ledger.folds = self.folds = []
            ledger.told = self._told
            ledger.shards = self._shards
            self._connections[self.name] += 1
            ledger.snapshots = MemorySnapshots(ledger, self._shelf)
            ledger.complain = lambda what: self._heed(links, what)
            if links is self._links:
                self._ledgers.append(ledger)
            else:
                ledger.vanish()
            return ledger

        return connect

    def kill(self) -> None:
        """Kill the process, as SIGKILL does."""
        if self._task is None:
            return
        task, self._task = self._task, None
        links, self._links = self._links, []
        ledgers, self._ledgers = self._ledgers, []
        self.folds = []
        for link in links:
            link.kill()
        for ledger in ledgers:
            ledger.vanish()
        if self._access is not None:
            self._access.kill()
        if self._service is not None:
            # otherwise the dead process would restart after its last error
            self._service.stopping.set()
        task.cancel()

    def cut(self) -> None:
        self._cut = True
        for link in self._links:
            link.cut()

    def mute(self) -> None:
        """Drop the heartbeats and commands of this process, but no other messages."""
        self._muted = True
        for link in self._links:
            link.muted = True

    def unmute(self) -> None:
        self._muted = False
        for link in self._links:
            link.muted = False

    def mend(self) -> None:
        self.unmute()
        self._cut = False
        for link in self._links:
            link.mend()

    def _heed(self, links: list[FaultyLink], what: str) -> None:
        if links is self._links:  # errors of a killed process do not count
            self._complain(f"{self.name}: {what}")

    def _ended(self, task: asyncio.Task[int], links: list[FaultyLink]) -> None:
        if links is not self._links:
            if not task.cancelled():
                task.exception()
            return
        self._task = None
        if task.cancelled():
            return
        failure = task.exception()
        self._complain(f"{self.name}: exited with {failure or task.result()}")
