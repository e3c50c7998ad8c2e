"""A real gateway on a real ledger answers consistently at one revision, lets clients read their own
writes, and streams live events."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from apportion.gateway.api.live import CLIENTS_MAX, EACH_MAX
from apportion.gateway.feed import WINDOW_EVENTS
from apportion.runtime.ledger.port import Draft
from apportion_schemas import FormatEnabled, NodeObserved, PodRejected, ShareUse, UsageSample
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus
from tests.support.polling import WAIT_S, until
from tests.support.processes import ServiceProcess


class Gateway:
    """A running gateway process, and a client for HTTP requests to it."""

    def __init__(self, process: ServiceProcess, url: str) -> None:
        self.process = process
        self.url = url

    async def get(self, path: str, *, method: str = "GET") -> tuple[int, Any]:
        """Return the status and the JSON body of an answer."""
        return await asyncio.to_thread(self._get, path, method)

    async def ok(self, path: str) -> Any:
        """Return the body of an answer whose status must be 200."""
        status, body = await self.get(path)
        assert status == 200, body
        return body

    async def reaches(self, revision: int) -> None:
        """Wait until the gateway has read this revision."""

        async def read() -> bool:
            status, _ = await self.get(f"/api/v1/revision?at_least={revision}")
            return status == 200

        await until(read, f"revision {revision}")

    def _get(self, path: str, method: str) -> tuple[int, Any]:
        request = urllib.request.Request(self.url + path, method=method)  # noqa: S310 - our own
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:  # noqa: S310 - our own
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.loads(refusal.read())


class Events:
    """A client that reads the gateway's event stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._text = ""

    @classmethod
    async def open(
        cls, url: str, query: str = "", *headers: str, client: str = "127.0.0.1"
    ) -> "Events":
        """Open the event stream from the local address `client`. Fail unless the status is 200."""
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(client, 0))
        asked = [f"GET /api/v1/events{query} HTTP/1.1", f"Host: {host}", *headers, "", ""]
        writer.write("\r\n".join(asked).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        events = cls(reader, writer)
        if b" 200 " not in head.splitlines()[0]:
            await events.close()
            raise AssertionError(head.decode())
        return events

    async def revisions(self, count: int) -> list[int]:
        """Return the ids of the next events, ignoring other messages."""
        found: list[int] = []
        async with asyncio.timeout(WAIT_S):
            while len(found) < count:
                self._text += (await self._reader.read(1 << 16)).decode()
                *done, self._text = self._text.split("\n")
                found += [int(line[4:]) for line in done if line.startswith("id: ")]
        return found

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide a ledger with one node of two GPUs, one placed pod and one pending pod."""
    opened = Facts(bus)
    await opened.open()
    await opened.write(rack("n1", 2))
    await opened.submit("a", "b")
    await opened.place("a", "n1", "n1-g0")
    return opened


@pytest.fixture
async def gateway(bus: Bus, facts: Facts) -> AsyncIterator[Gateway]:
    """Provide a gateway that is ready."""
    del facts  # is there first
    url = bus.server.url_for("gateway")
    async with ServiceProcess("gateway", url, "--listen", "127.0.0.1:0") as process:
        await process.ready()
        line = await process.logged("answering")
        yield Gateway(process, str(line["url"]).removesuffix("/api/v1/"))


async def test_answers(gateway: Gateway, facts: Facts) -> None:
    """The gateway's lists, objects, summaries and reasons show the ledger's current state."""
    pods = await gateway.ok("/api/v1/pods")
    assert [(pod["name"], pod["phase"]) for pod in pods["items"]] == [
        ("a", "placed"),
        ("b", "pending"),
    ]
    assert pods["revision"] == facts.revision
    assert pods["continue"] == ""
    [placed] = (await gateway.ok("/api/v1/placements?node=n1"))["items"]
    assert (placed["name"], placed["placed_revision"]) == ("a", facts.revision)
    node = await gateway.ok("/api/v1/nodes/n1")
    assert (node["node"]["pods"], len(node["devices"])) == (1, 2)
    [used] = [d for d in (await gateway.ok("/api/v1/devices"))["items"] if d["holders"]]
    assert used["device"] == "n1-g0"
    assert (await gateway.ok("/api/v1/summary"))["phases"] == {"placed": 1, "pending": 1}
    assert (await gateway.ok("/api/v1/pods/default/b"))["pod"]["uid"] == "b"
    why = await gateway.ok("/api/v1/pods/default/b/why")
    assert why["waiting"] == {"position": 1, "pending": 1, "gang": ""}


async def test_what_shares_use_is_in_the_fleet(gateway: Gateway, bus: Bus, facts: Facts) -> None:
    """The gateway's fleet answer contains each node's newest usage sample.

    A client that reports which samples it already has gets only newer ones."""
    del facts
    agent = await bus.connect("agent")

    async def send(cores_used: int) -> None:
        share = ShareUse(
            pod="a", namespace="default", name="a", container="main", device="n1-g0",
            memory_mib=16, memory_used_mib=4, cores=50, cores_used=cores_used,
        )  # fmt: skip
        sample = UsageSample(node="n1", time="2026-01-01T00:00:00Z", shares=(share,))
        await agent.publish("apportion.usage.n1", msgspec.json.encode(sample))

    async def used() -> Any:
        return (await gateway.ok("/api/v1/fleet"))["used"]

    async def heard() -> Any:
        await send(10)
        return await used()

    async def last_heard() -> bool:
        return bool(await used() == [["n1", [["default/a", 0, 0.4]]]])

    assert await until(heard, "a sample") == [["n1", [["default/a", 0, 0.2]]]]
    await send(20)
    await until(last_heard, "the last sample")
    fleet = await gateway.ok("/api/v1/fleet")
    behind = f"after={fleet['revision']}&heard={fleet['heard']}"
    assert (await gateway.ok(f"/api/v1/fleet?{behind}"))["used"] == []


async def test_a_pod_that_cannot_be_read_is_listed_and_explained(
    gateway: Gateway, facts: Facts
) -> None:
    """The gateway lists a pod that cannot be parsed as rejected, with the field, the problem and
    the fix."""
    await facts.write(
        PodRejected(
            uid="u-9", namespace="default", name="odd", field="spec.x", value="-1",
            problem="is negative", fix="write a number from 1",
        )
    )  # fmt: skip
    asked = f"?at_least={facts.revision}"
    [*_, last] = (await gateway.ok(f"/api/v1/pods{asked}"))["items"]
    assert (last["name"], last["phase"]) == ("odd", "rejected")
    assert (await gateway.ok("/api/v1/summary"))["phases"]["rejected"] == 1
    assert (await gateway.ok("/api/v1/pods/default/odd"))["pod"]["rejection"] == last["rejection"]
    why = await gateway.ok("/api/v1/pods/default/odd/why")
    assert why["rejected"]["field"] == "spec.x"
    assert last["rejection"] in why["sentence"]


async def test_pages(gateway: Gateway) -> None:
    """Each page of a list has a token. A request with that token returns the next page."""
    first = await gateway.ok("/api/v1/pods?limit=1")
    second = await gateway.ok(f"/api/v1/pods?limit=1&continue={first['continue']}")
    assert [page["items"][0]["name"] for page in (first, second)] == ["a", "b"]
    assert second["continue"] == ""


async def test_read_your_writes(gateway: Gateway, facts: Facts) -> None:
    """A request for a future revision is answered once the gateway has folded that revision."""
    asked = asyncio.create_task(
        gateway.ok(f"/api/v1/pods/default/c?at_least={facts.revision + 1}&wait_s=20")
    )
    await facts.submit("c")
    assert (await asked)["pod"]["name"] == "c"


async def test_revision_that_does_not_come(gateway: Gateway, facts: Facts) -> None:
    """A request for a revision that never comes gets an error with the current revision, not a
    stale answer."""
    status, body = await gateway.get("/api/v1/pods?at_least=999&wait_s=0.05")
    assert (status, body["field"]) == (408, "at_least")
    assert f"at {facts.revision}" in body["error"]
    assert body["fix"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/pods/default/nope", 404),
        ("/api/v1/pods/default/nope/why", 404),
        ("/api/v1/nodes/nope", 404),
        ("/api/v1/devices?node=nope", 404),
        ("/api/v1/nothing", 404),
        ("/api/v2/pods", 404),
        ("/api/v1/pods?limit=1001", 400),
        ("/api/v1/pods?colour=red", 400),
        ("/api/v1/nodes?phase=placed", 400),
        ("/api/v1/revision?limit=1", 400),
        ("/api/v1/events?from=0", 400),
    ],
)
async def test_refusals_are_json(gateway: Gateway, path: str, status: int) -> None:
    """Every refusal is JSON with the error and the fix."""
    found, body = await gateway.get(path)
    assert found == status
    assert body["error"]
    assert body["fix"]


async def test_it_only_reads(gateway: Gateway) -> None:
    """The gateway's list of pods accepts only GET. For other methods the error names the method."""
    for method in ("POST", "PUT", "DELETE"):
        status, body = await gateway.get("/api/v1/pods", method=method)
        assert (status, method in body["error"]) == (404, True)


async def test_long_query_is_refused(gateway: Gateway) -> None:
    """A request line over the limit is refused before it reaches a handler."""
    try:
        status, _ = await gateway.get("/api/v1/pods?namespace=" + "x" * 20_000)
    except ValueError:  # the refusal of the HTTP layer itself is not JSON
        status = 400
    assert status == 400
    assert await gateway.ok("/api/v1/revision")


async def test_events_from_the_beginning_and_live(gateway: Gateway, facts: Facts) -> None:
    """The stream delivers every revision from the requested one without a gap, and then each new
    event."""
    events = await Events.open(gateway.url, "?from=1")
    assert await events.revisions(facts.revision) == list(range(1, facts.revision + 1))
    await facts.submit("c", "d")
    assert await events.revisions(2) == [facts.revision - 1, facts.revision]
    await events.close()


async def test_events_after_a_disconnection(gateway: Gateway, facts: Facts) -> None:
    """A client that reconnects with its last event id gets the next event."""
    events = await Events.open(gateway.url, "", "Last-Event-ID: 2")
    assert await events.revisions(2) == [3, 4]
    assert facts.revision == 4
    await events.close()


@pytest.mark.slow
async def test_events_older_than_the_window(bus: Bus, gateway: Gateway, facts: Facts) -> None:
    """The gateway reads events that it no longer buffers from the ledger, and leaves no gap."""
    watcher = await bus.connect("watcher")
    count = WINDOW_EVENTS + 3_000
    for first in range(0, count, 500):
        await watcher.append([_noise(number) for number in range(first, first + 500)])
    last = await watcher.last_revision()
    await gateway.reaches(last)
    events = await Events.open(gateway.url, "?from=1")
    assert await events.revisions(last) == list(range(1, last + 1))
    assert facts.refused
    await events.close()


def _noise(number: int) -> Draft:
    """Return a record whose data is not an event. Every reader skips it."""
    return Draft("apportion.v1.workload.noise", f"noise-{number}", b"?")


async def test_clients_of_the_stream_are_bounded(gateway: Gateway) -> None:
    """The gateway limits the event streams of each client and in total. When it refuses a stream,
    it suggests reading from NATS instead."""
    clients = [await Events.open(gateway.url) for _ in range(EACH_MAX)]
    status, body = await gateway.get("/api/v1/events")
    assert (status, body["error"].endswith(" 127.0.0.1")) == (429, True)
    assert f" {EACH_MAX} " in body["error"]
    for number in range(EACH_MAX, CLIENTS_MAX):
        address = f"127.0.0.{2 + number // EACH_MAX}"
        clients.append(await Events.open(gateway.url, client=address))
    with pytest.raises(AssertionError, match="503"):
        await Events.open(gateway.url, client="127.0.0.9")
    assert "NATS" in body["fix"]
    await clients.pop(0).close()

    async def taken() -> list[Events]:
        try:
            return [await Events.open(gateway.url, "?from=1")]
        except AssertionError:
            return []

    clients += await until(taken, "the place of a client that has left")
    for client in clients:
        await client.close()


async def test_unknown_event_halts_it(bus: Bus, gateway: Gateway, facts: Facts) -> None:
    """If the ledger has an event that only a newer build can read, the gateway refuses every
    request and names the reason. Its process keeps running."""
    before = await gateway.ok("/api/v1/revision")
    watcher = await bus.connect("watcher")
    node = NodeObserved(node="n1", ready=True, cpu_milli=1, memory_mib=1, pods=1)
    await facts.write(node)
    await facts.write(FormatEnabled(format="Teleported", version=1, by="ada"))
    event = {
        "specversion": "1.0", "type": "apportion.dev/Teleported", "schemaversion": 1, "id": "x",
        "source": "future", "time": "2030-01-01T00:00:00.000000Z", "data": {},
    }  # fmt: skip
    payload = json.dumps(event).encode()
    await watcher.append([Draft("apportion.v1.cluster.node.n1", "x", payload)])

    async def halted() -> str:
        status, body = await gateway.get("/api/v1/pods")
        return str(body["error"]) if status == 503 else ""

    reason = await until(halted, "the gateway to halt")
    assert "Teleported" in reason
    status, body = await gateway.process.get("/readyz")
    assert (status, "Teleported" in body) == (503, True)
    assert (await gateway.process.get("/healthz"))[0] == 200
    assert before["revision"] < facts.revision


async def test_ledger_that_goes_away_and_comes_back(
    bus: Bus, gateway: Gateway, facts: Facts
) -> None:
    """While the ledger's server is down, the gateway answers with the last state that it knows.
    When the server returns, it follows the ledger again."""
    revision = facts.revision
    await bus.crash()
    assert (await gateway.ok("/api/v1/revision"))["revision"] == revision
    await bus.restart()
    await facts.submit("later")
    await gateway.reaches(facts.revision)
    answer = await gateway.ok("/api/v1/pods/default/later")
    assert answer["pod"]["phase"] == "pending"


async def test_same_port_has_health_and_metrics(gateway: Gateway) -> None:
    """The gateway serves health probes and metrics on the same port as its API."""
    assert (await gateway.get("/readyz"))[0] == 200
    assert (await gateway.get("/healthz"))[0] == 200
    await gateway.get("/api/v1/pods/default/nope")

    def metrics() -> str:
        with urllib.request.urlopen(gateway.url + "/metrics", timeout=40) as answer:  # noqa: S310
            return str(answer.read().decode())

    said = await asyncio.to_thread(metrics)
    assert 'apportion_gateway_requests_total{status="404",what="pod"} 1.0' in said
    assert "apportion_gateway_answer_seconds_count" in said
    assert "apportion_fold_revision 4.0" in said
