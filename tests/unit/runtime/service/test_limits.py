"""Tests of the HTTP server's limits per client and of its timeouts for incomplete requests."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from apportion.runtime.process.config import Address
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.http import Connections, HttpServer, Watched
from apportion.runtime.service.limits import AtOnce, Limits, Pace, TooMany, Turns, client_of
from tests.support.authority import Authority
from tests.support.golden import Golden
from tests.support.polling import until

HEAD = b"GET /hello HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"


class Surface:
    """A running HTTP server with three routes: one answers, one waits, and one reads a body."""

    def __init__(self, limits: Limits, tls: ssl.SSLContext | None = None) -> None:
        self.release = asyncio.Event()
        self.writers: dict[asyncio.StreamReader, asyncio.StreamWriter] = {}
        self.waiting = asyncio.Semaphore(0)
        self.reading = asyncio.Semaphore(0)
        self.server = HttpServer(
            Address("127.0.0.1", 0),
            metrics=Metrics(),
            not_ready=list,
            limits=limits,
            tls=tls,
            routes=[
                web.get("/hello", self._hello),
                web.get("/wait", self._wait),
                web.post("/read", self._read),
            ],
        )
        self.address = Address("", 0)

    async def _hello(self, _request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def _wait(self, _request: web.Request) -> web.Response:
        self.waiting.release()
        await self.release.wait()
        return web.Response(text="waited")

    async def _read(self, request: web.Request) -> web.Response:
        self.reading.release()
        return web.Response(text=str(len(await request.read())))

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.request("GET", f"http://{self.address}{path}") as answer:
            return answer.status, await answer.text()

    async def post(self, size: int) -> tuple[int, str]:
        """Post a body of this size, and return the status and body of the answer."""
        url = f"http://{self.address}/read"
        async with aiohttp.request("POST", url, data=b"x" * size) as answer:
            return answer.status, await answer.text()

    async def connect(self, sent: bytes) -> asyncio.StreamReader:
        """Open a connection, send just these bytes, and return a reader of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.address.port)
        writer.write(sent)
        self.writers[reader] = writer
        return reader

    async def until_connections(self, count: int) -> None:
        async def so_many() -> bool:
            return self.server._connections.at_once.count == count

        await until(so_many, f"{count} connections")


