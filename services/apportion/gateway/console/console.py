"""Serves the console's files from `static/`, without a build step or other hosts.

The files are read once and cached in memory, each with an ETag. Invariant: no file outside
`static/` is served, and each answer's policy restricts the page to this gateway's own resources."""

import mimetypes
from collections.abc import Iterable
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

from apportion.core.devices.catalogue import FAMILIES, PERCENT
from apportion.core.explain.text.event_text import NPU_UNIT
from apportion.core.explain.text.vocabulary import (
    OUTCOMES,
    PHASES,
    START_JUDGED_LEAST,
    START_UNKNOWN,
    STORY,
)
from apportion_schemas.operations import POLICIES

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "font-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_TYPES: Final = {
    ".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".woff2": "font/woff2"
}  # fmt: skip


class _File(Struct, frozen=True):
    body: bytes
    type: str
    tag: str


def console_routes() -> Iterable[web.AbstractRouteDef]:
    """Return the routes: `/` is the page, and the files that it loads are below `/console/`."""
    files = served()

    async def page(request: web.Request) -> web.Response:
        return _answer(request, files["index.html"])

    async def asset(request: web.Request) -> web.Response:
        file = files.get(request.match_info["path"])
        if file is None:
            raise web.HTTPNotFound(text="no such file in the console\n", headers=HEADERS)
        return _answer(request, file)

    return (web.get("/", page), web.get("/console/{path:.+}", asset))


def served() -> dict[str, _File]:
    """Return the files of `static` and the vocabulary, by path."""
    files = dict(_files(resources.files(__package__) / "static", ""))
    files["js/vocabulary.js"] = _file("vocabulary.js", vocabulary())
    return files


def vocabulary() -> bytes:
    """Return the CLI's texts, the names of policies and the units of cores as a JS module."""
    policies = tuple(POLICIES)
    units = {each.name: each.unit for each in FAMILIES.values() if each.unit != PERCENT}
    tables = {
        "PHASES": PHASES, "OUTCOMES": OUTCOMES, "STORY": STORY, "POLICIES": policies,
        "CORE_UNITS": units, "NPU_UNIT": NPU_UNIT, "START_UNKNOWN": START_UNKNOWN,
        "START_JUDGED_LEAST": START_JUDGED_LEAST,
    }  # fmt: skip
    return b"".join(
        b"export const %s = %s;\n" % (name.encode(), msgspec.json.encode(words))
        for name, words in tables.items()
    )


def _files(folder: Traversable, prefix: str) -> Iterable[tuple[str, _File]]:
    for entry in folder.iterdir():
        path = prefix + entry.name
        if entry.is_dir():
            yield from _files(entry, f"{path}/")
        else:
            yield path, _file(entry.name, entry.read_bytes())


def _file(name: str, body: bytes) -> _File:
    tag = f'"{sha256(body).hexdigest()[:20]}"'
    kind = _TYPES.get(f".{name.rpartition('.')[2]}") or mimetypes.guess_type(name)[0]
    return _File(body=body, type=kind or "application/octet-stream", tag=tag)


def _answer(request: web.Request, file: _File) -> web.Response:
    headers = {**HEADERS, "ETag": file.tag}
    if request.headers.get("If-None-Match") == file.tag:
        return web.Response(status=304, headers=headers)
    charset = "utf-8" if file.type.startswith("text/") else None
    response = web.Response(
        body=file.body, content_type=file.type, charset=charset, headers=headers
    )
    if not file.type.startswith("font/"):  # WOFF2 is compressed already
        response.enable_compression()
    return response
