"""Tests that `up` can reserve a port for a server that it starts later."""

import asyncio
import socket
from contextlib import closing

import pytest

from apportion.cli.up.supervisor import HeldPort


async def test_who_is_told_of_it_listens_there_and_nobody_else_is_given_it() -> None:
    """While a port is reserved for a server, only that server can use it."""
    held = HeldPort()
    assert held.take() == f"127.0.0.1:{held.port}"
    with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", held.port))  # as an outgoing connection would
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", held.port)
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", held.port)
        assert await reader.read() == b""
        writer.close()
    held.release()


def test_once_released_it_is_anybodys() -> None:
    """After the supervisor releases its reserved ports, any process can listen on them."""
    held = HeldPort()
    ports = []
    for _ in range(2):
        held.take()
        ports.append(held.port)
    held.release()
    assert len(set(ports)) == len(ports)
    for port in ports:
        with closing(socket.socket()) as other:
            other.bind(("127.0.0.1", port))
