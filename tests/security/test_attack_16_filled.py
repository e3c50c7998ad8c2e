"""Attack 16: with an agent's stolen key, an attacker fills the ledger or takes all connections."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from apportion.core.identity import configuration
from apportion.core.identity.identity import EVERY_NODE, Identity
from apportion.core.intake.answers import subject_of_node
from apportion.core.ledger.fold import Change
from apportion.intake import taking
from apportion.intake.taking import BYTES_AN_HOUR, Refusals, Taking
from apportion.runtime.jetstream.client import connect
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.port import Draft, LedgerError
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Event, PodBound, UsageRecorded, encode
from apportion_schemas.quantities import TEXT_MAX
from apportion_schemas.usage import UNSHARED_MAX, ShareUsed, UnsharedUsed
from tests.security.weakened import guarded_but, without
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.ledger_of import TIME, Ledger
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, placed, pod, share
from tests.support.polling import until
from tests.support.processes import ServiceProcess

HASTE = """
from apportion.runtime.service import soundness
soundness.LOOK_S = soundness.LOOK_AGAIN_S = 0.2
"""
ROOM_BYTES = 600_000
MOST = 40
"""The connection limit of the agents' account in this test."""


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a ledger that may store only little."""
    async with running_bus(tmp_path / "nats", max_bytes=ROOM_BYTES) as running:
        yield running


async def fill(bus: Bus, part: float) -> None:
    """Append events until the ledger contains this fraction of the bytes that it may store."""
    facts = Facts(bus)
    await facts.open()
    wire = (await bus.connect("operator")).wire
    from apportion.runtime.jetstream import stream  # noqa: PLC0415

    number = 0
    while (await stream.read_info(wire)).state.bytes < part * ROOM_BYTES:
        await facts.submit(*(f"p{number + each}" for each in range(4)))
        number += 4


async def metric(service: ServiceProcess, name: str) -> float:
    """Return the value of a metric without labels."""
    for line in (await service.get("/metrics"))[1].splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(name)


@pytest.mark.parametrize("guard", ["", "leaves a reserve"])
async def test_agents_leave_the_last_room_to_others(bus: Bus, guard: str) -> None:
    """If little space is left in the ledger, an intake keeps it for other services.

    The intake then asks agents to send their reports later."""
    await fill(bus, 0.96)
    url = bus.server.url_for
    async with ServiceProcess("intake", url("intake"), first=HASTE + without(guard)) as intake:
        await intake.ready()

        async def looked() -> bool:
            return await metric(intake, "apportion_ledger_free_ratio") < 0.05

        await until(looked, "the intake to see how little is free")
        agent = ServiceProcess("agent", url("agent"), "--simulate", "1xT4", "--node", "n")
        async with agent:

            async def decided() -> str:
                for line in (await intake.get("/metrics"))[1].splitlines():
                    for outcome in ("again", "appended"):
                        said = f'apportion_intake_events_total{{outcome="{outcome}"}} '
                        if line.startswith(said) and float(line.removeprefix(said)):
                            return outcome
                return ""

            assert await until(decided, "a decision") == ("appended" if guard else "again")


@pytest.mark.parametrize("guard", ["", "is unready when full"])
async def test_a_full_ledger_makes_services_unready(bus: Bus, guard: str) -> None:
    """If the ledger is full, no service is ready, not even a service that has nothing to append."""
    first = HASTE + without(guard)
    async with ServiceProcess("binder", bus.server.url_for("binder"), first=first) as binder:
        await binder.ready()
        await fill(bus, 0.98)

        async def full() -> bool:
            return await metric(binder, "apportion_ledger_free_ratio") <= 0

        async def unready() -> bool:
            status, page = await binder.get("/readyz")
            return status == 503 and "the ledger is full" in page

        await until(full, "the binder to see that the ledger is full")
        if guard:
            assert (await binder.get("/readyz"))[0] == 200
        else:
            await until(unready, "the binder to be unready")


class Asked(msgspec.Struct):
    """A stand-in for an agent's request to the intake. It keeps the intake's answers."""

    payload: bytes
    subject: str = subject_of_node("n1")
    reply: str = "_INBOX_agent.1"
    answers: list[bytes] = []

    async def answer(self, payload: bytes) -> None:
        self.answers.append(payload)


def appended_of(records: Iterable[UsageRecorded]) -> list[int]:
    """Let an intake append these usage records of node `n1`, and return the size of each event."""
    held = Ledger(rack("n1", 1), pod("p1", ask(1_000)), placed("p1", "n1", [share("n1-g0")]))
    held.play(PodBound(pod="p1", node="n1", attempt=1))
    appended: list[int] = []

    async def append(draft: Draft) -> Appended:
        appended.append(len(draft.payload))
        return Appended(None, already_there=False)

    async def ask_for_all() -> None:
        clock, metrics = SkewedClock(random.Random(0), skew_s=0.0), Metrics()
        bus = MemoryLedger(MemoryServer(), role="intake")
        reader: Reader[Change] = Reader(bus, StateFold(), metrics=metrics, writes="agent")
        refusals = Refusals(Publisher("intake", clock, append), clock, metrics)
        taking = Taking(
            held.state, reader, bus, append, refusals, clock=clock, metrics=metrics
        )  # fmt: skip
        tasks = [asyncio.create_task(each) for each in (reader.run(), taking.run())]
        while taking.not_ready():
            await rest(0.1)
        for number, data in enumerate(records):
            event = Event(id=f"u{number}", source="agent/n1", time=TIME, data=data)
            asked = Asked(encode(event))
            taking.take(asked)
            while not asked.answers:
                await rest(0.1)
        for task in tasks:
            task.cancel()

    run_virtually(ask_for_all())
    return appended


@pytest.mark.parametrize("guard", ["", "budgets a node's hour"])
def test_a_node_appends_so_many_bytes_in_an_hour(guard: str) -> None:
    """An intake limits the bytes per node and hour, even for records of maximum size."""
    programs = tuple(
        UnsharedUsed(
            device="n1-g0", command=f"{number}" * (TEXT_MAX // 2), seconds=1,
            memory_mib_seconds=1, memory_mib_peak=1,
        )
        for number in range(10, 10 + UNSHARED_MAX)
    )  # fmt: skip
    record = UsageRecorded(node="n1", seconds=1, unshared=programs)
    with guarded_but(guard):
        sizes = appended_of([record] * (2 * BYTES_AN_HOUR // (UNSHARED_MAX * TEXT_MAX)))
    assert (sum(sizes) < 1.2 * BYTES_AN_HOUR) is not bool(guard)


@pytest.mark.parametrize("guard", ["", "budgets a node's hour"])
def test_a_node_appends_so_many_records_in_an_hour(
    guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intake appends a limited number of records per node and hour, whatever their size."""
    monkeypatch.setattr(taking, "RECORDS_AN_HOUR", 50)
    unshared = (UnsharedUsed("n1-g0", "x", 1, 1, 1),)
    with guarded_but(guard):
        sizes = appended_of([UsageRecorded(node="n1", seconds=1, unshared=unshared)] * 100)
    assert len(sizes) == (100 if guard else 50)


