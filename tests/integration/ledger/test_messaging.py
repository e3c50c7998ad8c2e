"""Plain messages: commands with replies, and heartbeats that are not stored."""

import asyncio

import pytest

from apportion.runtime.jetstream.wire import Message
from apportion.runtime.ledger.port import LedgerUnavailable
from tests.support.nats import Bus


async def test_a_command_without_anyone_to_take_it_is_said_at_once(bus: Bus) -> None:
    """A command without a receiver fails at once, without waiting for the timeout."""
    operator = await bus.connect("operator")
    async with asyncio.timeout(20):
        with pytest.raises(
            LedgerUnavailable, match=r"no service answers apportion\.command\.agent\.n1"
        ):
            await operator.request("apportion.command.agent.n1", b"", 60)


async def test_a_handler_that_fails_does_not_end_the_serving(bus: Bus) -> None:
    """After a command whose handler fails, the next command is answered."""
    agent, operator = await bus.connect("agent"), await bus.connect("operator")

    async def answer(_subject: str, payload: bytes) -> bytes:
        if payload == b"bad":
            raise ValueError("cannot do that")
        return b"done"

    await agent.serve("apportion.command.agent.*", answer)
    with pytest.raises(LedgerUnavailable, match="no reply"):
        await operator.request("apportion.command.agent.n1", b"bad", 0.3)
    assert await operator.request("apportion.command.agent.n1", b"good", 30) == b"done"


async def test_a_handler_may_ask_over_the_connection_that_brought_the_command(bus: Bus) -> None:
    """A handler can send a request on the connection that delivered the command, and gets the
    reply."""
    agent, operator = await bus.connect("agent"), await bus.connect("operator")

    async def answer(_subject: str, _payload: bytes) -> bytes:
        return str(await agent.last_revision()).encode()

    await agent.serve("apportion.command.agent.n1", answer)
    assert await operator.request("apportion.command.agent.n1", b"", 30) == b"0"


@pytest.mark.parametrize(
    ("subject", "reply", "headers"),
    [
        ("", "", {}),
        ("apportion.beat.watcher.w 1", "", {}),
        ("apportion.beat.watcher.w1\r\nPING", "", {}),
        ("apportion.beat.watcher.w1", "a b", {}),
        ("apportion.beat.watcher.w1", "", {"Name": "value\r\nNats-Msg-Id: 7"}),
        ("apportion.beat.watcher.w1", "", {"Name": "value\rvalue"}),
        ("apportion.beat.watcher.w1", "", {"Na\nme": "value"}),
    ],
)
async def test_what_would_be_read_as_something_else_is_not_sent(
    bus: Bus, subject: str, reply: str, headers: dict[str, str]
) -> None:
    """The client refuses to send a name or value that would inject protocol lines. The connection
    stays usable."""
    watcher = await bus.connect()
    with pytest.raises(LedgerUnavailable, match="cannot send"):
        await watcher.wire.publish(subject, b"", reply=reply, headers=headers)
    assert await watcher.last_revision() == 0


@pytest.mark.parametrize("turns", range(8))
async def test_a_subscription_given_up_does_not_end_the_connection(bus: Bus, turns: int) -> None:
    """Cancelling a subscription at any point leaves the connection usable."""
    watcher = await bus.connect()

    async def receive(_message: Message) -> None: ...

    listening = asyncio.create_task(watcher.wire.subscribe("apportion.beat.>", receive))
    for _ in range(turns):
        await asyncio.sleep(0)
    listening.cancel()
    await asyncio.wait({listening})
    assert await watcher.last_revision() == 0


async def test_a_receiver_that_fails_does_not_end_the_connection(bus: Bus) -> None:
    """After a message whose receiver fails, later messages are still delivered in order."""
    watcher = await bus.connect()
    taken: list[bytes] = []
    both = asyncio.Event()

    async def receive(message: Message) -> None:
        if message.data == b"bad":
            raise ValueError("cannot take that")
        taken.append(message.data)
        if len(taken) == 2:
            both.set()

    await watcher.wire.subscribe("apportion.beat.watcher.w1", receive)
    for payload in (b"bad", b"good", b"better"):
        await watcher.publish("apportion.beat.watcher.w1", payload)
    async with asyncio.timeout(20):
        await both.wait()
    assert taken == [b"good", b"better"]
    assert watcher.connected


async def test_serving_goes_on_after_the_server_was_restarted(bus: Bus) -> None:
    """A service continues to answer commands after the server restarts."""
    agent, operator = await bus.connect("agent"), await bus.connect("operator")

    async def answer(_subject: str, payload: bytes) -> bytes:
        return payload

    await agent.serve("apportion.command.agent.n1", answer)
    await bus.crash()
    await bus.restart()
    await agent.last_revision()  # waits until connected again
    assert await operator.last_revision() == 0
    assert await operator.request("apportion.command.agent.n1", b"echo", 30) == b"echo"


async def test_beats_leave_no_trace_in_the_ledger(bus: Bus) -> None:
    """Heartbeats are not stored in the ledger."""
    agent = await bus.connect("agent")
    await agent.publish("apportion.beat.agent.n1", b"alive")
    assert await agent.last_revision() == 0
