"""Run `apportion up` as a user does, and other verbs against it.

A test can find a run's left-over processes by an environment variable that they inherit. The
ledger's server has the data folder on its command line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import msgspec

from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion_schemas import decode
from tests.support.polling import WAIT_S, wait_until
from tests.support.ports import free_port

APPORTION = [sys.executable, "-m", "apportion.cli.main"]
MARK = "APPORTION_TEST_MARK"


class Standalone:
    """One run of `apportion up`, for use in `with`.

    The end of the block ends the run and waits for its processes."""

    def __init__(self, data: Path | None, *options: str) -> None:
        self.data = data
        self.mark = uuid.uuid4().hex
        ports = ("--nats-port", str(free_port()), "--port", str(free_port()))
        self._options = [*ports, *options]
        if data is not None:
            self._options += ["--data", str(data)]
        self._process: subprocess.Popen[str] | None = None
        self._reading: threading.Thread | None = None
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.signal(signal.SIGTERM)
            self.ended()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self) -> None:
        """Start `apportion up` without waiting for it."""
        self._process = subprocess.Popen(
            [*APPORTION, "up", *self._options],
            env={**os.environ, MARK: self.mark, "COLUMNS": "250"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reading.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def running(self) -> bool:
        """Return True if the process of `up` itself is running."""
        return self._process is not None and self._process.poll() is None

    def said(self, part: str, *, timeout_s: float = WAIT_S) -> str:
        """Wait until `apportion up` prints a line that contains `part`, and return that line."""

        def found() -> str:
            if not (running := self.running) and self._reading is not None:
                self._reading.join(10)  # its last output may still be in the pipe
            line = next((line for line in self.lines if part in line), "")
            assert line or running, f"`up` ended before it said {part!r}:\n{self.output}"
            return line

        return wait_until(found, f"`up` to say {part!r}", timeout_s=timeout_s)

    def up(self) -> Self:
        """Wait until `up` has started all services and has printed its closing hint."""
        self.said("Stop everything with Ctrl-C")
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process of `up` alone."""
        assert self._process is not None
        self._process.send_signal(number)

    def ended(self, *, timeout_s: float = WAIT_S) -> int:
        """Wait until `up` ends, and return its exit code."""
        assert self._process is not None
        assert self._reading is not None
        code = self._process.wait(timeout_s)
        self._reading.join(10)
        return code

    def processes(self) -> dict[str, int]:
        """Return the process ids that `up` has recorded, by name."""
        assert self.data is not None
        text = (self.data / "connection.json").read_text()
        return dict(json.loads(text)["processes"])

    def kill_service(self, name: str) -> int:
        """Kill one service with SIGKILL, and return its former process id."""
        pid = self.processes()[name]
        os.kill(pid, signal.SIGKILL)
        return pid

    def started_again(self, name: str, before: int) -> None:
        """Wait until the service runs with a process id other than `before`."""
        wait_until(
            lambda: self.processes().get(name, before) != before,
            f"{name} to be started again",
        )  # fmt: skip

    def ready_again(self, name: str, before: int) -> None:
        """Wait until the service runs with a process id other than `before` and reports ready."""
        self.started_again(name, before)
        assert self.data is not None
        log = self.data / "logs" / f"{name}.log"

        def ready() -> bool:
            *_, health = re.findall(r" health=(\S+)", log.read_text())
            try:
                with urllib.request.urlopen(health, timeout=30) as answer:  # noqa: S310 - our own
                    return bool(answer.status == HTTPStatus.OK)
            except OSError:
                return False

        wait_until(ready, f"{name} to be ready")

    def left(self, *, itself: bool = False) -> list[int]:
        """Return the ids of all processes of this run that still exist on this machine.

        With `itself`, include the process of `apportion up`."""
        own = self._process.pid if self._process and self.running and not itself else 0
        return [pid for pid in _pids() if pid != own and self._ours(pid)]

    def left_of(self, program: str) -> list[int]:
        """Return the ids of this run's processes whose command line names this program."""
        return [pid for pid in self.left() if program.encode() in _proc(pid, "cmdline")]

    def _ours(self, pid: int) -> bool:
        environment = _proc(pid, "environ").split(b"\0")
        arguments = _proc(pid, "cmdline").split(b"\0")
        if f"{MARK}={self.mark}".encode() in environment:
            return True
        return self.data is not None and any(
            argument.startswith(str(self.data).encode()) for argument in arguments
        )

    def nothing_left(self, *, timeout_s: float = WAIT_S) -> None:
        """Wait until no process of this run is left."""
        wait_until(lambda: not self.left(), "every process to end", timeout_s=timeout_s)

    def run(
        self, *words: str, stdin: bytes = b"", timeout_s: float = WAIT_S, columns: int = 250
    ) -> subprocess.CompletedProcess[str]:
        """Run one verb against this `up`, as from a second terminal with this many columns."""
        done = subprocess.run(
            [*APPORTION, *words], input=stdin, capture_output=True, timeout=timeout_s, check=False,
            env={**os.environ, "APPORTION_DATA": str(self.data), "COLUMNS": str(columns)},
        )  # fmt: skip
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def json(self, *words: str, code: int = 0, stdin: bytes = b"") -> Any:
        """Run a verb with `--json`, and return its decoded output. Fail unless its exit code is
        `code`."""
        done = self.run(*words, "--json", stdin=stdin)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    def folded(self) -> StateFold:
        """Fold the events that `apportion tail --json` prints, and return the fold."""
        done = self.run("tail", "--from", "1", "--no-follow", "--json")
        assert done.returncode == 0, done.stderr
        cluster = StateFold()
        for line in done.stdout.splitlines():
            told = msgspec.json.decode(line, type=_Told)
            record = Record(told.revision, told.subject, bytes(told.event))
            cluster.apply(record, decode(record.payload, subject=record.subject))
        return cluster


class _Told(msgspec.Struct):
    """A line that `apportion tail --json` prints for an event, with the event's exact bytes."""

    revision: int
    subject: str
    event: msgspec.Raw


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def settle(up: Standalone, count: int, *, timeout_s: float = WAIT_S) -> float:
    """Wait until `count` pods are allocated and no pod is in another phase.

    Return the seconds that this took."""
    began = time.monotonic()

    def allocated() -> bool:
        done = up.run("get", "pods", "--json")
        if done.returncode:
            return False  # the gateway may be the killed service
        pods = json.loads(done.stdout)["items"]
        return len(pods) == count and all(pod["phase"] == "allocated" for pod in pods)

    wait_until(allocated, f"{count} pods to be allocated", timeout_s=timeout_s, interval_s=0.3)
    return time.monotonic() - began