@pytest.mark.parametrize("guard", ["", "records seconds once"])
def test_the_same_hour_is_charged_once(guard: str) -> None:
    """If an agent reports the same hour of use under four event ids, the hour is recorded once.
    Without the guard it is recorded four times, and the tenant is charged for all four."""
    used = ShareUsed(
        pod="p1", namespace="default", name="p1", container="main", device="n1-g0", seconds=3_600,
        memory_mib=1_000, memory_mib_seconds=36_000, memory_mib_peak=10,
    )  # fmt: skip
    with guarded_but(guard):
        sizes = appended_of([UsageRecorded(node="n1", seconds=3_600, shares=(used,))] * 4)
    assert len(sizes) == (4 if guard else 1)


@pytest.mark.parametrize("guarded", [True, False])
async def test_agents_cannot_take_the_connections_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    """An agent is refused connections beyond its account's limit, and an operator still
    connects."""
    limits: dict[Any, Any] = {**configuration.CONNECTIONS, "NODES": MOST if guarded else 9_999}
    monkeypatch.setattr(configuration, "CONNECTIONS", limits)
    from tests.security import attacked  # noqa: PLC0415

    def small(text: str) -> str:
        return text.replace("max_connections: 8192", f"max_connections: {MOST + 20}")

    async with attacked.attacked(tmp_path / "nats", small) as bus:
        url, opened = bus.server.url_for("agent"), []
        try:
            for _ in range(MOST + 30):
                try:
                    opened.append(await connect(url, name="attacker", timeout_s=20))
                except LedgerError:
                    break
            assert (len(opened) <= MOST) is guarded
            try:
                await connect(bus.server.url_for("operator"), name="op", timeout_s=20)
            except LedgerError:
                assert not guarded
            else:
                assert guarded
        finally:
            await asyncio.gather(*(each.close() for each in opened))


