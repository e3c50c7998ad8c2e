"""HTTP surface of a process: /healthz, /readyz, /metrics, and what a service adds.

Invariant: /readyz is true only while nobody has a reason against it, and it gives the reasons.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from ssl import SSLContext

import msgspec
from aiohttp import web

from apportion.runtime.process.config import Address, ConfigError
from apportion.runtime.process.metrics import CONTENT_TYPE, Metrics

MAX_REQUEST_BYTES = 1 << 20
_CLOSE_TIMEOUT_S = 2.0


class HttpServer:
    """Serves one address from `start` to `stop`; `routes` come on top of the common ones.

    `tls` makes it HTTPS; a request body has at most `request_bytes_max` bytes.
    """

    def __init__(
        self,
        address: Address,
        *,
        metrics: Metrics,
        not_ready: Callable[[], list[str]],
        routes: Iterable[web.AbstractRouteDef] = (),
        key: str = "APPORTION_HEALTH",
        tls: SSLContext | None = None,
        request_bytes_max: int = MAX_REQUEST_BYTES,
    ) -> None:
        self._address = address
        self._tls = tls
        self._metrics = metrics
        self._not_ready = not_ready
        self._key = key
        app = web.Application(client_max_size=request_bytes_max)
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._render_metrics),
                *routes,
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_TIMEOUT_S)

    async def start(self) -> Address:
        """Listen, and return the address with the port really taken. Raises ConfigError."""
        await self._runner.setup()
        host, port = self._address.host, self._address.port
        site = web.TCPSite(self._runner, host, port, ssl_context=self._tls)
        try:
            await site.start()
        except OSError as failure:
            await self._runner.cleanup()
            raise ConfigError(
                self._key,
                str(self._address),
                f"cannot listen there ({failure.strerror or failure}); choose a free port",
            ) from failure
        return Address(host, self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening and end what is open."""
        await self._runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        reasons = self._not_ready()
        return _json({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def _render_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})


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


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), content_type="application/json", status=status
    )
