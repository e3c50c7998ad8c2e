"""Requests of a cluster's own components: API servers and kube-schedulers, which POST JSON.

Invariant: whatever a caller sends, it gets JSON with a status that says whose fault it was, and the
process goes on.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from apportion.runtime.service.http import refused
from apportion_schemas.decoding import from_outside

_log = logging.getLogger(__name__)
T = TypeVar("T")

POD_BYTES_MAX = 1_600_000
"""etcd takes objects up to 1.5 MiB."""
CONTAINERS_MAX = 512
_fields = from_outside(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode)
_list = from_outside(msgspec.json.Decoder(list[msgspec.Raw]).decode)
_decode = from_outside(msgspec.json.Decoder().decode)


class BadBody(Exception):
    """A request whose body cannot be read; the message says what is wrong and what to send."""


class PodTooLarge(BadBody):
    """A pod that is larger than any that we read."""


def read_body(decode: Callable[[bytes], T], body: bytes, wanted: str) -> T:
    """The body as what it should be.

    Raises:
        BadBody: it is not.
    """
    try:
        return decode(body)
    except msgspec.MsgspecError as error:
        raise BadBody(f"the body is not {wanted}: {str(error)[:300]}") from None


def read_pod(raw: msgspec.Raw | bytes) -> Any:
    """A pod that somebody sent, or what is in its place.

    Raises:
        BadBody: it is no JSON.
        PodTooLarge: it is larger than we read; that is found out without reading it.
    """
    if len(raw) > POD_BYTES_MAX:
        raise PodTooLarge(f"the pod has {len(raw)} bytes; at most {POD_BYTES_MAX}")
    count = 0  # of all kinds; what has another form is for others to refuse
    with contextlib.suppress(msgspec.MsgspecError):
        spec = _fields(_fields(bytes(raw)).get("spec", b"{}"))
        for kind in ("containers", "initContainers", "ephemeralContainers"):
            with contextlib.suppress(msgspec.ValidationError):
                count += len(_list(spec.get(kind, b"[]")))
    if count > CONTAINERS_MAX:
        raise PodTooLarge(f"the pod has {count} containers; at most {CONTAINERS_MAX}")
    return read_body(_decode, bytes(raw), "a pod")


def answering(
    handle: Callable[[web.Request], Awaitable[bytes]], unready: Callable[[], str]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """`handle` as a route that answers JSON, whatever happens in it."""

    async def answered(request: web.Request) -> web.StreamResponse:
        if reason := unready():
            return refused(503, f"not ready: {reason}", "ask again; see /readyz")
        try:
            body = await handle(request)
        except BadBody as error:
            return refused(400, str(error), "send what a Kubernetes API server or scheduler sends")
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:  # noqa: BLE001 - one bad request must not look like no service
            _log.exception("could not answer %s", request.path[:200])
            return refused(
                500, "internal error; the log of this service has the cause", "report it"
            )
        return web.Response(body=body, content_type="application/json")

    return answered
