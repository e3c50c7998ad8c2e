"""Tests that NATS messages are read correctly, however the network splits their bytes."""

import pytest
from nats.aio.subscription import Subscription

from apportion.runtime.jetstream.nats_client import LeavingClient, Messages
from apportion.runtime.jetstream.wire import Message

LARGE = bytes(range(256)) * 400
SENT = b"MSG a 1 r %d\r\n%b\r\nMSG b 1 2\r\nhi\r\nHMSG c 1 12 14\r\nNATS/1.0\r\n\r\nho\r\n" % (
    len(LARGE),
    LARGE,
)


def listening() -> tuple[Messages, list[tuple[str, str, bytes]]]:
    """Return a reader of NATS messages, and the list to which it adds each message."""
    arrived: list[tuple[str, str, bytes]] = []

    async def tell(failure: Exception) -> None:
        raise failure

    async def receive(message: Message) -> None:
        arrived.append((message.subject, message.reply, message.data))

    client = LeavingClient(tell)
    client.take_at_once(Subscription(client, 1), receive)
    return Messages(client), arrived


@pytest.mark.parametrize("read_bytes", [1, 13, 1_000, len(LARGE), len(SENT)])
async def test_a_large_message_and_those_behind_it_arrive_whole(read_bytes: int) -> None:
    """A large message and those after it arrive complete, whatever amounts of bytes the network
    delivers at a time."""
    messages, arrived = listening()
    for at in range(0, len(SENT), read_bytes):
        await messages.parse(SENT[at : at + read_bytes])
    assert arrived == [("a", "r", LARGE), ("b", "", b"hi"), ("c", "", b"ho")]


async def test_what_a_lost_connection_left_half_said_keeps_nothing_back() -> None:
    """If a connection breaks in the middle of a message, the reader drops the incomplete message
    when it reconnects."""
    messages, arrived = listening()
    await messages.parse(SENT[:1_000])
    messages.reset()  # as the client does when it connects again
    await messages.parse(b"MSG b 1 2\r\nhi\r\n")
    assert arrived == [("b", "", b"hi")]
