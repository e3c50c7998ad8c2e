"""Point 23: a reader that hears and does not read slows nobody, and is hung up on by the server."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from apportion.runtime.ledger.port import Record
from tests.support.nats import Bus, draft, running_bus
from tests.support.polling import until

PAYLOAD = json.dumps("x" * 900_000).encode()
EVENTS = 90
"""More than the 64 MiB that a nats-server holds for one connection."""


def noting(revisions: list[int]) -> Callable[[Record], None]:
    """Keeps the revision of each record."""
    return lambda record: revisions.append(record.revision)


async def deaf(bus: Bus) -> socket.socket:
    """An auditor who subscribed to all that is said, and never reads of it."""
    url = urlsplit(bus.server.url_for("auditor"))
    connection = socket.create_connection((url.hostname or "", url.port or 0), 10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    hello = json.dumps({"verbose": False, "user": url.username, "pass": url.password})
    connection.sendall(f"CONNECT {hello}\r\nSUB apportion.v1.> 1\r\nPING\r\n".encode())
    said = b""
    while b"PONG" not in said:
        said += await asyncio.to_thread(connection.recv, 4096)
    return connection


@pytest.mark.timeout(180)
async def test_who_does_not_read_is_hung_up_on_and_others_read_on(tmp_path: Path) -> None:
    """All is appended, and read by a scheduler and another auditor, who miss nothing."""
    async with running_bus(tmp_path / "nats") as bus:
        seen: dict[str, list[int]] = {"scheduler": [], "auditor": []}
        for role, revisions in seen.items():
            await (await bus.connect(role)).follow(noting(revisions))
        connection = await deaf(bus)
        writer = await bus.connect("watcher")
        for _ in range(EVENTS):
            await writer.append([draft(payload=PAYLOAD)])
        every = list(range(1, EVENTS + 1))

        async def all_came() -> bool:
            return all(revisions == every for revisions in seen.values())

        await until(all_came, "everybody else to have read all", timeout_s=120)

        async def hung_up() -> bool:
            log = (tmp_path / "nats" / "nats-server.log").read_text()
            return "Slow Consumer Detected" in log

        await until(hung_up, "the server to hang up on who does not read")
        connection.close()
