"""Which clients read the metrics of a service whose health port other machines reach.

Invariant: without a token file, no client does. The file is read for each request, so a Secret that
comes later, or changes, counts at once.
"""

from __future__ import annotations

import hmac
from pathlib import Path

from aiohttp import hdrs, web

from apportion.runtime.service.http import Guard, Handle, refused


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
    """The token, empty where there is none."""
    try:
        return b"" if path is None else path.read_bytes().strip()
    except OSError:
        return b""
