"""The simulated network between a process and the API server, with the run's faults.

Invariants: a request in transit arrives even if its sender is killed. A link delivers the lines of
a watch in the server's order, and without gaps until the link breaks. Nothing passes a dead link.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from apportion.runtime.kube.client import Answer, KubeApi, KubeSilent, KubeUnavailable
from apportion.runtime.service.options import KubeChoice
from tests.simulation.loop import rest
from tests.simulation.weather import Weather
from tests.support.memory_kube import MemoryKube, status_body
from tests.support.memory_kube_api import MemoryKubeApi
from tests.support.memory_kube_store import BOOKMARK_S

TRIP_S = (0.0005, 0.02)
SLOW_TRIP_S = (0.3, 8.0)
LATE_S = (0.5, 12.0)
LATE_LINES_S = (0.2, 6.0)
NO_BOOKMARKS_S = 1e9
READS = ("GET", "WATCH")
_BUSY = Answer(429, status_body(429, "TooManyRequests", "try again"), retry_after_s=1.0)
_FAILED = tuple(
    Answer(status, status_body(status, reason, "etcd is away"))
    for status, reason in ((500, "InternalError"), (503, "ServiceUnavailable"), (504, "Timeout"))
)


class Front:
    """The API server, which can be up or down for all clients at once."""

    def __init__(self, server: MemoryKube, weather: Weather) -> None:
        self.server = server
        self.weather = weather
        self.away = False
        chance = weather.stream("front")
        self.bookmark_s = chance.choice((BOOKMARK_S, NO_BOOKMARKS_S))

    def leave(self) -> None:
        """Take the server down: it answers no request, and every watch ends."""
        self.away = True
        self.server.store.hang_up()

    def come_back(self) -> None:
        self.away = False


class FaultyKubeLink:
    """A client's connection to the API server, with faults; implements
    `memory_kube_api.KubeLink`."""

    def __init__(self, front: Front, chance: random.Random, whole: asyncio.Event) -> None:
        self._front = front
        self._weather = front.weather
        self._chance = chance
        self._whole = whole
        self._dead = False
        self._waiting: dict[asyncio.Future[Answer], None] = {}

    def kill(self) -> None:
        """Break the link for good, because its client was killed."""
        self._dead = True
        self.lose_all()

    def lose_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting:
            if not answer.done():
                answer.set_exception(KubeUnavailable("the connection was lost"))

    @property
    def _passes(self) -> bool:
        return self._whole.is_set() and not self._dead and not self._front.away

    async def ask(self, method: str, act: Callable[[], Answer]) -> Answer:
        if self._dead:
            raise KubeUnavailable("the process is dead")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting[answer] = None
        loop.call_later(self._chance.uniform(*TRIP_S), self._arrive, method, act, answer)
        try:
            return await answer
        finally:
            self._waiting.pop(answer, None)

    def _arrive(
        self, method: str, act: Callable[[], Answer], answer: asyncio.Future[Answer]
    ) -> None:
        """Deliver the request to the server, or lose it."""
        strikes, chance = self._weather.strikes, self._chance
        writes = method not in READS
        loop = asyncio.get_running_loop()
        if not self._passes or strikes("api request lost", chance):
            self._lose(answer)
        elif strikes("api busy", chance):
            self._answer(answer, _BUSY)
        elif strikes("api failed, not done", chance):
            self._answer(answer, chance.choice(_FAILED))
        elif writes and strikes("api done late", chance):
            loop.call_later(chance.uniform(*LATE_S), act)
            self._lose(answer)
        else:
            found = act()
            if writes and strikes("api failed, done", chance):
                found = chance.choice(_FAILED)
            if strikes("api answer lost", chance):
                self._lose(answer)
                return
            slow = strikes("api slow", chance)
            trip_s = chance.uniform(*(SLOW_TRIP_S if slow else TRIP_S))
            loop.call_later(trip_s, self._answer, answer, found)

    def _answer(self, answer: asyncio.Future[Answer], found: Answer) -> None:
        if not self._passes:
            self._lose(answer)
        elif not answer.done():
            answer.set_result(found)

    def _lose(self, answer: asyncio.Future[Answer]) -> None:
        """Let the sender's request fail, either at once or after its timeout."""
        if not answer.done() and self._chance.random() < 0.6:
            answer.set_exception(KubeUnavailable("the connection was lost"))

    async def carry(self, lines: list[bytes], idle_s: float) -> tuple[list[bytes], bool]:
        """Deliver these lines of a watch. If the link is cut, wait until it works again."""
        strikes, chance = self._weather.strikes, self._chance
        await rest(chance.uniform(*TRIP_S))
        if strikes("watch event late", chance):
            await rest(chance.uniform(*LATE_LINES_S))
        try:
            async with asyncio.timeout(idle_s):
                await self._whole.wait()
        except TimeoutError:
            raise KubeSilent(f"silent for {idle_s:g} s") from None
        if self._dead or self._front.away:
            raise KubeUnavailable("the connection was lost")
        if strikes("watch dropped", chance):
            return lines[: chance.randrange(len(lines) + 1)], False
        if strikes("watch event twice", chance):
            lines = [*lines, lines[-1]]
        return lines, True


class KubeAccess:
    """One process's access to the API server, which is kept when the process restarts."""

    def __init__(self, front: Front, name: str) -> None:
        self._front = front
        self._chance = front.weather.stream(f"kube {name}")
        self._whole = asyncio.Event()
        self._whole.set()
        self._links: list[FaultyKubeLink] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[KubeApi]:
        """Open a connection, which the process uses until its next restart."""
        link = FaultyKubeLink(self._front, self._chance, self._whole)
        self._links.append(link)
        front = self._front
        yield MemoryKubeApi(front.server, link, bookmark_s=front.bookmark_s)

    def kill(self) -> None:
        links, self._links = self._links, []
        for link in links:
            link.kill()

    def cut(self) -> None:
        self._whole.clear()
        for link in self._links:
            link.lose_all()

    def mend(self) -> None:
        self._whole.set()


class SimulatedCluster(KubeChoice, frozen=True):
    """Connects a service to the simulated API server."""

    access: KubeAccess | None = None

    def open(self) -> AbstractAsyncContextManager[KubeApi]:
        assert self.access is not None
        return self.access.open()
