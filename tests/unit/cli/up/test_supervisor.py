"""A held port is for the server that is told of it, and for nobody whom the kernel gives one."""

import asyncio
import socket
from contextlib import closing

import pytest

from apportion.cli.up.supervisor import HeldPort


async def test_who_is_told_of_it_listens_there_and_nobody_else_is_given_it() -> None:
    """It is held against whoever asks for a port, and not against the server that was told."""
    held = HeldPort()
    assert held.take() == f"127.0.0.1:{held.port}"
    with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", held.port))  # as the source of a connection has one
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", held.port)
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", held.port)
        assert await reader.read() == b""
        writer.close()
    held.release()


def test_once_released_it_is_anybodys() -> None:
    """Nothing of it is left behind, nor of the one before where another was taken."""
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