def test_no_account_can_take_all_connections() -> None:
    """The accounts' connection limits add up to less than the server's, and every account with
    users has a limit."""
    text = configuration.configuration()
    (total,) = [int(x.split()[1]) for x in text.splitlines() if x.startswith("max_connections")]
    assert sum(configuration.CONNECTIONS.values()) < total


def test_a_key_of_named_nodes_gets_few_subscriptions() -> None:
    """An agent's key that is limited to named nodes gets few subscriptions, because each
    subscription costs the server memory."""
    nodes = Identity("agent", "agent-a", nodes=("n-1", "n-2"))
    fleet = Identity("agent", "agent", nodes=(EVERY_NODE,))
    few, many = configuration.subscriptions_of([nodes]), configuration.subscriptions_of([fleet])
    assert configuration.CONNECTIONS["NODES"] * few * 400 < 1 << 29
    assert many > 2 * 1_000
    text = configuration.configuration([configuration.User(nodes, password_variable="X")])
    assert (
        f"max_connections: {configuration.CONNECTIONS['NODES']}, max_subscriptions: {few}" in text
    )


@pytest.mark.parametrize("guard", ["", "asks what a pod held"])
@pytest.mark.parametrize("bound", [0, 1])
def test_an_invented_pod_is_charged_nothing(guard: str, bound: int) -> None:
    """An intake records no usage for a pod that an agent invented."""
    used = ShareUsed(
        pod="invented", namespace="victim", name="invented", container="main", device="n1-g0",
        seconds=3_600, memory_mib=1_000, memory_mib_seconds=36_000, memory_mib_peak=10, bound=bound,
    )  # fmt: skip
    with guarded_but(guard):
        sizes = appended_of([UsageRecorded(node="n1", seconds=3_600, shares=(used,))])
    assert len(sizes) == (1 if guard else 0)


def test_a_new_ledger_of_compose_has_a_limit() -> None:
    """docker-compose.yml limits a new ledger to two fifths of the server's storage."""
    text = Path("docker-compose.yml").read_text()
    (most,) = re.findall(r'"--max-bytes=\$\{APPORTION_MAX_BYTES:-(\d+)\}"', text)
    (store,) = re.findall(r"NATS_MAX_STORE: \$\{APPORTION_MAX_STORE:-(\d+)GB\}", text)
    assert 0 < 2 * int(most) < int(store) * 1_000_000_000


async def test_a_client_that_says_nothing_is_hung_up_on(bus: Bus) -> None:
    """The server disconnects a client that sends nothing, because the client's socket counts
    against the server's limit."""
    url = urlsplit(bus.server.url_for("agent"))
    reading, writing = await asyncio.open_connection(url.hostname, url.port)
    said = await asyncio.wait_for(reading.read(), 60)
    writing.close()
    assert b"Authentication Timeout" in said


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_connection_has_few_subscriptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    """The server refuses an agent's subscriptions beyond the limit; without the guard each one
    costs memory."""
    if not guarded:
        monkeypatch.setattr(configuration, "SUBSCRIPTIONS", 9_999)
    from tests.security import attacked  # noqa: PLC0415

    users = [each for each in attacked.OF_NAMED_NODES if each.identity.role == "agent"]
    few = configuration.subscriptions_of(each.identity for each in users)
    async with attacked.attacked(tmp_path / "nats", users=attacked.OF_NAMED_NODES) as bus:
        url = urlsplit(bus.server.url_for(attacked.AGENT.name))
        reading, writing = await asyncio.open_connection(url.hostname, url.port)
        hello = json.dumps({"verbose": False, "user": url.username, "pass": url.password})
        (node,) = attacked.AGENT.nodes
        writing.write(f"CONNECT {hello}\r\n".encode())
        for number in range(1, 302):
            subject = f"apportion.command.agent.{node}.{number}"
            writing.write(f"SUB {subject} {number}\r\n".encode())
        writing.write(b"PING\r\n")
        said = await asyncio.wait_for(reading.readuntil(b"PONG\r\n"), 30)
        writing.close()
    assert said.count(b"maximum subscriptions exceeded") == (301 - few if guarded else 0)
