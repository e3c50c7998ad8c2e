"""Run `apportion run` as a user does, and observe its process, its output and its guardian.

The guardian is the process that records the end of a run. All processes of a run inherit an
environment variable that marks them, so that a test can kill them all. None outlives the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.polling import wait_until
from tests.support.standalone import APPORTION, Standalone

MARK = "APPORTION_TEST_COMMAND"


class Command:
    """One `apportion run` process that uses a running `apportion up`.

    Use it in a `with` statement, which always ends the process."""

    def __init__(
        self, up: Standalone, *words: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._mark = f"{MARK}={uuid.uuid4().hex}"
        self._up = up
        self.lines: list[str] = []
        name, _, value = self._mark.partition("=")
        given = {"APPORTION_DATA": str(up.data), "COLUMNS": "250", name: value}
        self.process = subprocess.Popen(
            [*APPORTION, "run", *words], env={**os.environ, **given, **(environment or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reading.join(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.everything(), "its guardian to end")
        self.kill_everything()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def said(self, part: str) -> str:
        """Wait until the command prints a line that contains `part`, and return that line."""

        def found() -> str:
            return next((line for line in list(self.lines) if part in line), "")

        return wait_until(found, f"{part!r} in {self.lines}")

    def close(self) -> None:
        """Close the command's standard input, which ends a probe that waits for input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def ended(self) -> int:
        """Wait until the command ends. Return its exit code, which is negative after a signal."""
        code = self.process.wait(45)
        self._reading.join(10)
        return code

    def everything(self) -> list[int]:
        """Return the process ids of the command and of the guardian that records its end."""
        names = (entry.name for entry in Path("/proc").iterdir())
        return [pid for pid in map(int, filter(str.isdecimal, names)) if self._is(pid)]

    def kill_everything(self) -> None:
        """Kill all processes of the command's run with SIGKILL."""
        for pid in self.everything():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return self._mark.encode() in environment.split(b"\0")
