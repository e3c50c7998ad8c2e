"""The process that answers requests about the past, a low-priority child of the gateway.

    python -m apportion.gateway.past_process SOCKET FOLDER [ARCHIVES [PRICES]]

The process prints a line to standard output once it listens. It ends when its standard input
closes, because then the gateway has ended."""

import asyncio
import contextlib
import os
import shutil
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web

from apportion.core.ledger.state import State
from apportion.gateway.api import diff, history, log
from apportion.gateway.api.answering import Handlers, guarded, guarded_routes, json_response
from apportion.gateway.api.diff import Diff
from apportion.gateway.api.endpoint import Endpoint, Handler
from apportion.gateway.api.history import History
from apportion.gateway.api.log import Log
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.moments import Moments
from apportion.gateway.api.past_client import RECORDS
from apportion.gateway.api.plans import PLAN, Plans
from apportion.gateway.api.query import REVISION_MAX, RequestRefused, parsed, whole
from apportion.gateway.api.reads import READS, WHY, Read
from apportion.gateway.api.reports import Reports
from apportion.gateway.api.why import PastView, PastWhy
from apportion.gateway.past.past import Past, open_past
from apportion.gateway.past.states import BeforeBeginning
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.ledger.archive import ArchiveError
from apportion.runtime.ledger.port import LedgerError, Record
from apportion.runtime.process.config import read_config
from apportion.runtime.service.lifecycle import Service, run_service
from apportion_schemas import UnknownEvent

# makes an answer from the parameters and the path's parts
Answering = Callable[[Any, Mapping[str, str]], Awaitable[msgspec.Struct]]


class PastApi:
    """The HTTP API of the process that answers queries about the past."""

    def __init__(self, past: Past, *, measures: Measures, now: Callable[[], datetime]) -> None:
        self._past = past
        self._moments = Moments(past, now)
        self._log = Log(past)
        self._pieces = Pieces(past.chronicle)
        self._history = History(past, self._moments)
        self._diff = Diff(past, self._moments)
        self._why = PastWhy(past, self._history)
        self._plans = Plans(self._state, measures=measures)

    def handlers(self) -> Handlers:
        """Yield the handlers of the endpoints about the past, and of the plan endpoint."""
        for read in READS:
            at_moment = partial(self._at_moment, read)
            yield read, self._answering(read, self._why.answer) if read is WHY else sound(at_moment)
        for endpoint, answer in (
            (log.PAGE, self._log.page),
            (log.ENTRY, self._log.entry),
            (history.MOMENT, self._history.moment),
            (history.TIMELINE, self._history.timeline),
            (history.POD_NAMES, self._history.names),
            (history.POD_HISTORY, self._history.pod),
            (history.NODE_HISTORY, self._history.node),
            (history.DEVICE_HISTORY, self._history.device),
            (history.WHO, self._history.who),
            (diff.DIFF, self._diff.answer),
        ):
            yield endpoint, self._answering(endpoint, answer)
        yield PLAN, sound(self._plans.handle)

    async def _state(self, request: web.Request) -> State:
        revision = await self._moments.revision("at", request.query.get("at", ""))
        return await self._past.states.at(revision)

    def _answering(self, endpoint: Endpoint, answer: Answering) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            query = parsed(endpoint.query, request.query)
            return json_response(await answer(query, request.match_info))

        return sound(handle)

    async def _at_moment(self, read: Read, request: web.Request) -> web.StreamResponse:
        revision = await self._moments.revision("at", request.query.get("at", ""))
        time = await self._past.chronicle.time_at(revision)
        state = await self._past.states.at(revision)
        body = read.of(PastView(state), request)
        return json_response(msgspec.structs.replace(body, time=time), compressed=True)

    async def records(self, request: web.Request) -> web.StreamResponse:
        """Answer with records after a revision, for event streams that start there."""
        after = whole("after", request.query.get("after", ""), most=REVISION_MAX)
        found = await self._pieces.behind(after)
        return web.Response(body=msgspec.msgpack.encode(found))


