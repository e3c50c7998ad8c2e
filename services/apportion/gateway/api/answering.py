"""Shared code of all API handlers: JSON answers, refusals, fair queueing and request counts.

Invariant: any error is answered with an `ErrorAnswer` that names field, value and fix."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple, NoReturn

import msgspec
from aiohttp import web

from apportion.core.answers.reads import UNKNOWN_PATH, ErrorAnswer
from apportion.gateway.api.endpoint import JSON, PREFIX, Endpoint, Handler
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.query import RequestRefused
from apportion.runtime.service.http import CLIENT
from apportion.runtime.service.limits import AtOnce, TooMany, Turns

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
COMPRESSED_BESIDE_BYTES = 16_384
WRITE_TIMEOUT_S = 30.0
HUNG_UP = 499  # the client is gone; this status only counts in the metrics of requests by status
Handlers = Iterable[tuple[Endpoint, Handler]]
_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


def short_turns() -> Turns:
    """Return a fair queue for jobs that take milliseconds.

    A client with few concurrent requests is never refused. A client that sends many waits while
    other clients are served."""
    return Turns(1, waiting=2_048, waiting_each=64)


class Sight(NamedTuple):
    """The check whether a tenant may see a namespace, stored in the tenant's request."""

    may_see: Callable[[str], Awaitable[bool]]


class Still(NamedTuple):
    """The check whether a client may still read a long answer, stored in its request."""

    may_go_on: Callable[[], Awaitable[bool]]


SIGHT = web.RequestKey("sight", Sight)  # set on requests whose client does not see everything
STILL = web.RequestKey("still", Still)  # set on requests if there is a login


def json_response(
    body: msgspec.Struct | msgspec.Raw, *, status: int = 200, compressed: bool = False
) -> web.Response:
    """Return the struct as a response, `compressed` only if the client accepts that."""
    response = web.Response(
        body=_encode(body),
        status=status,
        content_type=JSON,
        headers=HEADERS,
        zlib_executor_size=COMPRESSED_BESIDE_BYTES,
    )
    if compressed:
        response.enable_compression()
    return response


def refusal_response(refused: RequestRefused) -> web.Response:
    """Return the refusal as a response."""
    response = json_response(refused.answer, status=refused.status)
    if refused.retry_after_s:
        response.headers["Retry-After"] = str(refused.retry_after_s)
    return response


def guarded(measures: Measures, what: str, handle: Handler) -> Handler:
    """Return a handler that answers errors of `handle` as JSON, and counts them under `what`."""

    async def guard(request: web.Request) -> web.StreamResponse:
        try:
            response = await handle(request)
        except RequestRefused as refused:
            response = refusal_response(refused)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:  # noqa: BLE001 - an unexpected error must be answered, too
            _log.exception("request failed: %s", request.path_qs)
            error = ErrorAnswer(error="internal error; see the gateway's log")
            response = json_response(error, status=500)
        measures.requests.labels(what, str(response.status)).inc()
        return response

    return guard


def guarded_routes(measures: Measures, handlers: Handlers) -> list[web.AbstractRouteDef]:
    """Return the endpoints' routes, each guarded and counted under its name."""
    return [
        endpoint.route(guarded(measures, endpoint.name, handle)) for endpoint, handle in handlers
    ]


@contextlib.contextmanager
def place_of(places: AtOnce, request: web.Request, what: str, fix: str) -> Iterator[None]:
    """Count a request against a limit during a `with` block. Raises RequestRefused."""
    client = request.get(CLIENT, "")
    try:
        places.enter(client)
    except TooMany as many:
        whose = f" for {client}" if many.of_client else ""
        status = 429 if many.of_client else 503
        error = f"limit reached: {many.count} {what}{whose}"
        raise RequestRefused(status, error, fix=fix) from None
    try:
        yield
    finally:
        places.leave(client)


@contextlib.asynccontextmanager
async def turn_of(turns: Turns, request: web.Request, what: str) -> AsyncIterator[None]:
    """Wait in the fair queue, then run the `with` block. Raises RequestRefused."""
    client, fix = request.get(CLIENT, ""), "retry in a moment, with fewer requests at once"
    try:
        await turns.enter(client)
    except TooMany as many:
        whose = f" for {client}" if many.of_client else ""
        status = 429 if many.of_client else 503
        why = f"limit reached: {many.count} {what} waiting{whose}"
        raise RequestRefused(status, why, fix=fix, retry_after_s=1) from None
    except TimeoutError:
        error = f"timed out after {turns.wait_s:g} s in the queue behind other {what}"
        raise RequestRefused(503, error, fix="retry", retry_after_s=1) from None
    try:
        yield
    finally:
        turns.leave(client)


def by_turns(turns: Turns, what: str, handle: Handler) -> Handler:
    """Return a handler that waits for the client's turn before it calls the slow `handle`."""

    async def in_turn(request: web.Request) -> web.StreamResponse:
        if request.body_exists:
            await request.read()  # the client's deadline for sending also runs while it waits
        async with turn_of(turns, request, what):
            if request.transport is None:
                return web.Response(status=HUNG_UP)
            return await handle(request)

    return in_turn


async def write_in_time(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Write to a client, and disconnect one that does not read. Raises ConnectionError."""
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionAbortedError("the client stopped reading") from None


def unknown_path(endpoints: Iterable[Endpoint]) -> Handler:
    """Return the handler for paths and methods below the prefix that have no route."""
    paths: dict[str, list[str]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.method, []).append(endpoint.written)
    there = "; ".join(f"{method} {', '.join(found)}" for method, found in paths.items())

    async def refuse(request: web.Request) -> NoReturn:
        error = f"no such path: {request.method} {request.path[:200]}"
        fix = f"paths below {PREFIX}/ are: {there}"
        raise RequestRefused(404, error, code=UNKNOWN_PATH, fix=fix)

    return refuse
