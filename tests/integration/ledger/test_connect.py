"""A client that cannot connect to the ledger gets a clear error without the password."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.client import JetStreamLedger, connect
from apportion.runtime.jetstream.nats_client import LeavingClient
from apportion.runtime.jetstream.server.embedded import EmbeddedServer
from apportion.runtime.jetstream.wire import Message
from apportion.runtime.ledger.port import LedgerUnavailable, NotPermitted, ServerTooOld
from tests.support.nats import Bus, Proxy, draft
from tests.support.polling import until


@contextlib.asynccontextmanager
async def _greeting_as(version: str, *, before: bytes = b"") -> AsyncIterator[str]:
    """Start a listener that greets clients as nats-server of this version, and yield its URL.

    The listener sends the bytes `before` ahead of its first pong."""
    greeting = {"server_id": "x", "version": version, "max_payload": 1048576, "headers": True}

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(greeting).encode() + b"\r\n")
        first = before
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(first + b"PONG\r\n")
                first = b""
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.mark.parametrize(
    "version", ["1.4.1", "2.10.22", "2.11.16", "2.12.0", "2.12.6", "2.13.0", "2.13.9"]
)
async def test_a_server_without_batches_or_security_fixes_is_refused(version: str) -> None:
    """The client refuses a server that lacks atomic batches or security fixes. The error names the
    server's version."""
    async with _greeting_as(version) as url:
        with pytest.raises(ServerTooOld) as old:
            await connect(url, name="test")
    assert old.value.found == version


@pytest.mark.parametrize("version", ["2.12.7", "2.14.0", "2.15.1", "3.0.0", "dev"])
async def test_a_server_with_all_fixes_is_used(version: str) -> None:
    """The client connects to a NATS server with all security fixes, or without a version number."""
    async with _greeting_as(version) as url, await connect(url, name="test") as ledger:
        assert ledger.wire is not None


async def test_nobody_listening_is_said_in_time_and_without_the_password() -> None:
    """If no server listens, the client fails within its timeout and names the address but not the
    password."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(LedgerUnavailable) as failure:
            await connect(f"nats://agent:s3cret@127.0.0.1:{port}", name="test", timeout_s=0.5)
    assert f"nats://127.0.0.1:{port}" in str(failure.value)
    assert "APPORTION_NATS_URL" in str(failure.value)
    assert "s3cret" not in str(failure.value)


async def test_a_server_that_pings_before_it_answers_is_connected_to() -> None:
    """A client connects to a server that sends a ping before its first pong."""
    async with _greeting_as("2.14.0", before=b"PING\r\n") as url:
        ledger = await connect(url, name="test", timeout_s=20)
        await ledger.publish("apportion.beat.agent.test", b"")
        await ledger.close()


async def test_a_server_that_says_nothing_is_given_up() -> None:
    """The client gives up on an open port that sends no greeting."""

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(LedgerUnavailable, match=r"within 0\.5 s"):
        await connect(f"nats://127.0.0.1:{port}", name="test", timeout_s=0.5)
    server.close()


async def test_a_server_that_ends_every_connection_is_given_up() -> None:
    """The client gives up in time on a server that refuses every connection, even if the library
    loses the first cancellation. That happens to about one client in thirty."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.14.0","max_payload":1048576}\r\n')
        await reader.readline()
        writer.write(b"-ERR 'maximum account active connections exceeded'\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tries = [connect(url, name="test", timeout_s=0.3 + each / 150) for each in range(150)]
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*tries, return_exceptions=True)
    assert {type(each) for each in ended} == {LedgerUnavailable}
    server.close()


@pytest.mark.parametrize("user", ["agent:wrong", "nobody:wrong"])
async def test_a_wrong_password_is_refused_at_once_and_not_shown(bus: Bus, user: str) -> None:
    """Wrong credentials fail at once without retries, and the error does not contain them."""
    async with asyncio.timeout(20):
        with pytest.raises(NotPermitted, match="user or its password is wrong") as refused:
            await connect(f"nats://{user}@127.0.0.1:{bus.server.port}", name="test", timeout_s=60)
    assert "wrong@" not in str(refused.value)
    assert ":wrong" not in str(refused.value)


async def test_no_user_gets_nothing(bus: Bus) -> None:
    """The server refuses a client without a user."""
    with pytest.raises(NotPermitted):
        await connect(f"nats://127.0.0.1:{bus.server.port}", name="test")


