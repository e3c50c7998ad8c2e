"""End the processes that a killed test session left, such as a nats-server in its own session.

    python tests/support/leftovers.py      the watcher; process ids come on standard input

A watcher process learns the id of every process that the session starts. If its input closes
without a final message, the session was killed, and the watcher ends the processes that still run.
Invariant: the watcher checks each process's start time, so it never ends a new process with a
reused id."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

PATIENCE_S: Final = 10.0
LAST_WORD: Final = b"end\n"
STATE, START_TIME = 0, 19
"""Fields of /proc/PID/stat behind the name: 3 and 22 of proc(5)."""

_init = subprocess.Popen.__init__
_lock = threading.Lock()
_watchers: list[tuple[int, int]] = []
"""At most one watcher, as its process id and the descriptor of its input."""


def watch() -> None:
    """Report every child process of this process to the watcher from now on.

    The watcher ends the reported processes if the session is killed."""
    if sys.platform == "linux":
        subprocess.Popen.__init__ = _init_and_report  # type: ignore[method-assign,assignment]


def end() -> None:
    """End the watcher without killing any process. Call this when the session ends normally."""
    subprocess.Popen.__init__ = _init  # type: ignore[method-assign]
    for pid, orders in _watchers:
        with contextlib.suppress(BrokenPipeError):
            os.write(orders, LAST_WORD)
        os.close(orders)
        os.waitpid(pid, 0)
    _watchers.clear()


def _init_and_report(popen: subprocess.Popen[Any], *given: Any, **named: Any) -> None:
    _init(popen, *given, **named)
    with _lock:
        if not _watchers:
            _watchers.append(_start())
        with contextlib.suppress(BrokenPipeError):
            os.write(_watchers[0][1], b"%d\n" % popen.pid)


def _start() -> tuple[int, int]:
    theirs, ours = os.pipe()
    words = [sys.executable, "-I", "-S", __file__]
    opened = [(os.POSIX_SPAWN_DUP2, theirs, 0)]
    pid = os.posix_spawn(sys.executable, words, os.environ, file_actions=opened, setsid=True)
    os.close(theirs)
    return pid, ours


# ------------------------------------------------------------------ the watcher


def _started(pid: int) -> str:
    """Return when the process started, in clock ticks, or "" if the process has ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[STATE] in "ZX" else fields[START_TIME]
    return ""


def _serve() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    started: dict[int, str] = {}
    for line in sys.stdin.buffer:
        if line == LAST_WORD:
            return
        started[int(line)] = _started(int(line))

    def signal_all(*numbers: signal.Signals) -> list[int]:
        left = [pid for pid, at in started.items() if at and _started(pid) == at]
        for pid, number in itertools.product(left, numbers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return left

    until = time.monotonic() + PATIENCE_S
    for pid in signal_all(signal.SIGTERM, signal.SIGCONT):
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(pid)
            select.select([ended], [], [], max(until - time.monotonic(), 0))
            os.close(ended)
    signal_all(signal.SIGKILL)


if __name__ == "__main__":
    _serve()
