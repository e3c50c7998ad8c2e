"""Inject random faults, chosen by a seed, into a running cluster.

Each fault ends by itself after a while. Faults may overlap, so two of three servers may be down at
the same time. Invariant: after `mend`, no fault is active; only consequences of faults remain."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.wire import call_api
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.process.clock import SystemClock
from tests.faults.servers import Cluster, Server
from tests.faults.services import LoaderProcess, Service

KINDS = (
    "server killed",
    "server stopped",
    "two servers killed",
    "stream leader stepped down",
    "queue leader stepped down",
    "disk full",
    "two disks full",
    "scheduler killed",
    "scheduler stopped",
    "intake killed",
    "intake stopped",
    "binder killed",
    "binder stopped",
    "agent killed",
    "agent stopped",
    "loader killed",
    "server started again after its disk was full",
)
CLOCK = SystemClock()
PAUSE_S = (0.3, 1.6)
AWAY_S = (0.3, 4.0)
STOPPED_S = (0.5, 9.0)
FULL_S = (1.0, 5.0)
RECOVERY_S = 10.0
"""An operator would wait about this long before restarting a server whose disk had been full."""


class Deed(NamedTuple):
    """One injected fault: its time of day, as in the servers' logs, and what was done."""

    time: str
    what: str


class Shaking:
    """Injects faults of the given kinds in one round, and records them."""

    def __init__(
        self,
        seed: int,
        cluster: Cluster,
        services: Sequence[Service],
        loader: LoaderProcess,
        *,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        self._chance = random.Random(f"{seed}/shaking")
        self._cluster = cluster
        self._services = services
        self._loader = loader
        self._kinds = frozenset(kinds)
        self._busy: set[str] = set()
        self._filled: set[Server] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.struck: Counter[str] = Counter()
        self.deeds: list[Deed] = []

    async def reign(self, span_s: float, *, strikes_min: int = 0) -> None:
        """Inject faults for `span_s` seconds, or longer until `strikes_min` faults have occurred.

        Then wait until the active faults have ended."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + span_s
        while loop.time() < end_s or self.struck.total() < strikes_min:
            await CLOCK.pause(self._chance.uniform(*PAUSE_S))
            kind, deed = self._chance.choice(self._deeds())
            task = asyncio.create_task(self._do(kind, deed), name=kind)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._tasks:
            for task in (await asyncio.wait(self._tasks))[0]:
                task.result()

    async def mend(self) -> None:
        """End all faults: start every process, and wait until all servers are healthy."""
        for server in self._filled:
            if not await self._recovers(server):
                self.struck[KINDS[-1]] += 1
                self._note(f"{server.name} started again after its disk was full")
                await server.kill()
                await self._cluster.revive(server)
        await self._cluster.all_healthy()
        self._note("the servers are healthy")
        await asyncio.gather(*(each.revive() for each in self._services), self._loader.revive())

    async def _recovers(self, server: Server) -> bool:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + RECOVERY_S
        while loop.time() < end_s:
            if await server.healthy():
                return True
            await CLOCK.pause(0.2)
        return False

    def _deeds(self) -> list[tuple[str, Callable[[], Awaitable[bool]]]]:
        deeds: list[tuple[str, Callable[[], Awaitable[bool]]]] = [
            ("server killed", lambda: self._kill_servers(1)),
            ("server stopped", self._stop_server),
            ("two servers killed", lambda: self._kill_servers(2)),
            ("stream leader stepped down", lambda: self._step_down("STREAM", "APPORTION")),
            ("queue leader stepped down", lambda: self._step_down("CONSUMER", "APPORTION.binder")),
            ("loader killed", self._kill_loader),
        ]
        for verb in ("scheduler", "intake", "binder", "agent"):
            deeds.append((f"{verb} killed", partial(self._kill_service, verb)))
            deeds.append((f"{verb} stopped", partial(self._stop_service, verb)))
        if all(server.disk.can_fill for server in self._cluster.servers):
            deeds.append(("disk full", lambda: self._fill(1)))
            deeds.append(("two disks full", lambda: self._fill(2)))
        return [(kind, deed) for kind, deed in deeds if kind in self._kinds]

    def _note(self, what: str) -> None:
        now = datetime.now().astimezone()
        self.deeds.append(Deed(now.strftime("%H:%M:%S.%f"), what))

    async def _do(self, kind: str, deed: Callable[[], Awaitable[bool]]) -> None:
        if await deed():
            self.struck[kind] += 1

    def _take(self, count: int) -> list[Server]:
        """Choose `count` servers without an active fault. Return an empty list if fewer exist."""
        free = [each for each in self._cluster.servers if each.name not in self._busy]
        if len(free) < count:
            return []
        chosen = self._chance.sample(free, count)
        self._busy |= {each.name for each in chosen}
        return chosen

    async def _rest(self, span_s: tuple[float, float]) -> None:
        await CLOCK.pause(self._chance.uniform(*span_s))

    async def _kill_servers(self, count: int) -> bool:
        chosen = self._take(count)
        for server in chosen:
            self._note(f"{server.name} killed")
            await server.kill()
        if chosen:
            await self._rest(AWAY_S)
        for server in chosen:
            self._note(f"{server.name} started")
            await self._cluster.revive(server)
            self._busy.discard(server.name)
        return bool(chosen)

    async def _stop_server(self) -> bool:
        for server in self._take(1):
            self._note(f"{server.name} stopped")
            server.stop()
            await self._rest(STOPPED_S)
            self._note(f"{server.name} goes on")
            server.go_on()
            self._busy.discard(server.name)
            return True
        return False

    async def _fill(self, count: int) -> bool:
        chosen = self._take(count)
        self._filled |= set(chosen)
        for server in chosen:
            await asyncio.to_thread(server.disk.fill)
            self._note(f"{server.name}: disk full")
        if chosen:
            await self._rest(FULL_S)
        for server in chosen:
            server.disk.free()
            self._note(f"{server.name}: disk has room")
            self._busy.discard(server.name)
        return bool(chosen)

    async def _step_down(self, what: str, name: str) -> bool:
        try:
            ledger = await jetstream.connect(
                self._cluster.url_for("chaos"), name="chaos", timeout_s=2
            )
        except LedgerError:
            return False  # no server is there to receive it
        try:
            await call_api(ledger.wire, f"{what}.LEADER.STEPDOWN.{name}")
        except LedgerError:
            return False
        finally:
            await ledger.close()
        self._note(f"the leader of {name} stepped down")
        return True

    def _service(self, verb: str) -> Service | None:
        free = [s for s in self._services if s.verb == verb and s.name not in self._busy]
        if not free:
            return None
        chosen = self._chance.choice(free)
        self._busy.add(chosen.name)
        return chosen

    async def _kill_service(self, verb: str) -> bool:
        service = self._service(verb)
        if service is None:
            return False
        self._note(f"{service.name} killed")
        await service.kill()
        await self._rest(AWAY_S)
        self._note(f"{service.name} started")
        await service.revive()
        self._busy.discard(service.name)
        return True

    async def _stop_service(self, verb: str) -> bool:
        service = self._service(verb)
        if service is None:
            return False
        self._note(f"{service.name} stopped")
        service.stop_short()
        await self._rest(STOPPED_S)
        self._note(f"{service.name} goes on")
        service.go_on()
        self._busy.discard(service.name)
        return True

    async def _kill_loader(self) -> bool:
        if self._loader.name in self._busy:
            return False
        self._busy.add(self._loader.name)
        self._note("loader killed")
        await self._loader.kill()
        await self._rest(AWAY_S)
        self._note("loader started")
        await self._loader.revive()
        self._busy.discard(self._loader.name)
        return True
