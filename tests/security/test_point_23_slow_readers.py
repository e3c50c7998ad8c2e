"""A subscriber that does not read delays no other client, and the server disconnects it."""

import asyncio
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from apportion.runtime.ledger.port import Record
from tests.security.attacked import attacked
from tests.support.nats import Bus, draft
from tests.support.polling import until

PAYLOAD = json.dumps("x" * 900_000).encode()
EVENTS = 50
"""45 MB: more than our servers hold for one connection, and less than the 64 MiB of a server that
has no such setting.
"""
HELD_MAX = 16 << 20


def noting(revisions: list[int]) -> Callable[[Record], None]:
    """Return a callback that stores the revision of each record."""
    return lambda record: revisions.append(record.revision)


async def deaf(bus: Bus) -> socket.socket:
    """Connect as an auditor that subscribes to all events and never reads them. Return the
    connection's socket."""
    url = urlsplit(bus.server.url_for("auditor"))
    connection = socket.create_connection((url.hostname or "", url.port or 0), 10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    hello = json.dumps({"verbose": False, "user": url.username, "pass": url.password})
    connection.sendall(f"CONNECT {hello}\r\nSUB apportion.v1.> 1\r\nPING\r\n".encode())
    said = b""
    while b"PONG" not in said:
        said += await asyncio.to_thread(connection.recv, 4096)
    return connection


def limit_that_was_exceeded(log: Path) -> int:
    """Return the byte limit that a reader exceeded, according to the server's log.

    Return 0 if the server disconnected the reader for another cause."""
    found = re.search(r"Slow Consumer Detected: MaxPending of (\d+) Exceeded", log.read_text())
    return int(found[1]) if found else 0


@pytest.mark.parametrize("guarded", [True, False])
async def test_who_does_not_read_is_hung_up_on_and_others_read_on(
    tmp_path: Path, *, guarded: bool
) -> None:
    """The server disconnects a subscriber that does not read, and other readers miss nothing.

    Without the limit the server keeps everything in memory for that subscriber.
    """

    def widen(text: str) -> str:
        assert "max_pending: 16MB" in text
        return text if guarded else text.replace("max_pending: 16MB\n", "")

    log = tmp_path / "nats" / "nats-server.log"
    async with attacked(tmp_path / "nats", widen) as bus:
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

        await until(all_came, "everybody else to have read all")

        async def hung_up() -> bool:
            return limit_that_was_exceeded(log) == HELD_MAX

        if guarded:
            await until(hung_up, "the server to hang up on who does not read")
        else:
            assert limit_that_was_exceeded(log) == 0
        connection.close()
