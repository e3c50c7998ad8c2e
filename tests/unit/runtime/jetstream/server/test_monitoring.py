"""Tests of the client of nats-server's monitoring port. Another server may be listening on that
port."""

import asyncio

import pytest

from apportion.runtime.jetstream.server.embedded import server_says


@pytest.mark.parametrize(
    "answer",
    [
        b'INFO {"server_id":"x"}\r\n',  # the port for clients
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
)
async def test_what_is_no_monitoring_port_says_nothing(answer: bytes) -> None:
    """If another server answers on the monitoring port, the client returns no information."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await server_says(f"http://127.0.0.1:{port}") == {}
