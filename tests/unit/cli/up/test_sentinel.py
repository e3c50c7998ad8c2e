"""Tests of the sentinel, the process that ends the services of `up` if `up` is killed. The sentinel
must not end any other process."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apportion.cli.up import sentinel
from tests.support.polling import wait_until

SLEEPER = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
BORN = """
import asyncio, os, signal, sys
from pathlib import Path
from apportion.cli.up.fork_server import Forked, ForkServer
from apportion.cli.up.supervisor import Child, Supervisor

async def main(data, pid):
    supervisor = Supervisor(data, 0, ForkServer([]), say=print, changed=list)
    supervisor._children.append(Child("agent", [], {}, data / "log", Forked(pid)))
    spawn = asyncio.create_subprocess_exec

    async def born(*words, **how):
        await spawn(*words, **how)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.create_subprocess_exec = born
    await supervisor._start_sentinel(remove=False)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""
"""An `up` that is killed just after a second sentinel started."""
STUBBORN = [sys.executable, "-c", f"{_DEAF} print('up', flush=True); signal.pause()"]


def started(command: list[str]) -> subprocess.Popen[str]:
    """Start a process in its own process group, and wait until it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    process.stdout.close()
    return process


@pytest.mark.parametrize(
    ("lines", "groups"),
    [
        (["+7\n", "+8\n"], {7, 8}),
        (["+7\n", "-7\n", "+8\n"], {8}),
        (["-7\n"], set()),
        (["+7\n", "done\n"], None),
        (["+1\n", "+0\n", "+-5\n", "nonsense\n", "\n"], set()),
    ],
)
def test_watch(lines: list[str], groups: set[int] | None) -> None:
    """The sentinel watches the process groups that `up` adds, until `up` removes them or exits
    normally. It never watches init or itself."""
    assert sentinel.watch(lines) == groups


def test_lock_holder(tmp_path: Path) -> None:
    """While a process holds the lock, the sentinel reads the process's id from the lock file. If no
    process holds it, the sentinel ignores what the file contains."""
    lock = tmp_path / "lock"
    assert sentinel.lock_holder(lock) == 0
    lock.write_text("4711")
    assert sentinel.lock_holder(lock) == 0
    with lock.open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert sentinel.lock_holder(lock) == 4711


def test_ends_when_the_pipe_closes(tmp_path: Path) -> None:
    """When `up` closes its pipe, the sentinel ends the process groups that it still watches. It
    deletes the data folder if it was started with `remove`."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "connection.json").write_text("{}")
    ended, kept = started(SLEEPER), started(SLEEPER)
    try:
        told = f"+{ended.pid}\n+{kept.pid}\n-{kept.pid}\n"
        watching = subprocess.run(
            [sys.executable, "-I", "-S", sentinel.__file__, str(data), "remove"],
            input=told, text=True, timeout=30, check=True,
        )  # fmt: skip
        assert watching.returncode == 0
        assert ended.wait(10) == -signal.SIGTERM
        assert kept.poll() is None
        assert not data.exists()
    finally:
        kept.kill()
        kept.wait()


def test_a_new_one_knows_who_runs_from_its_first_moment(tmp_path: Path) -> None:
    """If `up` is killed right after it started a new sentinel, that sentinel still ends the running
    services."""
    service = started(SLEEPER)
    try:
        up = [sys.executable, "-c", BORN, str(tmp_path), str(service.pid)]
        assert subprocess.run(up, timeout=30, check=False).returncode == -signal.SIGKILL
        assert service.wait(10) == -signal.SIGTERM
    finally:
        service.kill()
        service.wait()


def test_kills_what_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the grace period is over, the sentinel kills each process group that has ignored
    SIGTERM."""
    monkeypatch.setattr(sentinel, "GRACE_S", 0.2)
    stubborn = started(STUBBORN)
    sentinel.end({stubborn.pid})
    assert stubborn.wait(10) == -signal.SIGKILL


def test_signals_do_not_end_it(tmp_path: Path) -> None:
    """The sentinel ignores SIGINT and SIGTERM. It ends only when its pipe is closed."""
    read, write = os.pipe()
    watching = subprocess.Popen(
        [sys.executable, "-I", "-S", sentinel.__file__, str(tmp_path)], stdin=read
    )
    os.close(read)
    status = Path(f"/proc/{watching.pid}/status")
    wait_until(lambda: _ignores_sigterm(status), "the sentinel to ignore SIGTERM")
    watching.terminate()
    watching.send_signal(signal.SIGINT)
    os.close(write)
    assert watching.wait(10) == 0


def _ignores_sigterm(status: Path) -> bool:
    [line] = [row for row in status.read_text().splitlines() if row.startswith("SigIgn:")]
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
