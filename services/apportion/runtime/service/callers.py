"""Requests of a cluster's own components: API servers and kube-schedulers, which POST JSON.

Invariant: whatever a caller sends, it gets JSON with a status that says whose fault it was, and the
process goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from apportion.core.explain.answers import ErrorAnswer

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
T = TypeVar("T")


class BadBody(Exception):
    """A request whose body cannot be read; the message says what is wrong and what to send."""


def read_body(decode: Callable[[bytes], T], body: bytes, wanted: str) -> T:
    """The body as what it should be.

    Raises:
        BadBody: it is not.
    """
    try:
        return decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"the body is not {wanted}: {str(error)[:300]}") from None


def answering(
    handle: Callable[[web.Request], Awaitable[bytes]], unready: Callable[[], str]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """`handle` as a route that answers JSON, whatever happens in it."""

    async def answered(request: web.Request) -> web.StreamResponse:
        if reason := unready():
            return _error(503, f"not ready: {reason}", "ask again; see /readyz")
        try:
            body = await handle(request)
        except BadBody as error:
            return _error(400, str(error), "send what a Kubernetes API server or scheduler sends")
        except web.HTTPRequestEntityTooLarge as error:
            return _error(413, error.text or "too large", "send less in one request")
        except Exception:  # noqa: BLE001 - one bad request must not look like no service
            _log.exception("could not answer %s", request.path[:200])
            return _error(500, "internal error; the log of this service has the cause", "report it")
        return web.Response(body=body, content_type="application/json")

    return answered


def _error(status: int, error: str, fix: str) -> web.Response:
    body = _encode(ErrorAnswer(error=error, fix=fix))
    return web.Response(body=body, status=status, content_type="application/json")
