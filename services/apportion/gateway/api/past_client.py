"""Starts the process that answers queries about the past, and passes the queries on to it.

The process is a low-priority child of the gateway (`gateway.past_process`), reached through a
socket that only this user can open. It starts with the first request, or earlier for a long ledger,
and again if it dies. It ends when its standard input closes, which happens when the gateway ends.
Invariant: at most `LOOKS_MAX` requests run; further requests are refused, never queued."""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from apportion.gateway.api.answering import HEADERS, place_of
from apportion.gateway.api.query import RequestRefused
from apportion.runtime.ledger.port import Record
from apportion.runtime.process.config import ENVIRONMENT, ServiceConfig
from apportion.runtime.service.limits import AtOnce

RECORDS = "/records"  # the child's path for records in msgpack
HTTP_OK = 200
LOOKS_MAX = 16
LOOKS_EACH = 8
LOOK_S = 60.0
BEGIN_S = 30.0
LEAVE_S = 5.0
LONG_EVENTS = 20_000  # from this many events on, the ledger is indexed before the first request
TAKEN = ("Accept", "Content-Type", "Content-Length")  # request headers that the child needs
SOCKET = "ask.sock"
MODULE = "apportion.gateway.past_process"

_records = msgspec.msgpack.Decoder(list[Record]).decode


class Seen(msgspec.Struct, frozen=True):
    """The options of the process that answers queries about the past."""

    monitor: str = ""
    archives: Path | None = None
    prices: Path | None = None
    kept: Path | None = None  # a temporary folder if None


class PastClient:
    """Runs the child process that answers about past states, and passes requests on to it."""

    def __init__(self, config: ServiceConfig, seen: Seen) -> None:
        self._config = config
        self._seen = seen
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None
        self._folder: Path | None = None
        self._beginning = asyncio.Lock()
        self._looks = AtOnce(LOOKS_MAX, each=LOOKS_EACH)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Return the child's answer to a request. Raises RequestRefused."""
        fix = "retry in a moment, or use another gateway"
        takes = {"Accept-Encoding": request.headers.get("Accept-Encoding", "identity")}
        takes |= {name: request.headers[name] for name in TAKEN if name in request.headers}
        with place_of(self._looks, request, "concurrent queries about the past", fix):
            try:
                async with asyncio.timeout(LOOK_S):
                    session = await self.begin()
                    sent = await request.read() if request.body_exists else None
                    async with session.request(
                        request.method, request.rel_url, headers=takes, data=sent
                    ) as answer:
                        # The child's compressed answer is passed on unchanged.
                        packed = answer.headers.get("Content-Encoding")
                        return web.Response(
                            body=await answer.read(), status=answer.status,
                            content_type=answer.content_type, charset=answer.charset,
                            headers=HEADERS | ({"Content-Encoding": packed} if packed else {}),
                        )  # fmt: skip
            except TimeoutError:
                why = f"the query about the past took longer than {LOOK_S:g} s"
                raise RequestRefused(503, why, fix="retry; the query continues") from None
            except (aiohttp.ClientError, OSError) as error:
                why = f"the index for queries about the past is unavailable: {error}"
                raise RequestRefused(503, why, fix="retry; see the gateway's log") from None

    async def records(self, after: int) -> list[Record]:
        """Return the next records after a revision. Raises ConnectionError."""
        try:
            async with asyncio.timeout(LOOK_S):
                session = await self.begin()
                async with session.get(RECORDS, params={"after": str(after)}) as answer:
                    body = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ConnectionError(
                f"the index for queries about the past is unavailable: {error}"
            ) from error
        if answer.status != HTTP_OK:
            raise ConnectionError(f"the past cannot be read: {body[:500]!r}")
        return _records(body)

    async def begin(self) -> aiohttp.ClientSession:
        """Start the child unless it runs, and return an HTTP session with it. Raises OSError."""
        async with self._beginning:
            if self._session is not None and self._process and self._process.returncode is None:
                return self._session
            await self.close()  # a child that died
            self._folder = Path(tempfile.mkdtemp(prefix="apportion-past-"))
            config, socket = self._config, self._folder / SOCKET
            kept = self._seen.kept or self._folder / "kept"
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULE, str(socket), str(kept),
                str(self._seen.archives or ""), str(self._seen.prices or ""),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                # The gateway's own settings, except for the health port.
                env={
                    **os.environ,
                    ENVIRONMENT["nats_url"]: config.nats_url,
                    ENVIRONMENT["nats_key"]: str(config.nats_key or ""),
                    ENVIRONMENT["nats_token"]: str(config.nats_token or ""),
                    ENVIRONMENT["ledger_key"]: str(config.ledger_key or ""),
                    ENVIRONMENT["health"]: "127.0.0.1:0",
                    ENVIRONMENT["log_level"]: config.log_level,
                    ENVIRONMENT["log_format"]: config.log_format,
                    ENVIRONMENT["stop_timeout_s"]: str(LEAVE_S / 2),
                },
            )  # fmt: skip
            async with asyncio.timeout(BEGIN_S):
                heard = self._process.stdout
                if heard is None or not await heard.readline():
                    raise OSError("the process exited during startup; see the gateway's log")
            self._session = aiohttp.ClientSession(
                "http://past", connector=aiohttp.UnixConnector(str(socket)), auto_decompress=False
            )
            return self._session

    async def close(self) -> None:
        """Stop the child process and delete its temporary folder."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(LEAVE_S):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder = None
