"""Contract tests of the messages that the ledger does not store: commands and heartbeats."""

import asyncio

import pytest

from apportion.runtime.ledger.port import LedgerUnavailable, NotPermitted
from tests.contracts.ledger.places import Place

COMMAND = "apportion.command.agent.n1"


async def test_a_request_reaches_its_handler_and_returns_the_reply(place: Place) -> None:
    """A request reaches the handler of a wildcard subject, and returns the handler's reply."""
    agent, operator = await place.connect("agent"), await place.connect("operator")

    async def answer(subject: str, payload: bytes) -> bytes:
        return subject.encode() + b" " + payload

    await agent.serve("apportion.command.agent.*", answer)
    assert await operator.request(COMMAND, b"now", 5) == COMMAND.encode() + b" now"


async def test_a_request_without_a_handler_fails_at_once(place: Place) -> None:
    """A request fails at once if no handler exists, or if the handler's connection was closed."""
    agent, operator = await place.connect("agent"), await place.connect("operator")

    async def answer(_subject: str, _payload: bytes) -> bytes:
        return b""

    await agent.serve(COMMAND, answer)
    await agent.close()
    for subject in ("apportion.command.agent.n2", COMMAND):
        async with asyncio.timeout(20):
            with pytest.raises(LedgerUnavailable, match="no service answers"):
                await operator.request(subject, b"", 60)


async def test_a_failing_handler_loses_only_its_reply(place: Place) -> None:
    """If a handler raises an error, only that request gets no reply. The next request is
    answered."""
    agent, operator = await place.connect("agent"), await place.connect("operator")

    async def answer(_subject: str, payload: bytes) -> bytes:
        if payload == b"bad":
            raise ValueError("cannot do that")
        return b"done"

    await agent.serve(COMMAND, answer)
    with pytest.raises(LedgerUnavailable, match="no reply"):
        await operator.request(COMMAND, b"bad", 0.3)
    assert await operator.request(COMMAND, b"good", 5) == b"done"


async def test_only_the_operator_may_send_commands(place: Place) -> None:
    """The server's permissions let only the operator send commands."""
    with pytest.raises(NotPermitted):
        await (await place.connect("watcher")).request(COMMAND, b"", 1)


async def test_a_heartbeat_is_not_stored(place: Place) -> None:
    """A heartbeat is delivered, but not stored in the ledger."""
    agent = await place.connect("agent")
    await agent.publish("apportion.beat.agent.n1", b"alive")
    assert await agent.last_revision() == 0
