"""Without a cluster users connect with their own keys, and a revoked user is disconnected."""

import asyncio
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from apportion.core.identity.roles import ROLES
from apportion.runtime.jetstream import client
from apportion.runtime.jetstream.client import connect, create_stream
from apportion.runtime.jetstream.server.embedded import EmbeddedServer
from apportion.runtime.ledger.port import NotPermitted
from apportion.runtime.process.reach import Reach
from tests.support.nats import draft, running_bus
from tests.support.polling import until


async def said(folder: Path, *arguments: str, code: int = 0) -> Any:
    """Run `apportion user` with these arguments, and return its JSON output. If `code` is not 0,
    return its stderr."""
    command = [sys.executable, "-m", "apportion.cli.main", "user", *arguments]
    command += ["--data", str(folder), "--json"]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stderr
    return json.loads(ended.stdout) if not code else ended.stderr


def mode(path: Path) -> int:
    """Return the permission bits of the file, or 0 if it does not exist."""
    return path.stat().st_mode & 0o777 if path.exists() else 0


async def test_a_user_comes_by_his_key_and_is_cut_off_when_he_is_revoked(tmp_path: Path) -> None:
    """A user connects with a key that only the file's owner can read, until the user is revoked."""
    server = EmbeddedServer(tmp_path, port=-1, keys=True)
    await server.start()
    try:
        async with await connect(server.credentials.reach_for("bootstrap"), name="boot") as boot:
            await create_stream(boot)
        added = await said(tmp_path, "add", "watcher", "anna")
        key = tmp_path / "keys" / "anna.nk"
        assert (added["obeyed"], added["key"]) == (True, str(key))
        assert mode(key) == 0o600
        reach = Reach(f"nats://anna@127.0.0.1:{server.port}", key=key)
        other = await connect(server.credentials.reach_for("watcher"), name="other")
        anna = await connect(reach, name="anna")
        await anna.append([draft()])
        assert "already exists" in await said(tmp_path, "add", "watcher", "anna", code=1)
        await said(tmp_path, "revoke", "anna")

        async def cut_off() -> bool:
            return not anna.connected

        await until(cut_off, "the server to cut her off")
        assert mode(key) == 0
        assert "anna" not in [user["name"] for user in await said(tmp_path, "list")]
        assert other.connected
        await other.append([draft()])
        await anna.close()
        await other.close()
    finally:
        await server.stop()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["on this machine", "elsewhere"])
async def test_who_reads_along_is_told_that_he_was_revoked(tmp_path: Path, elsewhere: bool) -> None:
    """When a user is revoked, that user's running `tail` reports it and ends.

    This also holds for a `tail` that uses a copy of the deleted key file."""
    server = EmbeddedServer(tmp_path, port=-1, keys=True)
    await server.start()
    try:
        async with await connect(server.credentials.reach_for("bootstrap"), name="boot") as boot:
            await create_stream(boot)
        key = Path((await said(tmp_path, "add", "operator", "anna"))["key"])
        if elsewhere:
            key = Path(shutil.copy(key, tmp_path / "copy.nk"))
        reach = server.credentials.reach_for("watcher")
        tail = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "apportion.cli.main", "tail", "--from", "1", "--nats",
            f"nats://anna@127.0.0.1:{server.port}", "--nats-key", str(key),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with await connect(reach, name="other") as other:
            await other.append([draft()])
        assert tail.stdout is not None
        async with asyncio.timeout(45):
            assert await tail.stdout.readline(), "she reads along"
            await said(tmp_path, "revoke", "anna")
            _, told = await tail.communicate()
        assert tail.returncode == 3
        assert "'anna'" in told.decode()
        assert "`apportion user add`" in told.decode()
    finally:
        await server.stop()


async def test_a_token_that_is_good_no_more_is_told_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose token is rejected retries for a while before it reports the rejection, because
    the auth callout may be restarting."""
    monkeypatch.setattr(client, "CALLOUT_S", 1.0)
    async with running_bus(tmp_path / "nats") as bus:
        url, token = urlsplit(bus.server.url_for("watcher")), tmp_path / "token"
        token.write_text(url.password or "")
        reach = Reach(f"nats://watcher@{url.hostname}:{url.port}", token=token)
        async with await connect(reach, name="newcomer") as ledger:
            turned_away = asyncio.create_task(ledger.wire.turned_away())
            token.write_text("expired")
            await bus.crash()
            await bus.restart()
            async with asyncio.timeout(45):
                told = await turned_away
    assert "'watcher'" in str(told)
    assert f"token {token} " in str(told)


async def test_users_stand_in_columns(tmp_path: Path) -> None:
    """`user list` prints aligned columns, as all lists do."""
    await said(tmp_path, "begin", "--agent", "gpu-7=gpu-7,gpu-8")
    command = [sys.executable, "-m", "apportion.cli.main", "user", "list", "--data", str(tmp_path)]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True
    )
    head, *rows = ended.stdout.splitlines()
    assert head.split() == ["ROLE", "NAME", "NODES", "CREDENTIAL"]
    [agent] = [row.split() for row in rows if row.startswith("agent")]
    assert agent == ["agent", "gpu-7", "gpu-7,", "gpu-8", str(tmp_path / "keys" / "gpu-7.nk")]
    places = {row.index(str(tmp_path)) for row in rows if str(tmp_path) in row}
    assert places == {head.index("CREDENTIAL")}


async def test_who_has_no_key_or_another_gets_nothing(tmp_path: Path) -> None:
    """The server rejects a client without a key or with another user's key."""
    server = EmbeddedServer(tmp_path, port=-1, keys=True)
    await server.start()
    try:
        async with await connect(server.credentials.reach_for("bootstrap"), name="boot") as boot:
            await create_stream(boot)
        url = f"nats://scheduler@127.0.0.1:{server.port}"
        with pytest.raises(NotPermitted, match="rejects user 'scheduler'"):
            await connect(url, name="nobody")
        wrong = Reach(url, key=server.credentials.reach_for("gateway").key)
        with pytest.raises(NotPermitted):
            async with await connect(wrong, name="another") as ledger:
                await ledger.append([draft("placement.n1")])
    finally:
        await server.stop()


