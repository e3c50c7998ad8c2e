"""HTTP surface of a process: /healthz, /readyz, /metrics, and what a service adds.

Every surface has its limits here: the gateway's, the extender's, the webhook's, and those that
probes ask. Invariants: /readyz is true only while nobody has a reason against it, and it gives the
reasons; no client keeps others from being answered, and one that is refused is told why.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from ssl import SSLContext

import msgspec
from aiohttp import web

from apportion.core.answers.reads import ErrorAnswer
from apportion.runtime.process.config import Address, ConfigError
from apportion.runtime.process.metrics import CONTENT_TYPE, Metrics
from apportion.runtime.service.connections import Connections, Watched
from apportion.runtime.service.limits import AtOnce, Limits, Pace, TooMany, client_of

_log = logging.getLogger(__name__)

PROBES = ("/healthz", "/readyz")
"""What the machine that runs us asks, and nobody has to wait for."""
CLIENT = web.RequestKey("client", str)
"""Under this key a request says who asks: an address, or a person where there is a login."""
_CLOSE_TIMEOUT_S = 2.0
_AGAIN_S = 1
LIMITS = Limits()
_BACKLOG = 512

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]
Guard = Callable[[web.Request, Handle], Awaitable[web.StreamResponse]]


def address_of(request: web.BaseRequest) -> str:
    """The client as far as a connection tells: who is at its address."""
    return client_of(request.remote) if request.remote else "local"


class HttpServer:
    """Serves one address from `start` to `stop`; `routes` come on top of the common ones.

    Without `metrics` it has no /metrics. `tls` makes it HTTPS. `client` names who asks, for the
    limits of each. `guard` stands before every route but the probes, as a middleware of aiohttp.
    """

    def __init__(
        self,
        address: Address,
        *,
        metrics: Metrics | None,
        not_ready: Callable[[], list[str]],
        routes: Iterable[web.AbstractRouteDef] = (),
        key: str = "APPORTION_HEALTH",
        tls: SSLContext | None = None,
        limits: Limits = LIMITS,
        client: Callable[[web.BaseRequest], str] = address_of,
        guard: Guard | None = None,
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
            common.append(web.get("/metrics", partial(_rendered, metrics)))
        app.add_routes([*common, *routes])
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=_CLOSE_TIMEOUT_S,
            keepalive_timeout=limits.idle_s,
        )
        self._server: asyncio.Server | TlsListener | None = None

    async def start(self) -> Address:
        """Listen, and return the address with the port really taken. Raises ConfigError."""
        await self._runner.setup()
        made = self._runner.server
        assert made is not None  # noqa: S101 - it is there after the setup
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
        """Stop listening and end what is open."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    @web.middleware
    async def _limited(self, request: web.Request, handler: Handle) -> web.StreamResponse:
        """The request within the limits, or why it is not answered."""
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
                429, f"{client} asks for more than {limits.each_per_s:g} things a second",
                "ask less often; /api/v1/events tells what is new", again_s=_AGAIN_S,
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
                whose = f"of {client} " if many.of_client else ""
                return refused(
                    429 if many.of_client else 503,
                    f"{many.count} requests {whose}are being answered already",
                    "ask again in a moment, and fewer at once", again_s=_AGAIN_S,
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
    """The server, from here to the end of the block, at the address really taken.

    Raises:
        ConfigError: see `start`.
    """
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop()


def refused(
    status: int, error: str, fix: str, *, field: str = "", again_s: int = 0
) -> web.Response:
    """Why a request is not answered, as JSON; `again_s`: asked again after so long it may be."""
    response = _json(ErrorAnswer(error=error, field=field, fix=fix), status=status)
    response.headers.update({"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
    if again_s:
        response.headers["Retry-After"] = str(again_s)
    return response


def too_large(most: int) -> web.Response:
    """The refusal of a body that is larger than this surface takes. Its rest is not read."""
    error = f"the body has more than {most} bytes"
    response = refused(413, error, "send less in one request", field="body")
    response.force_close()
    return response


async def _rendered(metrics: Metrics, _request: web.Request) -> web.Response:
    return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), content_type="application/json", status=status
    )


AGAIN_S = 1.0
"""After so long it is tried again, where the system has no more sockets for us."""


class TlsListener:
    """Listens from `start` to `close`; `made` makes the protocol of each connection.

    A connection over TLS counts among its client's connections before its handshake. asyncio calls
    a protocol once the handshake is done, so half a handshake would hold a socket that is not
    counted. Here a connection is counted when it is accepted. Invariants: one client's connections,
    handshakes included, are as many as its share; a place is given back however a handshake ends.
    """

    def __init__(
        self, tls: SSLContext, connections: Connections, made: Callable[[], asyncio.Protocol]
    ) -> None:
        self._tls = tls
        self._connections = connections
        self._made = made
        self.sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: Address, *, backlog: int) -> None:
        """Listen at all addresses of the host. Raises OSError."""
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
        """Listen no more, and end what shakes hands; connections that are made stay."""
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
            except ConnectionAbortedError:  # it left before we came
                continue
            except OSError as error:
                _log.warning("no connection is accepted: %s; trying again", error)
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
            if isinstance(error, ConnectionAbortedError):  # by us: it took too long
                why = f"its TLS handshake was not done after {seconds:g} s"
                self._connections.ended(watched.address, why)
        except BaseException:
            watched.release()
            raise
