"""HTTP server of a process: /healthz, /readyz, /metrics, and the service's routes.

aiohttp waits without limit for a first request or a body, so a wrapper of its protocol sets
deadlines. Invariants: no client keeps others from being answered. A refused client gets the reason.
A connection has a deadline except while a request is being answered."""

from __future__ import annotations

import asyncio
import enum
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import ExitStack, asynccontextmanager
from ssl import SSLContext
from typing import Any

import msgspec
from aiohttp import web

from apportion.core.answers.reads import ErrorAnswer
from apportion.core.bounded import remember
from apportion.runtime.process.config import Address, ConfigError
from apportion.runtime.process.metrics import CONTENT_TYPE, Metrics
from apportion.runtime.service.limits import (
    KNOWN_CLIENTS_MAX,
    AtOnce,
    Limits,
    Pace,
    TooMany,
    client_of,
)

SAID_EVERY_S = 10.0
PROBES = ("/healthz", "/readyz")  # exempt from all limits
# The client of a request: an address, or a user where there is a login.
CLIENT = web.RequestKey("client", str)
_CLOSE_TIMEOUT_S = 2.0
_AGAIN_S = 1
LIMITS = Limits()
Routes = Iterable[web.AbstractRouteDef]
_BACKLOG = 512
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]
Guard = Callable[[web.Request, Handle], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)


class _Phase(enum.Enum):
    HEAD = "request header incomplete"
    BODY = "request body incomplete"
    BUSY = ""
    IDLE = "idle, or response not read,"


class Connections:
    """All open connections of one server, with their limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.at_once = AtOnce(limits.connections, each=limits.connections_each)
        self.watched: dict[asyncio.BaseTransport, Watched] = {}
        self._silent: dict[str, None] = {}
        self._ended = 0
        self._said_s = 0.0

    def ended(self, address: str, why: str) -> None:
        """Log that we closed a connection, at most once in `SAID_EVERY_S`."""
        self._ended += 1
        now = time.monotonic()
        if now - self._said_s >= SAID_EVERY_S:
            more = f" ({self._ended - 1} more since the last report)" if self._ended > 1 else ""
            _log.warning("closed connection from %s: %s%s", address, why, more)
            self._ended, self._said_s = 0, now

    def silent(self, address: str, seconds: float) -> None:
        """Log, once per client, that an unused connection was closed; browsers open spare ones."""
        if address not in self._silent:
            _log.debug("closed connection from %s: no data for %g s", address, seconds)
        remember(self._silent, address, None, most=KNOWN_CLIENTS_MAX)

    def of(self, request: web.BaseRequest) -> Watched | None:
        """Return the connection of a request, or None if the connection is gone."""
        return None if request.transport is None else self.watched.get(request.transport)


class Watched(asyncio.Protocol):
    """One connection, which wraps aiohttp's protocol and sets deadlines."""

    def __init__(self, handler: asyncio.Protocol, connections: Connections) -> None:
        self._handler = handler
        self._connections = connections
        self._limits = connections.limits
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._phase = _Phase.HEAD
        self._has_place = False
        self._heard = False
        self.address = ""

    def admit(self, peer: object) -> bool:
        """Count a connection from `peer` until lost or released. Return False if too many."""
        self.address = client_of(str(peer[0])) if isinstance(peer, tuple) else "local"
        try:
            self._connections.at_once.enter(self.address)
        except TooMany as many:
            whose = "this client" if many.of_client else "all clients"
            why = f"limit reached, {many.count} connections of {whose}"
            self._connections.ended(self.address, why)
            return False
        self._has_place = True
        return True

    def release(self) -> None:
        """Stop counting this connection, if it is still counted."""
        if self._has_place:
            self._has_place = False
            self._connections.at_once.leave(self.address)

    def connection_made(self, transport: Any) -> None:
        """Pass the connection to aiohttp, or abort it if there are too many connections."""
        if not self._has_place and not self.admit(transport.get_extra_info("peername")):
            transport.abort()
            return
        self._transport = transport
        self._connections.watched[transport] = self
        self._handler.connection_made(transport)
        self._enter(_Phase.HEAD)

    def data_received(self, data: bytes) -> None:
        """Pass the data to aiohttp. The first byte of a request starts its deadline."""
        if self._transport is None:
            return
        self._heard = True
        if self._phase is _Phase.IDLE:
            self._enter(_Phase.HEAD)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass the client's end of data to aiohttp."""
        return self._handler.eof_received() if self._transport is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the loss to aiohttp, and forget the connection."""
        self.release()
        if self._transport is None:
            return
        self._stop_timer()
        del self._connections.watched[self._transport]
        self._transport = None
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """Signal to aiohttp that the client reads too slowly."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Signal to aiohttp that the client has caught up."""
        self._handler.resume_writing()

    def began(self, request: web.BaseRequest) -> None:
        """Note that a request's head has arrived completely; its body may still be arriving."""
        if request.content.is_eof():
            self._enter(_Phase.BUSY)
        else:
            self._enter(_Phase.BODY)
            request.content.on_eof(self._whole)

    def _whole(self) -> None:
        if self._phase is _Phase.BODY:
            self._enter(_Phase.BUSY)

    def answered(self) -> None:
        """Note that the request was answered. An unfinished body keeps its deadline."""
        if self._phase is not _Phase.BODY:
            self._enter(_Phase.IDLE)

    def _enter(self, phase: _Phase) -> None:
        self._stop_timer()
        self._phase = phase
        limits = self._limits
        seconds = {_Phase.HEAD: limits.head_s, _Phase.BODY: limits.body_s}.get(phase, limits.idle_s)
        if phase is not _Phase.BUSY and self._transport is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._late, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self, seconds: float) -> None:
        if self._transport is None:
            return
        if not self._heard:
            self._connections.silent(self.address, seconds)
        elif self._phase is not _Phase.IDLE:
            why = f"{self._phase.value} after {seconds:g} s"
            self._connections.ended(self.address, why)
        self._transport.abort()


