"""Property: our fast parser of the NATS protocol finds the same messages as the client library."""

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nats.protocol.parser import Parser

from apportion.runtime.jetstream.nats_client import Messages

HEADERS = b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"
payloads = st.lists(
    st.sampled_from([b"MSG ", b"HMSG a 1 2 3", b"\r\n", b"PING", b"{}", b" "]), max_size=4
).map(b"".join)
replies = st.sampled_from([b"", b" $JS.ACK.S.c.1.2.3.4.5"])


def _plain(reply: bytes, payload: bytes) -> bytes:
    return b"MSG a.b 7%s %d\r\n%s\r\n" % (reply, len(payload), payload)


def _with_headers(reply: bytes, payload: bytes) -> bytes:
    size = len(HEADERS) + len(payload)
    return b"HMSG a.b 7%s %d %d\r\n%s%s\r\n" % (reply, len(HEADERS), size, HEADERS, payload)


lines = st.one_of(
    st.builds(_with_headers, replies, payloads),
    st.builds(_plain, replies, payloads),
    st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'no'\r\n", b'INFO {"a":1}\r\n']),
)


class _Told:
    """Records the messages that a parser finds."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    async def _process_msg(self, *parts: Any) -> None:
        self.found.append(tuple(part or b"" for part in parts))

    async def _process_ping(self) -> None:
        self.found.append("ping")

    async def _process_pong(self) -> None:
        self.found.append("pong")

    async def _process_err(self, error: str) -> None:
        self.found.append(error)

    async def _process_info(self, info: object) -> None:
        self.found.append(info)


def _parsed(kind: type[Parser], pieces: Sequence[bytes]) -> tuple[list[Any], bytes]:
    told = _Told()
    parser = kind(told)

    async def parse() -> None:
        for piece in pieces:
            await parser.parse(piece)

    asyncio.run(parse())
    return told.found, bytes(parser.buf)


@given(said=st.lists(lines, min_size=1, max_size=8), cuts=st.lists(st.integers(1, 60), max_size=20))
def test_messages_are_parsed_as_by_the_client(said: list[bytes], cuts: list[int]) -> None:
    """Our fast parser finds the same messages as the NATS client's own parser.

    This holds however the input is split. Our parser leaves no input unparsed."""
    data, pieces = b"".join(said), []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    pieces = [piece for piece in (*pieces, data) if piece]
    found, rest = _parsed(Messages, pieces)
    assert (found, rest) == _parsed(Parser, pieces)
    assert len(found) == sum(line != b"+OK\r\n" for line in said)
