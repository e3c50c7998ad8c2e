"""Plain messages: commands that are answered and beats that are not stored."""

import asyncio

import pytest

from apportion.runtime.ledger import LedgerUnavailable
from tests.support.nats import Bus


async def test_a_command_without_anyone_to_take_it_is_said_at_once(bus: Bus) -> None:
    """An agent that is not there does not cost the operator a timeout."""
    operator = await bus.connect("operator")
    async with asyncio.timeout(5):
        with pytest.raises(LedgerUnavailable, match=r"nobody takes apportion\.command\.agent\.n1"):
            await operator.request("apportion.command.agent.n1", b"", 60)


async def test_a_handler_that_fails_does_not_end_the_serving(bus: Bus) -> None:
    """One bad command, then a good one."""
    agent, operator = await bus.connect("agent"), await bus.connect("operator")

    async def answer(_subject: str, payload: bytes) -> bytes:
        if payload == b"bad":
            raise ValueError("cannot do that")
        return b"done"

    await agent.serve("apportion.command.agent.*", answer)
    with pytest.raises(LedgerUnavailable, match="no reply"):
        await operator.request("apportion.command.agent.n1", b"bad", 0.3)
    assert await operator.request("apportion.command.agent.n1", b"good", 5) == b"done"


async def test_serving_goes_on_after_the_server_was_restarted(bus: Bus) -> None:
    """An agent need not notice that the server was away."""
    agent, operator = await bus.connect("agent"), await bus.connect("operator")

    async def answer(_subject: str, payload: bytes) -> bytes:
        return payload

    await agent.serve("apportion.command.agent.n1", answer)
    await bus.crash()
    await bus.restart()
    await agent.last_revision()  # waits until connected again
    assert await operator.last_revision() == 0
    assert await operator.request("apportion.command.agent.n1", b"echo", 5) == b"echo"


async def test_beats_leave_no_trace_in_the_ledger(bus: Bus) -> None:
    """Liveness is not a fact of the ledger."""
    agent = await bus.connect("agent")
    await agent.publish("apportion.beat.agent.n1", b"alive")
    assert await agent.last_revision() == 0
