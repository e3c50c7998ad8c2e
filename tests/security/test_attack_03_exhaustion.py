"""Attack 3: one client of the gateway takes all of a shared resource, and keeps it.

Without the guards, one client can hold all 64 event streams, both concurrent plans, or all of the
server's consumers. Half-sent requests stay open for 90 seconds."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from apportion.gateway.api.live import CLIENTS_MAX
from apportion.runtime.jetstream.wire import STREAM, call_api
from tests.security.slow_past import begun_by
from tests.security.weakened import without
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus, running_bus
from tests.support.processes import ServiceProcess

HALF = 200
READERS = 16
ROUNDS = 3
FEW = 6
"""The highest number of consumers: for the fold, the index, one past state, and this test."""
PATIENCE_S = 6.0
ENDED_S = 45.0
"""The time in which even a busy machine ends all requests, which have one second each."""
READ_S = 30.0
"""The time for sixteen clients, which read one after the other on a busy machine."""
SHORT = (
    "from apportion.runtime.service.http import HttpServer\n"
    "from apportion.runtime.service.limits import Limits\n"
    "HttpServer.__init__.__kwdefaults__['limits'] = Limits(head_s=1.0, body_s=1.0)\n"
)
"""Code that shortens the time limits of requests to one second."""
FORGETFUL = "from apportion.gateway.feed import Feed\nFeed.__init__.__kwdefaults__['events'] = 2\n"
"""Code that makes the gateway keep only two events in memory instead of 8,192."""
PLAN = "POST /api/v1/plan HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
LONG_POD = """
---
apiVersion: v1
kind: Pod
metadata: {{name: p{}}}
spec:
  schedulerName: apportion
  containers: [{{name: c, image: x, resources: {{limits: {{nvidia.com/gpumem: 1000}}}}}}]
"""
LONG_PODS = 900
"""A plan that takes some seconds."""
GUARDS = pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a fresh server with an event in its ledger."""
    async with running_bus(tmp_path / "nats") as running:
        facts = Facts(running)
        await facts.open()
        for number in range(40):
            await facts.write(rack(f"n{number}", 1))
        yield running


@contextlib.asynccontextmanager
async def gateway(bus: Bus, first: str) -> AsyncIterator[tuple[ServiceProcess, int]]:
    """Yield a gateway and its port. The gateway runs the code in `first` before it starts."""
    url = bus.server.url_for("gateway")
    async with ServiceProcess("gateway", url, "--listen", "127.0.0.1:0", first=first) as process:
        await process.ready()
        answering = str((await process.logged("answering"))["url"])
        yield process, int(answering.split(":")[2].split("/", maxsplit=1)[0])


async def connect(
    port: int, sent: bytes, client: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection from this address and send these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(client, 0))
    writer.write(sent)
    return reader, writer


async def status_of(port: int, path: str, client: str) -> tuple[int, asyncio.StreamWriter]:
    """Send a GET request. Return the status code, and the connection, which stays open."""
    sent = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    reader, writer = await connect(port, sent, client)
    return int((await reader.readline()).split()[1]), writer


def close(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()


@GUARDS
async def test_one_client_takes_every_stream(bus: Bus, guarded: bool) -> None:
    """One client cannot take every event stream of the gateway."""
    async with gateway(bus, "" if guarded else without("limits each client")) as (_, port):
        taken = [await status_of(port, "/api/v1/events", "127.0.0.1") for _ in range(CLIENTS_MAX)]
        held = [status for status, _ in taken if status == 200]
        status, writer = await status_of(port, "/api/v1/events", "127.0.0.2")
        close([writer, *(each for _, each in taken)])
        assert (len(held) < CLIENTS_MAX, status) == ((True, 200) if guarded else (False, 503))


@GUARDS
async def test_half_sent_requests_stay(bus: Bus, guarded: bool) -> None:
    """Half-sent requests time out with a log line, and the gateway answers other clients."""
    first = SHORT if guarded else without("limits each client")
    head = b"GET /api/v1/nodes HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    body = f"{PLAN}Content-Length: 9\r\n\r\n{{".encode()
    async with gateway(bus, first) as (process, port):
        halves = [await connect(port, head if at % 2 else body) for at in range(HALF)]
        status, writer = await status_of(port, "/api/v1/nodes", "127.0.0.2")
        assert status == 200
        ends = [asyncio.create_task(reader.read()) for reader, _ in halves]
        patience_s = ENDED_S if guarded else PATIENCE_S
        done, open_still = await asyncio.wait(ends, timeout=patience_s)
        close([writer, *(each for _, each in halves)])
        await asyncio.gather(*ends, return_exceptions=True)
        assert (len(done), len(open_still)) == ((HALF, 0) if guarded else (0, HALF))
        if guarded:
            assert "after 1 s" in str((await process.logged("incomplete"))["event"])


def plan(manifest: str) -> bytes:
    """Return an HTTP request for a plan whose progress is streamed."""
    body = json.dumps({"manifest": manifest, "add": ["2x8xT4"]}).encode()
    head = f"{PLAN}Accept: application/x-ndjson\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@GUARDS
async def test_one_client_has_every_plan_made_for_itself(bus: Bus, guarded: bool) -> None:
    """The gateway runs only one plan at a time for each client, so another client's plan is not
    refused."""
    long = plan("".join(LONG_POD.format(number) for number in range(LONG_PODS)))
    async with gateway(bus, "" if guarded else without("limits each client")) as (_, port):
        first, held = await connect(port, long)
        assert (await first.readline()).split()[1] == b"200"
        second, also_held = await connect(port, long)
        begun = asyncio.create_task(second.readline())
        if not guarded:
            assert (await begun).split()[1] == b"200"
        third, other = await connect(port, plan(""), "127.0.0.2")
        status = int((await third.readline()).split()[1])
        assert (status, begun.done()) == ((200, False) if guarded else (503, True))
        if guarded:  # a client that disconnects has used its turn
            close([held])
            assert (await begun).split()[1] == b"200"
        close([held, also_held, other])


@GUARDS
async def test_reading_from_the_beginning_takes_consumers(bus: Bus, guarded: bool) -> None:
    """However many clients read from the beginning, the gateway uses few consumers, and all clients
    get the old events."""
    operator = await bus.connect("operator")
    most = 0
    first = FORGETFUL + begun_by("" if guarded else "reads the past by turns")
    async with gateway(bus, first) as (_, port):

        async def read(number: int) -> int:
            """Connect several times. Return how many connections received the first ten events."""
            found = 0
            sent = b"GET /api/v1/events?from=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            for _ in range(ROUNDS):
                reader, writer = await connect(port, sent, f"127.0.0.{2 + number % 4}")
                with contextlib.suppress(asyncio.IncompleteReadError, OSError, TimeoutError):
                    async with asyncio.timeout(READ_S):
                        await reader.readuntil(b"id: 10\n")
                    found += 1
                writer.transport.abort()
            return found

        reads = asyncio.gather(*(read(number) for number in range(READERS)))
        while not reads.done():
            answer = await call_api(operator.wire, f"STREAM.INFO.{STREAM}")
            most = max(most, msgspec.json.decode(answer)["state"]["consumer_count"])
        given = await reads
    assert (most <= FEW) is guarded, most
    if guarded:
        assert given == [ROUNDS] * READERS
