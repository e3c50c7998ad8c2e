"""Surfaces that answer this machine alone, and ask nobody who he is.

Invariant: a page of another site reads nothing there, whatever its name is said to mean.

And metrics on a port that other machines reach, for clients with a token: without a token file, no
client reads them. The file is read for each request, so a Secret that comes later, or changes,
counts at once.
"""

from __future__ import annotations

import hmac
import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from apportion.runtime.service.http import Guard, Handle, refused


def is_own_machine(host: str) -> bool:
    """Whether nobody reaches this host but who is on the same machine."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def own_machine_only(fix: str = "") -> Guard:
    """Answers unless a page of another site asks; `fix` is what its owner may do about it.

    Its server may say that its name is this machine's address (DNS rebinding): then the browser
    lets it read all, but names the site as the host.
    """

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
            403, f"the host is {host[:253]}, and this machine alone is answered here",
            f"ask 127.0.0.1 or localhost{fix}", field="Host",
        )  # fmt: skip

    return guard


def both(first: Guard, second: Guard | None) -> Guard:
    """What passes the one and then, if there is one, the other."""
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
    """Answer a client that sends the token in this file, and refuse every other one."""

    async def guard(request: web.Request, handle: Handle) -> web.StreamResponse:
        wanted = _read(token)
        scheme, _, sent = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        same = hmac.compare_digest(sent.strip().encode(), wanted)
        if wanted and same and scheme.lower() == "bearer":
            return await handle(request)
        return refused(
            401,
            "this client may not read the metrics",
            "send the token in the file of --metrics-token as `Authorization: Bearer`"
            if wanted
            else "start the service with --metrics-token FILE, a file with a token in it",
            field="Authorization",
        )

    return guard


def _read(path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes().strip()
    except OSError:
        return b""
