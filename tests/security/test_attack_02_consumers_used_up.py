"""Attack 2: an auditor creates consumers until the server refuses more.

Without the guard a restarted scheduler then gets no consumer, its readiness probe names no cause,
and no user can delete a consumer."""

import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.wire import STREAM, ApiRefused, call_api
from apportion.runtime.ledger.port import NotPermitted
from tests.security.weakened import GUARDS
from tests.support.nats import Bus, draft, ignore, running_bus

MOST = 200
"""The stream's limit of consumers in this test, which an attacker reaches within a second."""


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a running NATS server with the ledger's stream."""
    async with running_bus(tmp_path / "data") as running:
        yield running


async def limit(bus: Bus) -> None:
    """Limit the stream to a few consumers and append one event."""
    boot = (await bus.connect("bootstrap")).wire
    info = json.loads(await call_api(boot, f"STREAM.INFO.{STREAM}"))
    await call_api(boot, f"STREAM.UPDATE.{STREAM}", {**info["config"], "max_consumers": MOST})
    await (await bus.connect("watcher")).append([draft()])


async def use_up(auditor: JetStreamLedger) -> tuple[int, str]:
    """Create consumers until one is refused. Return their number and the server's error."""
    for number in range(10 * MOST):
        name = f"mine-{secrets.token_hex(6)}"
        config = {"name": name, "durable_name": name, "ack_policy": "none"}
        body = {"stream_name": STREAM, "config": config, "action": "create"}
        try:
            await call_api(auditor.wire, f"CONSUMER.CREATE.{STREAM}.{name}", body)
        except ApiRefused as refused:
            return number, refused.error.description
    raise AssertionError("the server takes any number")


async def scheduler_reads(bus: Bus) -> None:
    """Check that a restarted scheduler can read the whole ledger."""
    reader = await (await bus.connect("scheduler")).follow(ignore)
    await reader.caught_up()
    assert reader.position == 1


async def test_weak(tmp_path: Path) -> None:
    """Without the guard, an auditor in the ledger's account uses up all consumers, and a scheduler
    gets none."""
    with GUARDS["auditors apart"]():
        async with running_bus(tmp_path / "data") as bus:
            await limit(bus)
            await use_up(await bus.connect("auditor"))
            ledger = await bus.connect("scheduler")
            body = {"stream_name": STREAM, "config": {"name": "scheduler-0"}, "action": "create"}
            with pytest.raises(ApiRefused, match="maximum consumers"):
                await call_api(ledger.wire, f"CONSUMER.CREATE.{STREAM}.scheduler-0", body)


async def test_guarded(bus: Bus) -> None:
    """An auditor can use up only the consumers of the auditors' account.

    Other roles may create only a few consumers, with fixed names."""
    await limit(bus)
    made, word = await use_up(await bus.connect("auditor"))
    assert made <= 128
    assert "maximum consumers" in word
    await scheduler_reads(bus)
    for role in ("gateway", "watcher", "operator", "admission"):
        with pytest.raises(NotPermitted):
            await use_up(await bus.connect(role))
    await scheduler_reads(bus)
