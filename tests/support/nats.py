"""Run a real nats-server for a test, with a fresh store, a free port, and connections for any role.

The module also simulates failures: delayed answers, a killed and restarted server, and a server
without our access rules."""

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from apportion.runtime.jetstream.client import JetStreamLedger, connect, create_stream
from apportion.runtime.jetstream.server.embedded import EmbeddedServer, find_binary
from apportion.runtime.jetstream.wire import STREAM, ApiRefused, Wire, call_api
from apportion.runtime.ledger.port import Draft, Record
from tests.support import intakes
from tests.support.nats_server import EncryptedServer
from tests.support.polling import WAIT_S, until
from tests.support.ports import free_port

ENCRYPTED = "APPORTION_TEST_TLS"
"""If this variable is set, a bus uses TLS, as for `python -m tests.benchmarks.scale`."""
_numbers = itertools.count(1)
_STORE_NOT_MADE = 10049  # nats-server's JSStreamStoreFailedF


def draft(
    subject: str = "workload.pod1",
    *,
    key: str = "",
    payload: bytes = b"{}",
    expect: int | None = None,
) -> Draft:
    """Return an event to append on `apportion.v1.<subject>`. The event's id is new unless `key` is
    given."""
    name = key or f"id-{next(_numbers)}"
    return Draft(subject=f"apportion.v1.{subject}", id=name, payload=payload, expect=expect)


def ignore(_record: Record) -> None:
    """Discard a record, for readers whose records do not matter."""


class Bus:
    """An embedded nats-server with the ledger's stream, and the connections that a test opened."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.server = (
            EncryptedServer(data_dir)
            if ENCRYPTED in os.environ
            else EmbeddedServer(data_dir, port=free_port())
        )
        self._ledgers: list[JetStreamLedger] = []
        self._port = 0

    async def start(self, *, max_bytes: int = -1) -> None:
        """Start the server and create the stream."""
        await self.server.start()
        self._port = self.server.port
        intakes.may_have_agents(self)
        boot = await self.connect("bootstrap")
        await create_stream(boot, max_bytes=max_bytes)

    async def connect(
        self, role: str = "watcher", *, port: int = 0, **options: Any
    ) -> JetStreamLedger:
        """Open a connection as `role`, which closes with the bus.

        `port` selects a proxy to connect through. The default timeouts are longer than a service's,
        because a test machine may stall for a while."""
        options = {"timeout_s": WAIT_S, "ack_timeout_s": WAIT_S, **options}
        url = self.server.url_for(role)
        if port:
            url = url.replace(f":{self.server.port}", f":{port}")
        ledger = await connect(url, name=f"test {role}", **options)
        self._ledgers.append(ledger)
        return ledger

    async def crash(self) -> None:
        """Kill the server with SIGKILL."""
        await self.server.kill()

    async def restart(self) -> None:
        """Restart the server on the same store and port."""
        port = self.server.port
        self.server = EmbeddedServer(self.data_dir, port=port)
        await self.server.start()

    async def stop(self) -> None:
        await intakes.end(self._port)
        for ledger in self._ledgers:
            await ledger.close()
        await self.server.stop()


@contextlib.asynccontextmanager
async def running_bus(data_dir: Path, *, max_bytes: int = -1) -> AsyncIterator[Bus]:
    """Yield a running bus, and stop it when the block ends."""
    bus = Bus(data_dir)
    try:
        await bus.start(max_bytes=max_bytes)
        yield bus
    finally:
        await bus.stop()


async def remake_stream(wire: Wire, config: dict[str, Any]) -> None:
    """Create the stream, even if a stream of that name was deleted a moment ago.

    The server confirms a deletion before the files are gone, and refuses the name until then."""

    async def made() -> bool:
        try:
            await call_api(wire, f"STREAM.CREATE.{STREAM}", config)
        except ApiRefused as refused:
            if refused.error.err_code != _STORE_NOT_MADE:
                raise
            return False
        return True

    await until(made, f"the server to make stream {STREAM}")


class PlainServer:
    """A nats-server without users or permissions."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""

    async def start(self, *, port: int = 0) -> None:
        """Start the server on `port`, or on a free port, and wait until it listens."""
        self._data_dir.mkdir(parents=True, exist_ok=True)
        for stale in self._data_dir.glob("*.ports"):
            stale.unlink()
        store, own = str(self._data_dir / "js"), str(port or free_port())
        arguments = ["-a", "127.0.0.1", "-p", own, "-js", "-sd", store]
        self._process = await asyncio.create_subprocess_exec(
            find_binary(),
            *arguments,
            "--ports_file_dir",
            str(self._data_dir),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        path = self._data_dir / f"nats-server_{self._process.pid}.ports"
        async with asyncio.timeout(WAIT_S):
            while not self.url:
                with contextlib.suppress(FileNotFoundError, ValueError):
                    self.url = json.loads(path.read_text())["nats"][0]
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), 0.02)

    async def stop(self) -> None:
        """Stop the server, and wait until its process has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        self.url = ""


class Proxy:
    """A TCP proxy in front of the server that can delay or lose the server's messages."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen for clients on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def mute(self) -> None:
        """Hold back all messages of the server from now on."""
        self._open.clear()

    async def cut(self) -> None:
        """Break every connection. Messages that were held back are lost; new connections work
        normally."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._open.set()

    async def stop(self) -> None:
        """Stop listening, and break every connection."""
        if self._server is not None:
            self._server.close()
        await self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.close()
            return
        for source, sink, held in ((reader, up_writer, False), (up_reader, writer, True)):
            task = asyncio.create_task(self._pump(source, sink, held=held))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, held: bool
    ) -> None:
        try:
            while data := await source.read(1 << 16):
                if held:
                    await self._open.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass  # the peer closed the connection
        finally:
            sink.close()
