"""Guards for local servers and metrics, and JSON endpoints for Kubernetes.

Invariants: a web page of another site cannot read from a local server, even after DNS rebinding.
Without a token, other machines cannot read metrics. The API server and kube-scheduler always
receive JSON, even as an error."""

import contextlib
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs, web

from apportion.runtime.service.http import Guard, Handle, refused
from apportion_schemas.decoding import from_outside

T = TypeVar("T")
POD_BYTES_MAX = 1_600_000  # etcd accepts objects of up to 1.5 MiB
CONTAINERS_MAX = 512
_fields = from_outside(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode)
_list = from_outside(msgspec.json.Decoder(list[msgspec.Raw]).decode)
_decode = from_outside(msgspec.json.Decoder().decode)

_log = logging.getLogger(__name__)


def is_own_machine(host: str) -> bool:
    """Return True if only this machine can reach this host."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def own_machine_only(fix: str = "") -> Guard:
    """Return a guard that refuses pages of other sites. `fix` is added to the refusal.

    Even after DNS rebinding, a page's requests name its own site as host, and so are refused."""

    async def guard(request: web.Request, handle: Handle) -> web.StreamResponse:
        named = request.headers.get(hdrs.HOST, "")
        try:
            host = urlsplit(f"//{named}").hostname or ""
        except ValueError:
            host = named
        if (
            not named
            or host == "localhost"
            or host.endswith(".localhost")
            or _address(host) is not None
        ):
            return await handle(request)
        return refused(
            403, f"the Host header is {host[:253]}, but only local requests are accepted",
            f"use 127.0.0.1 or localhost{fix}", field="Host",
        )  # fmt: skip

    return guard


def both(first: Guard, second: Guard | None) -> Guard:
    """Return a guard that applies both guards; the second may be None."""
    if second is None:
        return first

    async def guard(request: web.Request, handle: Handle) -> web.StreamResponse:
        return await first(request, lambda passed: second(passed, handle))

    return guard


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def scrapers_only(token: Path | None) -> Guard:
    """Return a guard that accepts only clients with the token in this file."""

    async def guard(request: web.Request, handle: Handle) -> web.StreamResponse:
        wanted = _read(token)
        scheme, _, sent = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        same = hmac.compare_digest(sent.strip().encode(), wanted)
        if wanted and same and scheme.lower() == "bearer":
            return await handle(request)
        return refused(
            401,
            "the metrics need a token",
            "send the token of --metrics-token as `Authorization: Bearer TOKEN`"
            if wanted
            else "start the service with --metrics-token FILE, and send the token in that file",
            field="Authorization",
        )

    return guard


def _read(path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes().strip()
    except OSError:
        return b""


class BadBody(Exception):
    """Error: a request body cannot be read. The message describes the form that was expected."""


class PodTooLarge(BadBody):
    """Error: the pod exceeds our limits."""


def read_body(decode: Callable[[bytes], T], body: bytes, wanted: str) -> T:
    """Decode a request body. Raises BadBody, in which `wanted` describes the expected form."""
    try:
        return decode(body)
    except msgspec.MsgspecError as error:
        raise BadBody(f"the body is not {wanted}: {str(error)[:300]}") from None


def read_pod(raw: msgspec.Raw | bytes) -> Any:
    """Decode a pod from a request. Raises BadBody; raises PodTooLarge before decoding."""
    if len(raw) > POD_BYTES_MAX:
        raise PodTooLarge(f"the pod has {len(raw)} bytes; the limit is {POD_BYTES_MAX}")
    count = 0  # containers of all kinds; the caller refuses malformed pods
    with contextlib.suppress(msgspec.MsgspecError):
        spec = _fields(_fields(bytes(raw)).get("spec", b"{}"))
        for kind in ("containers", "initContainers", "ephemeralContainers"):
            with contextlib.suppress(msgspec.ValidationError):
                count += len(_list(spec.get(kind, b"[]")))
    if count > CONTAINERS_MAX:
        raise PodTooLarge(f"the pod has {count} containers; the limit is {CONTAINERS_MAX}")
    return read_body(_decode, bytes(raw), "a pod")


def answering(
    handle: Callable[[web.Request], Awaitable[bytes]], unready: Callable[[], str]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Wrap `handle` as a route that always answers with JSON, even after an error."""

    async def answered(request: web.Request) -> web.StreamResponse:
        if reason := unready():
            return refused(503, f"not ready: {reason}", "retry; see /readyz")
        try:
            body = await handle(request)
        except BadBody as error:
            return refused(400, str(error), "send a body as a Kubernetes API server would")
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:  # noqa: BLE001 - one bad request must not look like an outage
            _log.exception("request failed: %s", request.path[:200])
            return refused(500, "internal error", "see the log of this service, and report it")
        return web.Response(body=body, content_type="application/json")

    return answered