async def test_any_server_of_a_list_will_do(bus: Bus) -> None:
    """With a list of URLs the client uses the first server that answers."""
    url = f"nats://watcher:x@127.0.0.1:1, {bus.server.url_for('watcher')}"
    ledger = await connect(url, name="test")
    assert await ledger.append([draft()]) == [1]
    await ledger.close()


async def test_a_frozen_server_is_left_with_what_it_would_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a server freezes, the client changes to another server at once. It does not wait for
    buffered bytes to be sent."""
    monkeypatch.setattr(jetstream, "PING_INTERVAL_S", 1)
    first, second = EmbeddedServer(tmp_path / "a", port=-1), EmbeddedServer(tmp_path / "b", port=-1)
    await first.start()
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "credentials.json", tmp_path / "b")
    await second.start()
    ledger = await connect(f"{first.url_for('agent')},{second.url_for('agent')}", name="test")
    moved = asyncio.Event()
    ledger.wire.on_reconnect(moved.set)
    frozen = first if await connections(first) else second
    os.kill(frozen.pid, signal.SIGSTOP)
    sending = asyncio.create_task(send_much(ledger))
    try:
        await asyncio.wait_for(moved.wait(), 45)
        await ledger.publish("apportion.beat.agent.test", b"")
    finally:
        sending.cancel()
        os.kill(frozen.pid, signal.SIGCONT)
        await ledger.close()
        await first.stop()
        await second.stop()


async def send_much(ledger: JetStreamLedger) -> None:
    """Send more bytes than any buffer can store."""
    with contextlib.suppress(LedgerUnavailable):
        while True:
            await ledger.publish("apportion.beat.agent.test", b"x" * 500_000)
            await asyncio.sleep(0)


async def connections(server: EmbeddedServer) -> int:
    """Return the number of the server's client connections."""
    async with aiohttp.request("GET", f"{server.monitor_url}/varz") as page:
        return int((await page.json())["connections"])


async def test_a_cancellation_that_comes_with_the_server_s_answer_is_not_lost(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation that arrives together with the server's answer still cancels the
    subscription."""
    wire = (await bus.connect()).wire
    client = LeavingClient
    answered = client._process_pong

    async def cancel_with_the_answer(self: LeavingClient) -> None:
        await answered(self)
        listening.cancel()

    async def receive(_message: Message) -> None:
        pass

    monkeypatch.setattr(client, "_process_pong", cancel_with_the_answer)
    listening = asyncio.create_task(wire.subscribe(wire.new_inbox(), receive))
    async with asyncio.timeout(20):
        await asyncio.wait({listening})
    assert listening.cancelled()


async def test_a_connection_that_is_lost_ends_the_wait_for_a_subscription(
    bus: Bus, proxy: Proxy
) -> None:
    """A lost connection ends the wait for a subscription at once, because the awaited pong will
    never come."""
    wire = (await bus.connect(port=proxy.port)).wire
    assert isinstance(wire, jetstream.Connection)
    again = asyncio.Event()
    wire.on_reconnect(again.set)

    async def receive(_message: Message) -> None:
        pass

    proxy.mute()
    listening = asyncio.create_task(wire.subscribe(wire.new_inbox(), receive))
    await until(lambda: asked(wire), "the ping to be sent")
    await proxy.cut()
    async with asyncio.timeout(20):
        await again.wait()
        with pytest.raises(LedgerUnavailable, match="cannot subscribe"):
            await listening


async def asked(wire: jetstream.Connection) -> bool:
    """Return True if the client has sent a ping and waits for the pong."""
    return bool(wire._client._pongs)


async def test_a_closed_ledger_says_so(bus: Bus) -> None:
    """A request on a closed ledger fails with a clear error instead of hanging."""
    ledger = await bus.connect()
    await ledger.close()
    async with asyncio.timeout(20):
        with pytest.raises(LedgerUnavailable, match="closed"):
            await ledger.append([draft()])


async def test_an_append_waits_for_a_server_that_is_coming_back(bus: Bus) -> None:
    """An append waits while the server restarts, and then succeeds."""
    ledger = await bus.connect()
    await bus.crash()
    appending = asyncio.ensure_future(ledger.append([draft()]))
    await bus.restart()
    assert await appending == [1]


async def test_an_append_gives_up_on_a_server_that_stays_away(bus: Bus) -> None:
    """If the server is down, an append that was never sent fails as unavailable, not with an
    unknown outcome."""
    ledger = await bus.connect(ack_timeout_s=0.4)
    await bus.crash()
    with pytest.raises(LedgerUnavailable):
        await ledger.append([draft()])