def sound(handle: Handler) -> Handler:
    """Wrap `handle` so that errors of the ledger and the archives become refusals."""

    async def answered(request: web.Request) -> web.StreamResponse:
        try:
            return await handle(request)
        except BeforeBeginning as early:
            fix = f"use revision {early.first} or later, or start the gateway with --archives DIR"
            raise RequestRefused(404, str(early), field="at", fix=fix) from None
        except UnknownEvent as unknown:
            raise RequestRefused(
                503,
                f"the ledger has events of a newer version: {unknown}",
                fix="upgrade the gateway",
            ) from None
        except (LedgerError, ArchiveError, OSError) as error:
            raise RequestRefused(
                503, f"the past cannot be read now: {error}", fix="retry later"
            ) from None

    return answered


PIECE_EVENTS = 500
KEPT_BYTES = 16 << 20


class Records(Protocol):
    """The records of a ledger; implemented by `Chronicle`."""

    async def span(self) -> tuple[int, int]:
        """Return the first and last revision that can be read."""

    async def read(self, deliver: Callable[[Record], None], *, after: int, upto: int) -> None:
        """Deliver the records after `after` up to `upto`."""


class Pieces:
    """A cache of records in groups, bounded in bytes. Only one group is read at a time."""

    def __init__(self, records: Records, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._records = records
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[int, list[Record]] = OrderedDict()
        self._bytes = 0
        self._turn = asyncio.Lock()

    async def behind(self, revision: int) -> list[Record]:
        """Return some records after `revision`, or [] if there are none.

        Skips dropped records. Raises LedgerError, ArchiveError, OSError."""
        async with self._turn:
            first, last = await self._records.span()
            revision = max(revision, first - 1)
            number = revision // PIECE_EVENTS
            piece = self._kept.get(number)
            if piece is None:
                piece = []
                begin, end = number * PIECE_EVENTS, (number + 1) * PIECE_EVENTS
                await self._records.read(
                    piece.append, after=max(begin, first - 1), upto=min(last, end)
                )
                if end <= last:
                    self._kept[number] = piece
                    self._bytes += _size(piece)
                while self._bytes > self._kept_bytes:
                    _, dropped = self._kept.popitem(last=False)
                    self._bytes -= _size(dropped)
            return [record for record in piece if record.revision > revision]


def _size(piece: list[Record]) -> int:
    return sum(len(record.payload) for record in piece)


NICE = 10
NAME = "past"


class PastProcess:
    """Objects of the gateway's child process that outlive restarts of its `body`."""

    def __init__(
        self, socket: Path, kept: Path, archives: Path | None, prices: Path | None
    ) -> None:
        self._socket = socket
        self._kept = kept
        self._archives = archives
        self._prices = prices
        self._measures: Measures | None = None

    async def body(self, service: Service) -> None:
        """Connect, listen, and read the ledger until cancelled."""
        self._measures = self._measures or Measures(service.metrics)

        async def end_with_parent() -> None:
            reader = asyncio.StreamReader()
            await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb")
            )
            await reader.read()
            service.stopping.set()

        service.loop("parent", end_with_parent)
        reach = service.config.reach
        ledger = await jetstream.connect(reach, name="gateway (index of the past)")
        looks = await jetstream.connect(reach, name="gateway (queries about the past)")
        try:
            past = await open_past(
                ledger, looks, kept=self._kept, archives=self._archives, metrics=service.metrics
            )
            service.ready_when(past.reader.not_ready)
            api = PastApi(past, measures=self._measures, now=service.clock.now)
            app = web.Application()
            reports = Reports(looks, clock=service.clock, prices=self._prices)
            handlers = [*api.handlers(), *reports.handlers()]
            app.add_routes(guarded_routes(self._measures, handlers))
            app.add_routes(
                [web.get(RECORDS, guarded(self._measures, "records", sound(api.records)))]
            )
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
    """Run the process until it is stopped, and return its exit code."""
    socket, kept = map(Path, sys.argv[1:3])
    given = sys.argv[3:]
    archives, prices = (Path(each) if each else None for each in (*given, "", "")[:2])
    with contextlib.suppress(OSError):
        os.nice(NICE)
    process = PastProcess(socket, kept, archives, prices)
    code = run_service(NAME, process.body, read_config())
    if kept.parent == socket.parent:  # a temporary folder; the gateway may be gone
        shutil.rmtree(socket.parent, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
