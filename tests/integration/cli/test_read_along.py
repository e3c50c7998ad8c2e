"""The documented examples of programs that read the ledger run unmodified.

If the nats CLI is not installed, the test sends the server the bytes that the CLI would send."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from apportion.core.identity.configuration import User, configuration
from apportion.core.identity.identity import Identity
from apportion.runtime.process.reach import new_key, write_seed
from tests.security.attacked import AUDITOR, USERS, attacked
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus
from tests.support.polling import until

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "read-along"
SUBJECT = "apportion.v1.placement.>"
auditors = pytest.mark.parametrize("who", ["auditor", AUDITOR.name])


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a server with three auditors: the documented user, a second user with a password, and
    `anna`, who has a key."""
    key = new_key()
    write_seed(tmp_path / "anna.nk", key)
    anna = User(Identity("auditor", "anna"), nkey=key.public)
    async with attacked(tmp_path / "nats", lambda _: configuration((*USERS, anna))) as running:
        yield running


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide a ledger with three placements on two nodes."""
    opened = Facts(bus)
    await opened.open()
    await opened.write(rack("n1", 2), rack("n2", 2))
    await opened.submit("a", "b", "c", "d")
    for uid, node in (("a", "n1"), ("b", "n2"), ("c", "n1")):
        await opened.place(uid, node)
    return opened


async def printed(*command: str, path: Path | None = None) -> list[list[str]]:
    """Run a command and return the words of each line. `path` adds a folder of Python modules."""
    code, out, said = await ended(*command, path=path)
    assert code == 0, said
    return [line.split() for line in out.splitlines()]


async def ended(*command: str, path: Path | None = None) -> tuple[int | None, str, str]:
    """Run a command and return its exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **({"PYTHONPATH": str(path)} if path else {})},
    )  # fmt: skip
    out, said = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), said.decode()


def all_in_order(lines: list[list[str]]) -> None:
    """Check that the output has all three placements, each once and in the order of their
    revisions."""
    assert [line[2:] for line in lines] == [
        ["PodPlaced", "n1"], ["PodPlaced", "n2"], ["PodPlaced", "n1"],
    ]  # fmt: skip
    revisions = [int(line[0]) for line in lines]
    assert revisions == sorted(revisions)


@auditors
@pytest.mark.usefixtures("facts")
async def test_nats_py(bus: Bus, who: str) -> None:
    """The nats-py example prints every placement in order with an ordered consumer. It finds each
    node's chain of hashes intact."""
    example = str(EXAMPLES / "nats_py.py")
    url = bus.server.url_for(who)
    for _again in range(2):
        all_in_order(await printed(sys.executable, example, url, "--limit", "3"))


@pytest.mark.usefixtures("facts")
async def test_nats_py_ends_quietly_where_its_reader_has_enough(bus: Bus) -> None:
    """The nats-py example ends without an error when its pipe is closed, as by `head`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLES / "nats_py.py"), bus.server.url_for("auditor"),
            stdout=writer, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    finally:
        os.close(writer)
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, said.decode()) == (0, "")


NKEYS = """
from apportion.runtime.process.reach import parse_seed
class Pair:
    def __init__(self, seed):
        self._pair = parse_seed(seed.decode())
        self.public_key = self._pair.public.encode()
    def sign(self, data):
        return self._pair.sign(data)
    def wipe(self):
        pass
from_seed = Pair
"""
"""A stand-in for the package nkeys, not installed here, which nats-py needs; uses our own keys."""


@pytest.mark.usefixtures("facts")
async def test_nats_py_by_a_key(bus: Bus, tmp_path: Path) -> None:
    """The nats-py example connects with a key. Without a key or a password it names the missing
    option."""
    (tmp_path / "nkeys.py").write_text(NKEYS)
    url, key = f"nats://anna@127.0.0.1:{bus.server.port}", tmp_path / "anna.nk"
    example = (sys.executable, str(EXAMPLES / "nats_py.py"), url, "--limit", "3")
    all_in_order(await printed(*example, "--nkey", str(key), path=tmp_path))
    code, _, said = await ended(*example)
    assert (code, "anna" in said, "--nkey FILE" in said) == (2, True, True)
    other = tmp_path / "other.nk"
    write_seed(other, new_key())
    code, _, said = await ended(*example, "--nkey", str(other), path=tmp_path)
    assert (code, f"key in {other}" in said) == (2, True)


def built_with_go(target: Path) -> None:
    """Build the Go example, or skip the test without Go or the client library."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go on this machine")
    got = done(go, "mod", "download")
    if got.returncode:
        pytest.skip(f"the Go client cannot be had: {got.stderr[-300:]}")
    made = done(go, "build", "-o", str(target), ".")
    assert made.returncode == 0, made.stderr


