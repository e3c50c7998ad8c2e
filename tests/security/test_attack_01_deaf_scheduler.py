"""Attack 1: an auditor changes a scheduler's consumer, so that the scheduler receives no events.

The names of consumers are public in the server's monitoring. Without the guard, an auditor can
change the consumer's filter with `CONSUMER.CREATE`. The server still sends heartbeats, so the
scheduler stays ready with a lag of 0 but places no pods."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apportion.core.identity.configuration import WITH_PASSWORDS, configuration
from apportion.runtime.jetstream.following import Follower
from apportion.runtime.jetstream.wire import STREAM, Wire, call_api
from apportion.runtime.ledger.port import NotPermitted, Subscription
from tests.security.weakened import GUARDS
from tests.support.nats import Bus, draft, ignore, running_bus
from tests.support.polling import until

NOTHING = "apportion.v1.nothing"


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a running NATS server with the ledger's stream."""
    async with running_bus(tmp_path / "data") as running:
        yield running


async def retarget(wire: Wire, settings: dict[str, object]) -> None:
    """Change the consumer's filter to a subject without messages."""
    config = {**settings, "filter_subject": NOTHING}
    body = {"stream_name": STREAM, "config": config, "action": "update"}
    await call_api(wire, f"CONSUMER.CREATE.{STREAM}.{config['name']}.{NOTHING}", body)


async def following(bus: Bus) -> Follower:
    """Start a scheduler's reader, and return it once it has read all events."""
    await (await bus.connect("watcher")).append([draft()])
    reader: Subscription = await (await bus.connect("scheduler")).follow(ignore)
    await reader.caught_up()
    assert isinstance(reader, Follower)

    async def told() -> bool:
        return bool(reader._consumer)

    # What it reads may come before the server's word on how the consumer was made.
    await until(told, "the settings of the consumer")
    return reader


async def test_weak(tmp_path: Path) -> None:
    """Without the guard auditors are in the ledger's account and may create any consumer. So an
    auditor can change a scheduler's consumer."""
    with GUARDS["auditors apart"]():
        assert "CONSUMER.CREATE.APPORTION.*" in configuration(WITH_PASSWORDS)
        async with running_bus(tmp_path / "data") as bus:
            reader = await following(bus)
            await retarget((await bus.connect("auditor")).wire, dict(reader._consumer))
            writer = await bus.connect("watcher")
            await writer.append([draft()])
            info = json.loads(await call_api(writer.wire, f"STREAM.INFO.{STREAM}", {}))
            assert info["state"]["last_seq"] == 2
            assert (reader.position, reader.lag) == (1, 0)
            # The reader's own look, the second guard, mends it within seconds.

            async def noticed() -> bool:
                return reader.position == 2

            await until(noticed, "the reader to notice by itself")


async def test_guarded(bus: Bus) -> None:
    """An auditor cannot change any consumer of the ledger. Other identities can change only their
    own consumers."""
    reader = await following(bus)
    consumer = dict(reader._consumer)
    auditor = await bus.connect("auditor")
    with pytest.raises(Exception, match="consumer does not exist"):
        await retarget(auditor.wire, consumer)
    for role in ("gateway", "watcher", "operator", "agent", "binder"):
        with pytest.raises(NotPermitted, match=f"not permit user '{role}' to send to"):
            await retarget((await bus.connect(role)).wire, consumer)
    await (await bus.connect("watcher")).append([draft()])

    async def read_on() -> bool:
        return reader.position == 2

    await until(read_on, "the scheduler to read on")
