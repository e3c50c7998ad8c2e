"""The process that answers for the past: a child of the gateway, of lower priority than it.

    python -m apportion.gateway.past_process SOCKET FOLDER [ARCHIVES [PRICES]]

Its settings come from the environment, as those of every service do. It writes a line to its
standard output once it listens, and logs to standard error. It ends when its standard
input does, which is when the gateway that began it is gone. Invariant: what it costs is its own:
the gateway waits for an answer, and for nothing else in here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from pathlib import Path

from aiohttp import web

from apportion.gateway.api.measures import Measures
from apportion.gateway.api.past_api import PastApi
from apportion.gateway.api.reports import Reports
from apportion.gateway.past.past import open_past
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.process.config import read_config
from apportion.runtime.service.lifecycle import Service, run_service

NICE = 10
NAME = "past"


class PastProcess:
    """One process: where it listens, what it keeps, and what it measures through all its lives."""

    def __init__(
        self, socket: Path, kept: Path, archives: Path | None, prices: Path | None
    ) -> None:
        self._socket = socket
        self._kept = kept
        self._archives = archives
        self._prices = prices
        self._measures: Measures | None = None

    async def body(self, service: Service) -> None:
        """One life of the process: connect, listen, read the ledger, until cancelled."""
        self._measures = self._measures or Measures(service.metrics)

        async def end_with_parent() -> None:
            """Stop when standard input ends, as it does with the process that began this one."""
            reader = asyncio.StreamReader()
            await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb")
            )
            await reader.read()
            service.stopping.set()

        service.loop("parent", end_with_parent)
        reach = service.config.reach
        ledger = await jetstream.connect(reach, name="gateway (index of the past)")
        looks = await jetstream.connect(reach, name="gateway (looks into the past)")
        try:
            past = await open_past(
                ledger, looks, kept=self._kept, archives=self._archives, metrics=service.metrics
            )
            service.ready_when(past.reader.not_ready)
            api = PastApi(past, measures=self._measures, now=service.clock.now)
            app = web.Application()
            reports = Reports(
                looks, measures=self._measures, clock=service.clock, prices=self._prices
            )
            app.add_routes([*api.routes(), *reports.routes()])
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            try:
                await web.UnixSite(runner, str(self._socket)).start()
                print("listening", flush=True)  # noqa: T201 - what the gateway waits for
                await past.run()
            finally:
                await runner.cleanup()
                past.indexer.keep()
                past.index.close()
        finally:
            await ledger.close()
            await looks.close()


def main() -> int:
    """Answer until told to stop; the exit codes are those of every service."""
    socket, kept = map(Path, sys.argv[1:3])
    given = sys.argv[3:]
    archives, prices = (Path(each) if each else None for each in (*given, "", "")[:2])
    with contextlib.suppress(OSError):
        os.nice(NICE)
    process = PastProcess(socket, kept, archives, prices)
    code = run_service(NAME, process.body, read_config())
    if kept.parent == socket.parent:  # a temporary folder, whose owner may be gone
        shutil.rmtree(socket.parent, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