async def until_end(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes the connection, and return all bytes."""
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def surface(tls: ssl.SSLContext | None = None, **limits: float) -> AsyncIterator[Surface]:
    """Run an HTTP server with these limits for the duration of a `with` block."""
    made = Surface(Limits(**limits), tls)  # type: ignore[arg-type]
    made.address = await made.server.start()
    try:
        yield made
    finally:
        made.release.set()
        for writer in made.writers.values():
            writer.transport.abort()
        await made.server.stop()


async def test_a_connection_that_says_nothing_is_no_warning(
    golden: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that sends nothing is logged only at debug level, once per client. A connection
    that sends half a request is a warning."""
    caplog.set_level("DEBUG", "apportion")
    async with surface(head_s=0.1) as made:
        for _ in range(2):
            assert await until_end(await made.connect(b"")) == b""
        assert await until_end(await made.connect(HEAD)) == b""
    assert [each.levelname for each in caplog.records] == ["DEBUG", "WARNING"]
    silent, half = (each.getMessage() for each in caplog.records)
    golden({"nothing was sent": silent, "half a head": half})


@pytest.mark.parametrize("sent", [HEAD, POST], ids=["half a head", "half a body"])
async def test_a_request_that_does_not_become_whole_ends_its_connection(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """If a request stays incomplete, the server closes its connection when the timeout is over."""
    async with surface(head_s=0.2, body_s=0.2) as made:
        reader = await made.connect(sent)
        assert await until_end(reader) == b""
        assert await made.get("/hello") == (200, "hello")
    assert "127.0.0.1" in caplog.text
    assert "0.2 s" in caplog.text


async def test_an_answer_that_takes_long_is_waited_for() -> None:
    """The server's timeouts apply only while it receives a request. A slow answer does not end the
    connection."""
    async with surface(head_s=0.1, body_s=0.1, idle_s=5) as made:
        asked = asyncio.create_task(made.get("/wait"))
        await made.waiting.acquire()
        late = await made.connect(HEAD)
        await until_end(late)  # wait at least the timeout
        made.release.set()
        assert await asked == (200, "waited")


async def test_one_address_has_no_more_connections_than_its_part() -> None:
    """If a client address has too many connections, the server closes new ones at once. Its open
    ones still work."""
    async with surface(connections=10, connections_each=2) as made:
        first, _second = await made.connect(HEAD), await made.connect(HEAD)
        third = await made.connect(HEAD)
        assert await until_end(third) == b""
        made.writers[first].write(b"Connection: close\r\n\r\n")
        assert b"hello" in await until_end(first)


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a TLS context for the server, and one for a client that trusts this server."""
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue("server", "127.0.0.1"))
    return server, ssl.create_default_context(cafile=authority.ca)


async def test_half_a_handshake_counts_among_its_clients_connections(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """An unfinished TLS handshake counts towards its client's limit of connections."""
    server, client = tls
    async with surface(server, connections=10, connections_each=2, head_s=60) as made:
        first, _second = await made.connect(b""), await made.connect(b"\x16\x03\x01")
        third = await made.connect(b"")
        assert await until_end(third) == b""
        made.writers[first].transport.abort()
        await made.until_connections(1)
        url = f"https://{made.address}/hello"
        async with aiohttp.request("GET", url, ssl=client) as answer:
            assert await answer.text() == "hello"
        assert made.server._connections.at_once.count <= 2, "one that was made counts once"


async def test_a_handshake_has_its_time(
    golden: Golden, tls: tuple[ssl.SSLContext, ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    """If a TLS handshake takes too long, the server closes the connection and logs that."""
    async with surface(tls[0], head_s=0.2) as made:
        assert await until_end(await made.connect(b"\x16\x03\x01")) == b""
        await made.until_connections(0)
    [record] = caplog.records
    golden({"half a handshake": record.getMessage()})


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
async def test_who_has_one_address_of_ipv6_has_its_network(address: str, client: str) -> None:
    """Limits of an IPv6 client apply to its whole /64 network. An IPv4 address that is mapped to
    IPv6 counts as IPv4."""
    assert client_of(address) == client
    places = Connections(Limits(connections_each=1))
    first, second = (Watched(asyncio.Protocol(), places) for _ in range(2))
    assert first.admit((address, 40_000, 0, 0))
    assert not second.admit((address, 40_001, 0, 0))
    assert places.at_once.count == 1
    first.release()
    assert second.admit((address, 40_001, 0, 0))


async def test_who_asks_too_much_at_once_is_told_when_to_come_again() -> None:
    """If a client has too many requests at once, the server answers 429 with a time to retry.
    Probes are still answered."""
    async with surface(each_at_once=1) as made:
        asked = asyncio.create_task(made.get("/wait"))
        await made.waiting.acquire()
        status, body = await made.get("/hello")
        assert (status, "127.0.0.1" in json.loads(body)["error"]) == (429, True)
        assert (await made.get("/healthz"))[0] == 200
        made.release.set()
        assert await asked == (200, "waited")
        assert (await made.get("/hello"))[0] == 200


async def test_who_asks_too_often_is_told_so() -> None:
    """If a client exceeds its request rate, the server answers 429. Probes are still answered."""
    async with surface(each_per_s=0.001, each_burst=2) as made:
        statuses = [(await made.get("/hello"))[0] for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await made.get("/readyz"))[0] == 200


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    """If a body is too large, the server answers 413 without reading it."""
    async with surface(body_bytes=1_000) as made:
        assert await made.post(1_000) == (200, "1000")
        status, body = await made.post(900_000)
        assert (status, "1000 bytes" in json.loads(body)["error"]) == (413, True)


async def test_few_large_bodies_are_read_at_a_time() -> None:
    """The server reads only a few large bodies at once and answers 429 to more. Small bodies are
    always read."""
    async with surface(heavy_bytes=100, heavy_at_once=1) as made:
        first = await made.connect(POST)
        await made.reading.acquire()
        assert (await made.post(200))[0] == 429
        assert (await made.post(50))[0] == 200
        made.writers[first].write(b"x" * 96)
        assert b"200 OK" in await first.readline()


def test_a_part_of_the_places_is_each_clients() -> None:
    """One client cannot take all slots for concurrent requests. A slot that becomes free can be
    taken again."""
    places = AtOnce(3, each=2)
    places.enter("a")
    places.enter("a")
    with pytest.raises(TooMany) as error:
        places.enter("a")
    assert error.value.of_client
    with places.one("b"), pytest.raises(TooMany) as error:
        places.enter("c")
    assert not error.value.of_client
    places.enter("c")
    assert places.count == 3


class Worked:
    """Tasks that wait for their turn and then run until a test ends them. `begun` has their names
    in the order of their starts."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *names: str) -> None:
        """Add a task for each name. The first letter of a task's name is the name of its client."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._work(name))
            await settled()

    async def end(self, name: str) -> None:
        """End this task, and let a waiting task start."""
        self._ends[name].set()
        await self._tasks[name]
        await settled()

    async def cancel(self, name: str) -> None:
        """Cancel this task, and let a waiting task start."""
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])
        await settled()

    async def _work(self, name: str) -> None:
        await self.turns.enter(name[0])
        try:
            self.begun.append(name)
            await self._ends[name].wait()
        finally:
            self.turns.leave(name[0])


async def settled() -> None:
    """Let the event loop run until all tasks wait."""
    for _ in range(8):
        await asyncio.sleep(0)


async def test_one_client_has_one_place_and_others_the_rest() -> None:
    """A client can run one task at a time. Its next task waits, even if there is a free slot."""
    worked = Worked(Turns(2))
    await worked.ask("a1", "a2", "b1")
    assert worked.begun == ["a1", "b1"]
    await worked.end("b1")
    assert worked.begun == ["a1", "b1"], "the free place is for others"
    await worked.end("a1")
    assert worked.begun == ["a1", "b1", "a2"]
    await worked.end("a2")


async def test_who_had_a_turn_is_behind_all_others_who_wait() -> None:
    """A client that has just had a turn waits behind all other waiting clients."""
    worked = Worked(Turns(2))
    await worked.ask("a1", "b1", "a2", "a3", "b2", "c1")
    await worked.end("a1")
    assert worked.begun[2:] == ["c1"]
    await worked.end("c1")
    assert worked.begun[3:] == ["a2"]
    await worked.ask("c2")
    await worked.end("b1")
    assert worked.begun[4:] == ["c2"]


async def test_who_does_not_wait_on_leaves_no_trace() -> None:
    """A waiting task that is cancelled leaves the queue and takes no slot."""
    turns = Turns(1, wait_s=0.01)
    worked = Worked(turns)
    await worked.ask("a1")
    with pytest.raises(TimeoutError):
        await turns.enter("c")
    waits = Worked(Turns(1))
    await waits.ask("a1", "b1", "b2", "c1")
    await waits.cancel("b1")
    await waits.end("a1")
    assert waits.begun == ["a1", "b2"]
    await waits.cancel("b2")
    assert waits.begun == ["a1", "b2", "c1"]
    await worked.end("a1")
    await worked.ask("b1")
    assert worked.begun == ["a1", "b1"]


async def test_few_wait_for_a_turn() -> None:
    """The number of waiting tasks is limited, in total and for each client."""
    worked = Worked(Turns(1, waiting=3, waiting_each=2))
    await worked.ask("a1", "a2", "a3")
    with pytest.raises(TooMany) as error:
        await worked.turns.enter("a")
    assert error.value.of_client
    await worked.ask("b1")
    with pytest.raises(TooMany) as error:
        await worked.turns.enter("c")
    assert not error.value.of_client


def test_a_bucket_fills_again_with_time() -> None:
    """A client that has used up its rate limit can send requests again as time passes, up to the
    burst."""
    now = 0.0
    pace = Pace(2, 3, now=lambda: now)
    assert [pace.allows("a") for _ in range(4)] == [True, True, True, False]
    assert pace.allows("b")
    now = 1.0
    assert [pace.allows("a") for _ in range(3)] == [True, True, False]
    now = 100.0
    assert [pace.allows("a") for _ in range(4)] == [True, True, True, False]
