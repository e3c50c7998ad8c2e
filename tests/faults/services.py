"""The services and the load generator of one round, which faults kill, suspend and restart.

Invariant: after a process is killed, the test still knows which appends were acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
from pathlib import Path

from tests.faults.loader import BEGUN
from tests.support.processes import ServiceProcess

BEGIN_S = 60.0
_ACKNOWLEDGED = re.compile(r"acknowledged (\d+) (.+)")
Acknowledged = tuple[str, int | None]
"""An event's id, and its revision if known."""


class Service(ServiceProcess):
    """A service process of a round."""

    def __init__(self, name: str, verb: str, url: str, *options: str) -> None:
        super().__init__(verb, url, "--log-level", "debug", *options)
        self.name = name

    async def revive(self) -> None:
        if not self.running:
            await self.start()

    def acknowledged(self) -> list[Acknowledged]:
        """Return every append that the ledger has acknowledged, according to the service's log."""
        found = (_ACKNOWLEDGED.fullmatch(str(line.get("event"))) for line in self.log)
        return [(match[2], int(match[1])) for match in found if match]

    def troubles(self) -> list[str]:
        """Return the service's log lines about unexpected errors."""
        return [str(line) for line in self.log if line.get("event") == "unexpected error"]


class LoaderProcess:
    """The process that submits pods; it runs tests.faults.loader."""

    name = "loader"

    def __init__(self, url: str, folder: Path, seed: int, rate: float) -> None:
        self._journal = folder / "journal"
        self._log = folder / "loader.log"
        self._arguments = ["--nats", url, "--journal", str(self._journal)]
        self._arguments += ["--seed", str(seed), "--rate", str(rate)]
        self._process: asyncio.subprocess.Process | None = None

    async def revive(self) -> None:
        """Start the loader if it is not running. Return once it handles SIGTERM."""
        if self._process is not None and self._process.returncode is None:
            return
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.faults.loader", *self._arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        said = await asyncio.wait_for(self._process.stdout.readline(), BEGIN_S)
        assert said.decode().strip() == BEGUN, self._log.read_text(encoding="utf-8")[-2000:]

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Send SIGTERM, and wait until the loader has finished its step.

        Raise AssertionError if it exits with an error."""
        code = await asyncio.wait_for(self._end(signal.SIGTERM), 90)
        assert code == 0, self._log.read_text(encoding="utf-8")[-2000:]

    async def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        return await self._process.wait()

    def acknowledged(self) -> list[Acknowledged]:
        """Return every append that the ledger has acknowledged, according to the journal."""
        if not self._journal.exists():
            return []
        lines = self._journal.read_text(encoding="utf-8").splitlines(keepends=True)
        return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]
