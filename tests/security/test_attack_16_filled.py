"""Attack 16: a stolen agent's key fills the ledger, or takes the connections of the server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apportion.core.identity import configuration
from apportion.core.identity.identity import EVERY_NODE, Identity
from apportion.core.identity.roles import NODES
from apportion.runtime.jetstream.client import connect
from apportion.runtime.ledger.port import LedgerError
from tests.security.weakened import without
from tests.support.facts import Facts
from tests.support.nats import Bus, running_bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess

HASTE = """
from apportion.runtime.service import soundness
soundness.LOOK_S = soundness.LOOK_AGAIN_S = 0.2
"""
ROOM_BYTES = 600_000
MOST = 40
"""Connections that agents have in this test."""


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """A ledger with little room."""
    async with running_bus(tmp_path / "nats", max_bytes=ROOM_BYTES) as running:
        yield running


async def fill(bus: Bus, part: float) -> None:
    """Append until so much of the room is taken."""
    facts = Facts(bus)
    await facts.open()
    wire = (await bus.connect("operator")).wire
    from apportion.runtime.jetstream import stream  # noqa: PLC0415

    number = 0
    while (await stream.read_info(wire)).state.bytes < part * ROOM_BYTES:
        await facts.submit(*(f"p{number + each}" for each in range(4)))
        number += 4


async def metric(service: ServiceProcess, name: str) -> float:
    """The value of a metric without labels."""
    for line in (await service.get("/metrics"))[1].splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(name)


@pytest.mark.parametrize("guard", ["", "leaves a reserve"])
async def test_agents_leave_the_last_room_to_others(bus: Bus, guard: str) -> None:
    """Below the reserve an agent's report waits; without the guard it takes the room."""
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


async def test_a_full_ledger_makes_services_unready(bus: Bus) -> None:
    """Also one that has nothing to append."""
    async with ServiceProcess("binder", bus.server.url_for("binder"), first=HASTE) as binder:
        await binder.ready()
        await fill(bus, 0.98)

        async def full() -> bool:
            status, page = await binder.get("/readyz")
            return status == 503 and "the ledger is full" in page

        await until(full, "the binder to be unready")


@pytest.mark.parametrize("guarded", [True, False])
async def test_agents_cannot_take_the_connections_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    """Beyond those of its account an agent is refused, and an operator is not."""
    limits: dict[str, Any] = {**configuration.CONNECTIONS, NODES: MOST if guarded else 9_999}
    monkeypatch.setattr(configuration, "CONNECTIONS", limits)
    from tests.security import attacked  # noqa: PLC0415

    def small(text: str) -> str:
        return text.replace("max_connections: 8192", f"max_connections: {MOST + 20}")

    async with attacked.attacked(tmp_path / "nats", small) as bus:
        url, opened = bus.server.url_for("agent"), []
        try:
            for _ in range(MOST + 30):
                try:
                    opened.append(await connect(url, name="attacker", timeout_s=2))
                except LedgerError:
                    break
            assert (len(opened) <= MOST) is guarded
            try:
                await connect(bus.server.url_for("operator"), name="op", timeout_s=2)
            except LedgerError:
                assert not guarded
            else:
                assert guarded
        finally:
            await asyncio.gather(*(each.close() for each in opened))


def test_no_account_can_take_all_connections() -> None:
    """Together they have fewer than the server takes, and every account that has users has some."""
    text = configuration.configuration()
    (total,) = [int(x.split()[1]) for x in text.splitlines() if x.startswith("max_connections")]
    assert sum(configuration.CONNECTIONS.values()) < total


def test_a_key_of_named_nodes_gets_few_subscriptions() -> None:
    """Each costs memory, on as many connections as there are; a simulated fleet needs many."""
    nodes = Identity("agent", "agent-a", nodes=("n-1", "n-2"))
    fleet = Identity("agent", "agent", nodes=(EVERY_NODE,))
    few, many = configuration.subscriptions_of([nodes]), configuration.subscriptions_of([fleet])
    assert configuration.CONNECTIONS[NODES] * few * 400 < 1 << 29
    assert many > 2 * 1_000
    text = configuration.configuration([configuration.User(nodes, password_variable="X")])
    assert f"max_connections: {configuration.CONNECTIONS[NODES]}, max_subscriptions: {few}" in text
