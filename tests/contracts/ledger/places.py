"""One interface to two ledgers, in memory and on nats-server, so that the same tests run against
both."""

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
    """A ledger for one test, with methods that cause faults in it."""

    async def connect(self, role: str = "watcher", *, shaky: bool = False) -> Ledger:
        """Connect to the ledger with the permissions of `role`.

        With `shaky`, the connection has a short timeout, and `silence` and `heal` apply to it."""

    def silence(self) -> None:
        """Stop replying to connections with `shaky=True`, but still carry out their requests."""

    async def heal(self) -> None:
        """Let connections with `shaky=True` get replies again. Clients may have to reconnect."""

    async def drop(self, last: int) -> None:
        """Drop all records up to and including revision `last`. In the product, only the bootstrap
        user may do this."""

    async def stop(self) -> None:
        """Stop the ledger and close all its connections."""


class NatsPlace:
    """A ledger on nats-server with the product's permissions.

    Connections opened with `shaky=True` go through a proxy."""

    def __init__(self, folder: Path) -> None:
        self.bus = Bus(folder / "data")
        self._proxy: Proxy

    async def start(self, *, max_bytes: int = -1) -> None:
        await self.bus.start(max_bytes=max_bytes)
        self._proxy = Proxy(self.bus.server.port)
        await self._proxy.start()

    async def connect(self, role: str = "watcher", *, shaky: bool = False) -> Ledger:
        if shaky:
            return await self.bus.connect(role, port=self._proxy.port, ack_timeout_s=ACK_TIMEOUT_S)
        return await self.bus.connect(role)

    def silence(self) -> None:
        self._proxy.mute()

    async def heal(self) -> None:
        await self._proxy.cut()

    async def drop(self, last: int) -> None:
        await drop((await self.bus.connect("bootstrap")).wire, last=last)

    async def stop(self) -> None:
        await self._proxy.stop()
        await self.bus.stop()


class ShakyLink(PerfectLink):
    """An in-memory connection that can withhold replies, so that requests time out."""

    def __init__(self) -> None:
        self.silent = False

    async def ask(self, what: str, act: Callable[[], T]) -> T:
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
        link = ShakyLink()
        if shaky:
            self._links.append(link)
        ledger = MemoryLedger(self.server, role=role, link=link)
        self._ledgers.append(ledger)
        return ledger

    def silence(self) -> None:
        for link in self._links:
            link.silent = True

    async def heal(self) -> None:
        for link in self._links:
            link.silent = False

    async def drop(self, last: int) -> None:
        self.server.drop(last)

    async def stop(self) -> None:
        for ledger in self._ledgers:
            await ledger.close()


class LawlessPlace(Protocol):
    """A ledger for one test, without permissions and with a short duplicate window.

    The test can delete single records, which the product's permissions forbid."""

    async def connect(self) -> Ledger:
        """Open a connection that has all permissions."""

    async def lose(self, revision: int) -> None:
        """Delete the record with this revision."""

    async def stop(self) -> None:
        """Stop the ledger and close all its connections."""


class LawlessNats:
    """A ledger on nats-server without permissions."""

    def __init__(self, folder: Path) -> None:
        self._server = PlainServer(folder / "plain")
        self._ledgers: list[Ledger] = []

    async def start(self) -> None:
        """Start the server, and create a stream like the product's.

        The two streams differ only in their permissions and their duplicate window."""
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
        ledger = await connect(self._server.url, name="test")
        self._ledgers.append(ledger)
        return ledger

    async def lose(self, revision: int) -> None:
        await call_api(self._boot.wire, f"STREAM.MSG.DELETE.{STREAM}", {"seq": revision})

    async def stop(self) -> None:
        for ledger in self._ledgers:
            await ledger.close()
        await self._server.stop()


class LawlessMemory:
    """An in-memory ledger without permissions."""

    def __init__(self) -> None:
        self._place = MemoryPlace(window_s=WINDOW_S)

    async def connect(self) -> Ledger:
        return await self._place.connect()

    async def lose(self, revision: int) -> None:
        self._place.server.lose(revision)

    async def stop(self) -> None:
        await self._place.stop()
