"""Attack 1 between auditors: an auditor reads another auditor's records, and deletes its consumer.

Without the guard, every auditor can create, read from and delete any consumer of their account."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.wire import STREAM, ApiRefused, Message, call_api
from apportion.runtime.ledger.port import NotPermitted
from tests.security.attacked import AUDITOR, attacked
from tests.security.weakened import GUARDS
from tests.support.nats import Bus, draft

NEXT = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}"
TOOLS = "auditor"
"""The user name of the auditor that tools log in as by default."""
pairs = pytest.mark.parametrize(
    ("attacker", "reader"), [(TOOLS, AUDITOR.name), (AUDITOR.name, TOOLS)]
)


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a running NATS server with the ledger's stream."""
    async with attacked(tmp_path / "data") as running:
        yield running


async def waiting(reader: JetStreamLedger, number: int = 0) -> str:
    """Create a consumer from which this auditor can pull, and return the consumer's name."""
    name = f"{reader.wire.user}-{number}"
    config = {"name": name, "ack_policy": "none"}
    body = {"stream_name": STREAM, "config": config, "action": "create"}
    await call_api(reader.wire, f"CONSUMER.CREATE.{STREAM}.{name}", body)
    return name


async def pull(ledger: JetStreamLedger, name: str, *, wait_s: int = 10) -> bytes:
    """Return the next record of the consumer `name`, or b"" if none comes in `wait_s` seconds."""
    how = {"expires": wait_s * 1_000_000_000} if wait_s else {"no_wait": True}
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(message: Message) -> None:
        await came.put(message.data)

    inbox = ledger.wire.new_inbox()
    await ledger.wire.subscribe(inbox, hear)
    body = json.dumps({"batch": 1, **how}).encode()
    await ledger.wire.publish(f"{NEXT}.{name}", body, reply=inbox, headers={})
    return await asyncio.wait_for(came.get(), 15)


async def test_weak(tmp_path: Path) -> None:
    """Without the guard an auditor takes a record meant for another auditor, and deletes the
    other's consumer."""
    with GUARDS["auditors by name"]():
        async with attacked(tmp_path / "data") as bus:
            reader, attacker = await bus.connect(TOOLS), await bus.connect(AUDITOR.name)
            await (await bus.connect("watcher")).append([draft(payload=b'"a"')])
            name = await waiting(reader)
            assert await pull(attacker, name) == b'"a"'
            assert await pull(reader, name, wait_s=0) == b""
            await call_api(attacker.wire, f"CONSUMER.DELETE.{STREAM}.{name}")
            with pytest.raises(ApiRefused, match="consumer not found"):
                await call_api(reader.wire, f"CONSUMER.INFO.{STREAM}.{name}")


@pairs
async def test_guarded(bus: Bus, attacker: str, reader: str) -> None:
    """No auditor can change another auditor's consumer, whose owner still reads every record."""
    eve, theirs = await bus.connect(attacker), await bus.connect(reader)
    await (await bus.connect("watcher")).append([draft(payload=b'"a"'), draft(payload=b'"b"')])
    name = await waiting(theirs)
    assert await pull(theirs, name) == b'"a"'
    with pytest.raises(NotPermitted, match=f"not permit user '{attacker}' to send to"):
        await eve.request(f"{NEXT}.{name}", b'{"batch":1}', 5)
    config = {"name": name, "ack_policy": "none", "filter_subject": "apportion.v1.nothing"}
    body = {"stream_name": STREAM, "config": config, "action": "update"}
    for api in (
        f"CONSUMER.CREATE.{STREAM}.{name}.apportion.v1.nothing",
        f"CONSUMER.CREATE.{STREAM}.{name}",
        f"CONSUMER.INFO.{STREAM}.{name}",
        f"CONSUMER.DELETE.{STREAM}.{name}",
    ):
        with pytest.raises(NotPermitted, match=f"not permit user '{attacker}' to send to"):
            await call_api(eve.wire, api, body)
    assert await pull(theirs, name) == b'"b"'


async def test_replies_of_a_tool_are_not_for_an_auditor_with_a_name(bus: Bus) -> None:
    """A named auditor cannot subscribe to replies for the default auditor."""

    async def hear(_subject: str, _payload: bytes) -> None:
        return None

    await (await bus.connect(TOOLS)).serve("_INBOX.x", hear)
    with pytest.raises(NotPermitted):
        await (await bus.connect(AUDITOR.name)).serve("_INBOX.x", hear)