async def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    """`user` refuses an agent without nodes, an unknown role and an unknown user, and the error
    names the bad argument."""
    for arguments, cause in (
        (("add", "agent", "a"), "--node"),
        (("add", "root", "a"), "role 'root'"),
        (("add", "watcher", "A b"), "lower-case"),
        (("add", "bootstrap", "b"), "role bootstrap"),
        (("revoke", "a"), "name a"),
    ):
        assert cause in await said(tmp_path, *arguments, code=1)


async def test_who_is_added_is_told_how_to_connect(tmp_path: Path) -> None:
    """`user add` prints the options with which the new user connects and appends.

    Its help lists every role that a user can have."""
    user = [sys.executable, "-m", "apportion.cli.main", "user", "add"]

    async def printed(*arguments: str) -> str:
        ended = await asyncio.to_thread(
            subprocess.run, [*user, *arguments], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    listed = {line.split()[0] for line in (await printed("--help")).splitlines() if line.split()}
    assert listed >= {role.name for role in ROLES} - {"bootstrap", "callout"}
    assert not listed & {"bootstrap", "callout"}
    elsewhere = await printed("auditor", "eve", "--data", str(tmp_path))
    key = tmp_path / "keys" / "eve.nk"
    told = f"to connect: APPORTION_NATS_URL=nats://eve@HOST:PORT and --nats-key {key}\n"
    assert told in elsewhere, "an auditor appends nothing, and no server of `up` is here"
    connecting = f"-s nats://eve@HOST:PORT --nkey {key} "
    assert connecting in elsewhere
    assert "pip install 'nats-py[nkeys]'" in elsewhere
    server = EmbeddedServer(tmp_path, port=-1, keys=True)
    await server.start()
    try:
        async with await connect(server.credentials.reach_for("bootstrap"), name="boot") as boot:
            await create_stream(boot)
        said_last = (await printed("watcher", "anna", "--data", str(tmp_path))).splitlines()[-1]
        words = shlex.split(said_last)
        url, key, ledger_key = words[2].partition("=")[2], Path(words[5]), Path(words[7])
        assert words[4::2] == ["--nats-key", "--ledger-key"]
        async with await connect(Reach(url, key=key, ledger_key=ledger_key), name="anna") as anna:
            await anna.append([draft()])
    finally:
        await server.stop()


async def test_nobody_is_revoked_whom_none_can_add(tmp_path: Path) -> None:
    """`user revoke bootstrap` is refused, because without that user no ledger can be created and
    `up` cannot start."""
    await said(tmp_path, "begin")
    key = tmp_path / "offline" / "bootstrap.nk"
    assert await said(tmp_path, "revoke", "bootstrap", code=1)
    assert mode(key) == 0o600
    assert "bootstrap" in [user["name"] for user in await said(tmp_path, "list")]


async def test_each_is_handed_what_is_his_alone(tmp_path: Path) -> None:
    """`user begin --hand-out` gives each service its own seed, and gives the ledger key only to
    services that append."""
    handed = tmp_path / "handed"
    for name in ("nats-server", "bootstrap", "scheduler", "gpu-7"):
        (handed / name).mkdir(parents=True)
    arguments = ("begin", "--hand-out", str(handed), "--agent")
    await said(tmp_path, *arguments, "gpu-7=gpu-7")
    files = {str(each.relative_to(handed)): mode(each) for each in handed.rglob("*.*")}
    assert files == {
        "nats-server/nats.conf": 0o644,
        "bootstrap/nats.nk": 0o640,
        "scheduler/nats.nk": 0o640,
        "scheduler/ledger.key": 0o640,
        "gpu-7/nats.nk": 0o640,
    }
    configuration = handed / "nats-server" / "nats.conf"
    assert "password:" not in configuration.read_text()
    assert "apportion.intake.gpu-8" not in configuration.read_text()
    seeds = {each: each.read_bytes() for each in handed.rglob("*.nk")}
    assert len(set(seeds.values())) == len(seeds)
    users = await said(tmp_path, *arguments, "gpu-7=gpu-7,gpu-8")
    assert [user["nodes"] for user in users if user["role"] == "agent"] == [["gpu-7", "gpu-8"]]
    assert "apportion.intake.gpu-8" in configuration.read_text()
    assert {each: each.read_bytes() for each in handed.rglob("*.nk")} == seeds
    (handed / "nobody").mkdir()
    unnamed = await said(tmp_path, *arguments, "a=b", code=1)
    named = await said(tmp_path, *arguments, "scheduler=gpu-7", code=1)
    assert (unnamed == named, "the scheduler" in named) == (False, True)
