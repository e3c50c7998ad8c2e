"""Attack 6: an agent opens 50 batches on its own subject, so that no other client can open one.

The server keeps at most 50 open batches for a stream. Without the guard an agent may publish on one
subject of the stream, so it can open all 50. Every other writer's batches are then refused for as
long as the agent continues."""

from pathlib import Path

import pytest

from apportion.runtime.ledger.port import LedgerUnavailable
from tests.security.attacked import AGENT, attacked
from tests.simulation.hostile import NODE, SUBJECT
from tests.support.nats import Bus, draft

BATCHES = 60


async def open_batches(bus: Bus, subject: str) -> None:
    """Open more batches than the server accepts, and commit none of them."""
    agent = await bus.connect(AGENT.name)
    for number in range(BATCHES):
        headers = {"Nats-Batch-Id": f"held-{number}", "Nats-Batch-Sequence": "1"}
        await agent.wire.publish(subject, b"{}", headers=headers)
    leave = await agent.wire.subscribe(agent.wire.new_inbox(), _hear)  # the server got here
    await leave()


async def _hear(_message: object) -> None:
    pass


async def batch(bus: Bus) -> list[int]:
    """Append a batch as other writers do, and return its revisions."""
    writer = await bus.connect("watcher")
    return await writer.append([draft("workload.a"), draft("workload.b")])


async def test_weak_batches_of_others_are_refused(tmp_path: Path) -> None:
    """Without the guard an agent can write to one subject of the ledger's stream.

    In this way the agent blocks the batches of all other writers."""
    subject, everybodys = f"apportion.v1.inventory.{NODE}", "apportion.v1.inventory.*"
    given, taken = '{ service: "%s", accounts: [%s] }', "{ service: { account: %s, subject: "

    def widen(text: str) -> str:
        for before, after in (
            (f'"{SUBJECT}"', f'"{subject}"'),
            (given % (everybodys, "INTAKE"), given % (everybodys, "INTAKE, NODES")),
            (f'{taken % "INTAKE"}"apportion.intake.*"', f'{taken % "APPORTION"}"{everybodys}"'),
        ):
            assert before in text, before
            text = text.replace(before, after)
        return text

    async with attacked(tmp_path / "nats", widen) as bus:
        await open_batches(bus, subject)
        with pytest.raises(LedgerUnavailable, match="rejected a batch"):
            await batch(bus)


async def test_guarded_there_is_nothing_to_open(tmp_path: Path) -> None:
    """An agent cannot open a batch of appends, because it writes to an intake only."""
    async with attacked(tmp_path / "nats") as bus:
        for subject in (SUBJECT, f"apportion.v1.inventory.{NODE}"):
            await open_batches(bus, subject)
        assert await batch(bus) == [1, 2]
