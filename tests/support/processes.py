"""Run a service as its users do: as a separate process with health endpoints and logs."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import intakes
from tests.support.polling import WAIT_S, until

NO_AGENTS = ("--agent-grace", "0")
"""Options of a scheduler in tests that report nodes without running agents."""
READY_INTERVAL_S = 0.1
"""The polling interval. Faster polling would slow down the service that starts."""
READ_S = 30
"""The timeout of an answer. It is long because a test machine may stall for a while."""


class ServiceProcess:
    """A process of `apportion <verb> ...` on one ledger, which ends with its `async with` block.

    If `build` is set, the process runs the product in that folder instead of this checkout. `first`
    is Python code that the process runs before the verb."""

    def __init__(
        self, verb: str, url: str, *options: str, build: Path | None = None, first: str = ""
    ) -> None:
        self.verb = verb
        self._first = first
        self._url = url
        self.build = build
        self._arguments = ["--nats", url, "--health", "127.0.0.1:0", "--log-format", "json"]
        self._arguments += options
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._health = ""
        self.log: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # including Ctrl-C
            if self._process is not None:
                await self.kill()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start the service, and wait until its health port listens."""
        if self.verb == "intake":
            intakes.there(self._url)
        if self.verb == "agent":
            await intakes.beside(self._url)
        code = f"{self._first}\nfrom apportion.{self.verb}.main import command; command()"
        self._health = ""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, *self._arguments, env=environment(self.build),
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read(self._process))

        async def listening() -> bool:
            return bool(self._health) or not self.running

        await until(listening, f"{self.verb} to listen")
        if not self.running:
            await self._reading  # it may have listened and ended before the last poll
        assert self._health, f"{self.verb} ended at once: {self.log}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def ready(self, timeout_s: float = WAIT_S) -> None:
        """Wait until /readyz of the service returns 200."""

        async def answers() -> bool:
            try:
                status, body = await self.get("/readyz")
            except OSError as silence:  # the machine may be busy elsewhere for seconds
                status, body = 0, str(silence)
            assert self.running, f"{self.verb} died: {self.log[-3:]}"
            self.reasons = body
            return status == 200

        what = f"{self.verb} to be ready"
        try:
            await until(answers, what, timeout_s=timeout_s, interval_s=READY_INTERVAL_S)
        except AssertionError as late:
            raise AssertionError(f"{late}; it says {self.reasons!r}, {self.log[-3:]}") from late

    async def get(self, path: str) -> tuple[int, str]:
        """Send one GET request to the service's health port. Return status and body."""
        return await asyncio.to_thread(_get, self._health + path)

    async def logged(self, part: str) -> dict[str, Any]:
        """Wait until the service logs a line whose event contains `part`, and return that line."""

        async def found() -> dict[str, Any]:
            return next((line for line in self.log if part in str(line.get("event"))), {})

        return await until(found, f"{self.verb} to log {part!r}")

    async def ended(self) -> int:
        """Wait until the service ends by itself, and return its exit code."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), WAIT_S)

    def stop_short(self) -> None:
        """Suspend the service with SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the service with SIGCONT."""
        self._signal(signal.SIGCONT)

    async def stop(self) -> int:
        """Stop the service with SIGTERM, and return its exit code."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill the service with SIGKILL."""
        await self._end(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    async def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        code = await process.wait()
        if self._reading is not None:
            await self._reading
        return code

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"event": line.decode(errors="replace")}
            self.log.append(entry)
            if entry.get("event") == "started":
                self._health = str(entry["health"]).removesuffix("/readyz")


def environment(build: Path | None) -> dict[str, str]:
    """Return the environment for a process that runs this checkout, or the product in the folder
    `build`."""
    return {**os.environ, **({} if build is None else {"PYTHONPATH": str(build)})}


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=READ_S) as answer:  # noqa: S310 - our own
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()
