"""Tests of listing and watching objects if the API server pages, breaks connections, answers 410 or
is silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from kubernetes_asyncio import client

from apportion.runtime.kube import watch as kube_watch
from apportion.runtime.kube.client import KubeApi, KubeUnavailable
from apportion.runtime.kube.watch import Discovery, Watch
from apportion.runtime.process.clock import SystemClock
from tests.support.polling import until

PATH = "/api/v1/pods"
Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """A fake API server that answers with the replies in `script` and records the query
    parameters."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.asked: list[dict[str, str]] = []
        self.returned: list[float] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer with the next reply. If there is none left, do not answer, as in an idle watch."""
        self.asked.append(dict(request.query))
        if self.script:
            return await self.script.pop(0)(request)
        await asyncio.Event().wait()
        raise AssertionError


def thing(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def page(*items: dict[str, Any], version: int = 1, more: str = "") -> Reply:
    """Return a reply with one page of a list."""
    body = {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)}

    async def reply(_request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return reply


def status(code: int) -> Reply:
    async def reply(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "code": code}, status=code)

    return reply


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Close the connection without answering."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def watch(*events: tuple[str, dict[str, Any]], torn: bool = False, hold: bool = False) -> Reply:
    """Return a reply that sends these events and then ends the watch.

    With `torn`, the watch breaks off in the middle of another event. With `hold`, it stays open."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for kind, about in events:
            line = msgspec.json.encode({"type": kind, "object": about}) + b"\n"
            await response.write(line[:7])  # a line may arrive in parts
            await response.write(line[7:])
        if torn:
            await response.write(b'{"type":"ADDED","obj')
        if hold:
            await asyncio.Event().wait()
        if torn and request.transport is not None:
            request.transport.close()
        return response

    return reply


class Heard:
    """A receiver of watch results that keeps the objects and their versions."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.told: list[str] = []
        self._missing: set[str] = set()

    def listing(self) -> None:
        """Mark every object as missing until the new list shows it."""
        self._missing = set(self.names)

    def seen(self, raw: bytes) -> None:
        """Keep the object's version."""
        meta = msgspec.json.decode(raw)["metadata"]
        self.names[meta["name"]] = int(meta["resourceVersion"])
        self._missing.discard(meta["name"])
        self.told.append(meta["name"])

    def gone(self, raw: bytes) -> None:
        self.names.pop(msgspec.json.decode(raw)["metadata"]["name"], None)

    def listed(self, version: int) -> None:
        """Remove the objects that were not in the list, and keep the list's version."""
        for name in self._missing:
            del self.names[name]
        self.told.append(f"as of {version}")

    def reached(self, version: int) -> None:
        """Keep the version that the watch has reached."""
        self.told.append(f"up to {version}")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Provide a running fake API server. Its attribute `url` is its address."""
    serving = Server()
    app = web.Application()
    app.router.add_get(PATH, serving.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    serving.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield serving
    await runner.cleanup()


@contextlib.asynccontextmanager
async def watching(server: Server, *, optional: bool = False) -> AsyncIterator[tuple[Watch, Heard]]:
    """Run a watch for the duration of a `with` block. Yield it with the receiver of its results."""
    configuration = client.Configuration()
    configuration.host = server.url
    api = KubeApi(configuration)
    heard = Heard()
    made = Watch(
        api,
        PATH,
        heard,
        clock=SystemClock(),
        discovery=Discovery(api, SystemClock(), ()) if optional else None,
        returned=server.returned.append,
    )
    task = asyncio.create_task(made.run())
    try:
        yield made, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


async def names(heard: Heard, **expected: int) -> None:
    """Wait until the receiver has exactly these objects, each with this version."""

    async def there() -> bool:
        return heard.names == expected

    await until(there, f"{expected}, not {heard.names}")


async def test_pages_then_a_watch_from_the_lists_version(server: Server) -> None:
    """The client lists objects page by page, with the continue token of the previous page. It then
    watches from the list's resource version, with bookmarks."""
    server.script = [
        page(thing("a", 3), version=9, more="token"),
        page(thing("b", 4), version=9),
        watch(("MODIFIED", thing("a", 11)), ("DELETED", thing("b", 12)), hold=True),
    ]
    async with watching(server) as (made, heard):
        await made.synced()
        await names(heard, a=11)
    assert [asked.get("continue") for asked in server.asked] == [None, "token", None]
    assert server.asked[2]["resourceVersion"] == "9"
    assert server.asked[2]["allowWatchBookmarks"] == "true"


