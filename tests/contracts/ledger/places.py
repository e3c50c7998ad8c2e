"""One interface to the two ledgers, in-memory and on nats-server, that the suite runs against."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from apportion.runtime.jetstream.client import connect
from apportion.runtime.jetstream.stream import WANTED, drop
from apportion.runtime.jetstream.wire import STREAM, LostReply, call_api
from apportion.runtime.ledger.port import Ledger
from tests.support.memory_ledger import MemoryLedger, PerfectLink
from tests.support.memory_server import MemoryServer
from tests.support.nats import Bus, PlainServer, Proxy

T = TypeVar("T")
ACK_TIMEOUT_S = 0.4
WINDOW_S = 1.0
"""The duplicate window of a ledger without permissions."""


class Place(Protocol):
    """A ledger for one test, and the faults that a test can cause in the ledger."""

    async def connect(self, role: str = "watcher", *, shaky: bool = False) -> Ledger:
        """Open a connection. A `shaky` connection can be silenced, and has a short timeout."""

    def silence(self) -> None:
        """Carry out the requests of shaky connections without replying."""

    async def heal(self) -> None:
        """Break the shaky connections and let the clients reconnect."""

    async def drop(self, last: int) -> None:
        """Drop all records up to and including this revision, as the bootstrap user may."""

    async def stop(self) -> None:
        """Stop the ledger."""


class NatsPlace:
    """A ledger on nats-server with our permissions, behind a proxy."""

    def __init__(self, folder: Path) -> None:
        self.bus = Bus(folder / "data")
        self._proxy: Proxy

    async def start(self, *, max_bytes: int = -1) -> None:
        """Start the server and the proxy."""
        await self.bus.start(max_bytes=max_bytes)
        self._proxy = Proxy(self.bus.server.port)
        await self._proxy.start()

    async def connect(self, role: str = "watcher", *, shaky: bool = False) -> Ledger:
        """Implement `Place.connect`."""
        if shaky:
            return await self.bus.connect(role, port=self._proxy.port, ack_timeout_s=ACK_TIMEOUT_S)
        return await self.bus.connect(role)

    def silence(self) -> None:
        """Implement `Place.silence`."""
        self._proxy.mute()

    async def heal(self) -> None:
        """Implement `Place.heal`."""
        await self._proxy.cut()

    async def drop(self, last: int) -> None:
        """Implement `Place.drop`."""
        await drop((await self.bus.connect("bootstrap")).wire, last=last)

    async def stop(self) -> None:
        """Implement `Place.stop`."""
        await self._proxy.stop()
        await self.bus.stop()


class ShakyLink(PerfectLink):
    """An in-memory link that can withhold replies until a timeout."""

    def __init__(self) -> None:
        self.silent = False

    async def ask(self, what: str, act: Callable[[], T]) -> T:
        """Implement `Link.ask`."""
        answer = await super().ask(what, act)
        if self.silent:
            loop = asyncio.get_running_loop()
            late: asyncio.Future[None] = loop.create_future()
            loop.call_later(ACK_TIMEOUT_S, late.set_result, None)
            await late
            raise LostReply(f"no answer from memory within {ACK_TIMEOUT_S:g} s")
        return answer


class MemoryPlace:
    """A ledger on the simulation's in-memory store."""

    def __init__(self, *, max_bytes: int = -1, window_s: float | None = None) -> None:
        window = {} if window_s is None else {"duplicate_window_s": window_s}
        self.server = MemoryServer(max_bytes=max_bytes, **window)
        self._links: list[ShakyLink] = []
        self._ledgers: list[MemoryLedger] = []

    async def connect(self, role: str = "watcher", *, shaky: bool = False) -> Ledger:
        """Implement `Place.connect`."""
        link = ShakyLink()
        if shaky:
            self._links.append(link)
        ledger = MemoryLedger(self.server, role=role, link=link)
        self._ledgers.append(ledger)
        return ledger

    def silence(self) -> None:
        """Implement `Place.silence`."""
        for link in self._links:
            link.silent = True

    async def heal(self) -> None:
        """Implement `Place.heal`."""
        for link in self._links:
            link.silent = False

    async def drop(self, last: int) -> None:
        """Implement `Place.drop`."""
        self.server.drop(last)

    async def stop(self) -> None:
        """Implement `Place.stop`."""
        for ledger in self._ledgers:
            await ledger.close()


class LawlessPlace(Protocol):
    """A ledger without permissions and with a short duplicate window, from which a record can be
    deleted."""

    async def connect(self) -> Ledger:
        """Open a connection with all rights."""

    async def lose(self, revision: int) -> None:
        """Delete one record, which our permissions normally forbid."""

    async def stop(self) -> None:
        """Stop the ledger."""


class LawlessNats:
    """A ledger on nats-server without permissions."""

    def __init__(self, folder: Path) -> None:
        self._server = PlainServer(folder / "plain")
        self._ledgers: list[Ledger] = []

    async def start(self) -> None:
        """Start the server, and create the stream like ours, except for permissions and the
        duplicate window."""
        await self._server.start()
        boot = await connect(self._server.url, name="test")
        settings = {
            **WANTED,
            "name": STREAM,
            "deny_delete": False,
            "duplicate_window": int(WINDOW_S * 1e9),
        }
        await call_api(boot.wire, f"STREAM.CREATE.{STREAM}", settings)
        self._boot = boot
        self._ledgers.append(boot)

    async def connect(self) -> Ledger:
        """Implement `LawlessPlace.connect`."""
        ledger = await connect(self._server.url, name="test")
        self._ledgers.append(ledger)
        return ledger

    async def lose(self, revision: int) -> None:
        """Implement `LawlessPlace.lose`."""
        await call_api(self._boot.wire, f"STREAM.MSG.DELETE.{STREAM}", {"seq": revision})

    async def stop(self) -> None:
        """Implement `LawlessPlace.stop`."""
        for ledger in self._ledgers:
            await ledger.close()
        await self._server.stop()


class LawlessMemory:
    """An in-memory ledger without permissions."""

    def __init__(self) -> None:
        self._place = MemoryPlace(window_s=WINDOW_S)

    async def connect(self) -> Ledger:
        """Implement `LawlessPlace.connect`."""
        return await self._place.connect()

    async def lose(self, revision: int) -> None:
        """Implement `LawlessPlace.lose`."""
        self._place.server.lose(revision)

    async def stop(self) -> None:
        """Implement `LawlessPlace.stop`."""
        await self._place.stop()
