"""Tests that the gateway serves the files of the console and nothing else.

No file may refer to another host."""

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from apportion.gateway.console import console
from apportion.gateway.console.console import POLICY, console_routes, served
from tests.tidy.sizes import FILE_HARD

STATIC = Path(console.__file__).parent / "static"
FILES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())
IMPORTED = re.compile(r"""(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""")
Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Provide a client of a server that serves only the console."""
    app = web.Application()
    app.add_routes(console_routes())
    async with TestClient(TestServer(app)) as opened:
        yield opened


async def test_the_page_and_its_files(client: Client) -> None:
    """Each file is served with its content type and the security policy. A request with its ETag
    gets a 304."""
    for path in ("/", *(f"/console/{name}" for name in FILES)):
        answer = await client.get(path)
        assert answer.status == 200, path
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        again = await client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status, await again.read()) == (304, b"")
    assert (await client.get("/console/js/app.js")).content_type == "text/javascript"
    assert (await client.get("/console/css/parts.css")).content_type == "text/css"


async def test_fonts_are_served_with_their_licences(client: Client) -> None:
    """Each font in the style sheet is served as a font, uncompressed and together with its
    licence."""
    sheet = (STATIC / "css" / "parts.css").read_text("utf-8")
    named = re.findall(r'url\("\.\./(fonts/[^"]+)"\)', sheet)
    assert sorted(named) == [name for name in FILES if name.endswith(".woff2")]
    for name in named:
        answer = await client.get(f"/console/{name}")
        assert (answer.content_type, answer.headers.get("Content-Encoding")) == ("font/woff2", None)
        assert f"{name.removesuffix('-latin.woff2')}-OFL.txt" in FILES


@pytest.mark.parametrize(
    "path", ["../console.py", "%2e%2e/console.py", "js/../../console.py", "js", "none.js", ""]
)
async def test_nothing_else_is_answered(client: Client, path: str) -> None:
    """A path that is no file of the console gets a 404."""
    assert (await client.get(f"/console/{path}")).status == 404


async def test_what_is_not_there_is_told_under_the_same_policy(client: Client) -> None:
    """A 404 has the same security policy as the console's files."""
    answer = await client.get("/console/none.js")
    assert answer.headers["Content-Security-Policy"] == POLICY


def test_the_policy_lets_nothing_in() -> None:
    """The security policy allows files from the gateway only, and no inline code."""
    assert POLICY.startswith("default-src 'none'; ")
    sources = {source for rule in POLICY.split("; ") for source in rule.split()[1:]}
    assert sources == {"'none'", "'self'"}


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.endswith((".js", ".html", ".css"))]
)
def test_no_file_asks_another_host_or_has_inline_code(name: str) -> None:
    """No file of the console refers to another host or contains inline code. The security policy
    would block both."""
    text = (STATIC / name).read_text("utf-8")
    hosts = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text))
    assert hosts <= {"http://www.w3.org"}, hosts
    assert not re.search(r"<[^>]+\s(?:style|on\w+)=", text)
    assert not re.search(r"\beval\(|new Function\b", text)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_every_module_says_why_it_exists_and_imports_what_is_there(name: str) -> None:
    """Each JavaScript module begins with a comment, is below the size limit, and imports only files
    that exist."""
    path = STATIC / name
    lines = path.read_text("utf-8").splitlines()
    assert lines[0].startswith("// ")
    assert len(lines) <= FILE_HARD
    for imported in IMPORTED.findall(path.read_text("utf-8")):
        meant = os.path.normpath(path.parent.relative_to(STATIC) / imported)
        assert meant in served(), imported