def address_of(request: web.BaseRequest) -> str:
    """Return the address of the request's client."""
    return client_of(request.remote) if request.remote else "local"


class HttpServer:
    """An HTTP server on one address, with the common routes and `routes`."""

    def __init__(
        self,
        address: Address,
        *,
        metrics: Metrics | None,
        not_ready: Callable[[], list[str]],
        routes: Routes = (),
        key: str = "APPORTION_HEALTH",
        tls: SSLContext | None = None,
        limits: Limits = LIMITS,
        client: Callable[[web.BaseRequest], str] = address_of,  # whose limits apply
        guard: Guard | None = None,  # a middleware before every route except the probes
    ) -> None:
        self._address = address
        self._tls = tls
        self._not_ready = not_ready
        self._key = key
        self._limits = limits
        self._client = client
        self._guard = guard
        self._connections = Connections(limits)
        self._pace = Pace(limits.each_per_s, limits.each_burst)
        self._at_once = AtOnce(limits.connections, each=limits.each_at_once)
        self._heavy = AtOnce(limits.heavy_at_once, each=-(-limits.heavy_at_once // 2))
        app = web.Application(client_max_size=limits.body_bytes, middlewares=[self._limited])
        common = [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]
        if metrics is not None:

            async def rendered(_request: web.Request) -> web.Response:
                return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})

            common.append(web.get("/metrics", rendered))
        app.add_routes([*common, *routes])
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=_CLOSE_TIMEOUT_S, keepalive_timeout=limits.idle_s
        )
        self._server: asyncio.Server | TlsListener | None = None

    async def start(self) -> Address:
        """Start to listen. Return the address with the actual port. Raises ConfigError."""
        await self._runner.setup()
        made = self._runner.server
        assert made is not None  # noqa: S101 - it exists after the setup
        loop, address = asyncio.get_running_loop(), self._address
        try:
            if self._tls is not None:
                self._server = TlsListener(self._tls, self._connections, made)
                await self._server.start(address, backlog=_BACKLOG)
            else:
                self._server = await loop.create_server(
                    lambda: Watched(made(), self._connections),
                    address.host, address.port, backlog=_BACKLOG,
                )  # fmt: skip
        except OSError as failure:
            await self._runner.cleanup()
            raise ConfigError(
                self._key,
                str(self._address),
                f"cannot listen there ({failure.strerror or failure}); choose a free port",
            ) from failure
        return Address(address.host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    @web.middleware
    async def _limited(self, request: web.Request, handler: Handle) -> web.StreamResponse:
        connection = self._connections.of(request)
        if connection is not None:
            connection.began(request)
        try:
            if request.path in PROBES:
                return await handler(request)
            return await self._within(request, handler)
        finally:
            if connection is not None:
                connection.answered()

    async def _within(self, request: web.Request, handle: Handle) -> web.StreamResponse:
        client, limits = self._client(request), self._limits
        request[CLIENT] = client
        if not self._pace.allows(client):
            return refused(
                429, f"{client} sends more than {limits.each_per_s:g} requests per second",
                "send fewer requests; /api/v1/events streams changes", again_s=_AGAIN_S,
            )  # fmt: skip
        size = request.content_length
        if size is not None and size > limits.body_bytes:
            return too_large(limits.body_bytes)
        with ExitStack() as held:
            try:
                held.enter_context(self._at_once.one(client))
                if request.can_read_body and (size is None or size >= limits.heavy_bytes):
                    held.enter_context(self._heavy.one(client))
            except TooMany as many:
                whose = f"from {client} " if many.of_client else ""
                return refused(
                    429 if many.of_client else 503,
                    f"{many.count} requests {whose}are already in progress",
                    "retry shortly, with fewer requests at once", again_s=_AGAIN_S,
                )  # fmt: skip
            try:
                return await (self._guard(request, handle) if self._guard else handle(request))
            except web.HTTPRequestEntityTooLarge:
                return too_large(limits.body_bytes)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        reasons = self._not_ready()
        return _json({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)


@asynccontextmanager
async def listening(server: HttpServer) -> AsyncIterator[Address]:
    """Run the server during a `with` block and yield its address. Raises ConfigError."""
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop()


def refused(
    status: int, error: str, fix: str, *, field: str = "", again_s: int = 0
) -> web.Response:
    """Return the JSON answer for a refused request; `again_s` sets Retry-After."""
    response = _json(ErrorAnswer(error=error, field=field, fix=fix), status=status)
    response.headers.update({"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
    if again_s:
        response.headers["Retry-After"] = str(again_s)
    return response


def too_large(most: int) -> web.Response:
    """Return the answer for a body above `most` bytes, which also closes the connection."""
    error = f"the request body exceeds {most} bytes"
    response = refused(413, error, "send smaller requests", field="body")
    response.force_close()
    return response


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), content_type="application/json", status=status
    )


AGAIN_S = 1.0  # until the next try when the system has no more sockets


class TlsListener:
    """A listener that counts connections before their TLS handshake.

    asyncio calls a protocol only after the handshake, and so ignores unfinished handshakes."""

    def __init__(
        self, tls: SSLContext, connections: Connections, made: Callable[[], asyncio.Protocol]
    ) -> None:
        self._tls = tls
        self._connections = connections
        self._made = made
        self.sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: Address, *, backlog: int) -> None:
        """Listen on all IP addresses of the host. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, where in dict.fromkeys(found):
                self.sockets.append(socket.create_server(where, family=family, backlog=backlog))
                self.sockets[-1].settimeout(0)
        except OSError:
            self.close()
            raise
        for listening in self.sockets:
            self._begin(self._accept(listening))

    def close(self) -> None:
        """Stop listening and cancel handshakes. Established connections stay open."""
        for task in self._tasks:
            task.cancel()
        for listening in self.sockets:
            listening.close()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except ConnectionAbortedError:  # the client has already left
                continue
            except OSError as error:
                _log.warning("cannot accept connections, retrying: %s", error)
                await asyncio.sleep(AGAIN_S)
                continue
            watched = Watched(self._made(), self._connections)
            if watched.admit(peer):
                self._begin(self._shake_hands(accepted, watched))
            else:
                accepted.close()

    async def _shake_hands(self, accepted: socket.socket, watched: Watched) -> None:
        loop, seconds = asyncio.get_running_loop(), self._connections.limits.head_s
        try:
            await loop.connect_accepted_socket(
                lambda: watched, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:
            watched.release()
            if isinstance(error, ConnectionAbortedError):  # by the handshake timeout
                why = f"TLS handshake not finished after {seconds:g} s"
                self._connections.ended(watched.address, why)
        except BaseException:
            watched.release()
            raise