async def test_a_broken_watch_goes_on_where_it_was(server: Server) -> None:
    """If a watch breaks, the client continues from the newest version that an event or a bookmark
    had."""
    server.script = [
        page(version=5),
        watch(("ADDED", thing("a", 6)), ("BOOKMARK", thing("", 20)), torn=True),
        watch(("ADDED", thing("b", 21)), hold=True),
    ]
    async with watching(server) as (made, heard):
        await names(heard, a=6, b=21)
        assert made.lists == 1
    assert heard.told == ["as of 5", "a", "up to 20", "b"]
    assert [asked["resourceVersion"] for asked in server.asked[1:]] == ["5", "20"]


@pytest.mark.parametrize(
    "expired", [status(410), watch(("ERROR", {"kind": "Status", "code": 410, "metadata": {}}))]
)
async def test_a_version_that_the_server_forgot_means_a_new_list(
    server: Server, expired: Reply
) -> None:
    """If the API server answers 410 or sends it as an event, the client lists again and removes
    objects that are gone."""
    server.script = [
        page(thing("a", 1), thing("b", 2), version=5),
        expired,
        page(thing("b", 2), thing("c", 7), version=9),
        watch(hold=True),
    ]
    async with watching(server) as (made, heard):
        await names(heard, b=2, c=7)
        assert made.lists == 2
    assert [asked.get("resourceVersion") for asked in server.asked[:3]] == [None, "5", None]


async def test_a_list_that_expires_between_pages_begins_again(server: Server) -> None:
    """If a list expires between two of its pages, the client starts it again."""
    server.script = [
        page(thing("a", 1), version=5, more="token"),
        status(410),
        page(thing("b", 2), version=9),
        watch(hold=True),
    ]
    async with watching(server) as (made, heard):
        await made.synced()
        await names(heard, b=2)
        assert made.lists == 1


async def test_a_kind_that_is_not_installed_is_empty(server: Server) -> None:
    """If an optional kind is not installed, the watch has no objects and reports no problem."""
    server.script = [status(404)]
    async with watching(server, optional=True) as (made, heard):
        await made.synced()
        assert (made.problem, heard.told) == ("", ["as of 0"])


async def test_a_refusal_is_a_problem_until_it_ends(server: Server) -> None:
    """If the API server refuses a list, the watch reports a problem and retries. The problem ends
    when the list succeeds."""
    server.script = [status(403), page(thing("a", 1), version=3), watch(hold=True)]
    async with watching(server) as (made, heard):

        async def said() -> bool:
            return "403" in made.problem or bool(heard.names)

        await until(said, "the problem")
        await names(heard, a=1)
        assert made.problem == ""


async def test_a_silent_watch_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the API server is silent for too long, the client leaves the watch and lists again."""
    monkeypatch.setattr(kube_watch, "IDLE_S", 0.2)
    server.script = [page(version=5), watch(hold=True), page(thing("a", 6), version=9)]
    async with watching(server) as (made, heard):
        await names(heard, a=6)
        assert made.lists == 2


async def test_an_answer_has_a_limit_and_an_end(server: Server) -> None:
    """If a request gets no answer, it fails when its timeout is over."""
    configuration = client.Configuration()
    configuration.host = server.url
    api = KubeApi(configuration)
    with pytest.raises(KubeUnavailable, match="no answer from the API server"):
        await api.request("GET", PATH, timeout_s=0.1)
    await api.close()


async def test_a_server_that_was_away_is_listed_again(server: Server) -> None:
    """An API server that was unreachable may have been restored from a backup. The watch therefore
    lists its objects again and tells the other watches to do the same."""
    server.script = [
        page(thing("a", 1), version=9),
        watch(torn=True),
        hang_up,
        hang_up,  # the HTTP client may retry by itself
        page(thing("b", 2), version=5),
        watch(hold=True),
    ]
    async with watching(server) as (made, heard):
        await names(heard, b=2)
        assert made.lists == 2
        assert made.in_step
        assert len(server.returned) == 1


async def test_a_bookmark_that_goes_back_means_a_new_list(server: Server) -> None:
    """A bookmark that is older than the watch's version shows that the API server was restored. The
    client lists again."""
    server.script = [
        page(thing("a", 1), version=9),
        watch(("BOOKMARK", thing("", 4)), hold=True),
        page(thing("b", 2), version=5),
        watch(hold=True),
    ]
    async with watching(server) as (made, heard):
        await names(heard, b=2)
        assert made.lists == 2
        assert len(server.returned) == 1


async def test_a_watch_in_doubt_lists_again_unless_it_has_since(server: Server) -> None:
    """If a watch's version may be wrong, the watch lists its objects again, unless it has done so
    in the meantime."""
    server.script = [page(version=9), watch(hold=True), page(thing("a", 2), version=5)]
    async with watching(server) as (made, heard):
        await made.synced()
        since_s = SystemClock().monotonic()
        made.doubt(since_s)
        made.doubt(since_s)
        in_doubt = not made.in_step
        assert in_doubt
        await names(heard, a=2)
        made.doubt(since_s)
        assert made.in_step
        assert made.lists == 2