def done(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder of the Go example."""
    return subprocess.run(command, cwd=EXAMPLES / "go", capture_output=True, text=True, check=False)


@auditors
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("facts")
async def test_go(bus: Bus, tmp_path: Path, who: str) -> None:
    """The Go example reads all events in order, with a consumer that needs no acknowledgements."""
    await asyncio.to_thread(built_with_go, tmp_path / "example")
    url = bus.server.url_for(who)
    all_in_order(await printed(str(tmp_path / "example"), url, "3"))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("facts")
async def test_go_by_a_key(bus: Bus, tmp_path: Path) -> None:
    """The Go example connects with a key."""
    await asyncio.to_thread(built_with_go, tmp_path / "example")
    url, key = f"nats://anna@127.0.0.1:{bus.server.port}", tmp_path / "anna.nk"
    all_in_order(await printed(str(tmp_path / "example"), "-nkey", str(key), url, "3"))
    code, _, said = await ended(str(tmp_path / "example"), url, "3")
    assert (code, "-nkey FILE" in said) == (1, True)


async def test_what_the_nats_cli_says_is_answered(bus: Bus, facts: Facts) -> None:
    """The server sends events to a client that sends the same bytes as the documented `nats sub`
    command."""
    page = await asyncio.to_thread((ROOT / "docs" / "tasks" / "read-along.md").read_text)
    for connecting in (
        "nats://auditor:PASSWORD@127.0.0.1:4222",
        "nats://127.0.0.1:4222 --nkey NAME.nk",
    ):
        assert f"nats sub -s {connecting} '{SUBJECT}'" in page
    url = urlsplit(bus.server.url_for("auditor"))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    assert (await reader.readline()).startswith(b"INFO ")
    hello = {"verbose": False, "pedantic": False, "user": url.username, "pass": url.password,
             "lang": "go", "headers": True, "no_responders": True}  # fmt: skip
    writer.write(f"CONNECT {json.dumps(hello)}\r\nPING\r\n".encode())
    assert await answered(reader) == b"PONG\r\n"
    writer.write(f"SUB {SUBJECT}  1\r\nPING\r\n".encode())
    assert await answered(reader) == b"PONG\r\n"
    await facts.place("d", "n2")
    head = (await answered(reader)).split()
    assert (head[0], head[1], head[2]) == (b"HMSG", b"apportion.v1.placement.n2", b"1")
    text = await reader.readexactly(int(head[-1]))
    assert json.loads(text[int(head[-2]) :])["data"]["pod"] == "d"
    writer.close()


async def answered(reader: asyncio.StreamReader) -> bytes:
    """Return the server's next line, skipping the ping that comes two seconds after connecting."""
    async with asyncio.timeout(45):
        while (line := await reader.readline()) == b"PING\r\n":
            pass
    return line


async def test_nats_cli(bus: Bus, facts: Facts) -> None:
    """The documented command of the nats CLI prints an event, if the nats CLI is installed."""
    nats = shutil.which("nats")
    if nats is None:
        pytest.skip("no nats CLI on this machine")
    process = await asyncio.create_subprocess_exec(
        nats, "sub", "-s", bus.server.url_for("auditor"), SUBJECT, "--count", "1",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip

    async def subscribed() -> bool:
        async with aiohttp.request("GET", f"{bus.server.monitor_url}/connz?subs=1") as page:
            connections = (await page.json())["connections"]
        return any(
            SUBJECT in each.get("subscriptions_list", ())
            for each in connections
            if each.get("name", "").startswith("NATS CLI")
        )

    await until(subscribed, "the CLI to subscribe")
    await facts.place("d", "n2")
    out, _ = await asyncio.wait_for(process.communicate(), 20)
    assert b'"apportion.v1.placement.n2"' in out
