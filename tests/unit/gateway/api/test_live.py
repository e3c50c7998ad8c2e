"""Tests of the stream of server-sent events: each ledger record becomes exactly one event, whatever
its bytes."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from apportion.gateway.access.gate import Cursors, Gate
from apportion.gateway.access.people import (
    KEPT_S,
    READ_ALL,
    LoginUnavailable,
    Person,
    Remembered,
    Wish,
)
from apportion.gateway.api import live
from apportion.gateway.api.endpoint import Handler
from apportion.gateway.api.live import EventStream, encoded
from apportion.gateway.api.measures import Measures
from apportion.gateway.feed import Feed
from apportion.gateway.main import ENDPOINTS
from apportion.runtime.ledger.port import Record
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import encode
from tests.support.ledger_of import event_of
from tests.support.pods import pod


def test_event() -> None:
    """A server-sent event has the record's revision as its id, its type without prefix, and the
    CloudEvent exactly as stored."""
    payload = encode(event_of(pod("u1")))
    text = encoded(Record(7, "apportion.v1.workload.u1", payload)).decode()
    *lines, end, last = text.split("\n")
    assert lines == ["id: 7", "event: PodSubmitted", f"data: {payload.decode()}"]
    assert (end, last) == ("", "")


@pytest.mark.parametrize(
    "payload", [b"", b"\xff\xfe", b"a\nb\r\nc", b'{"type":"x\\nid: 9"}', b'{"type":7}']
)
def test_bytes_that_are_no_event(payload: bytes) -> None:
    """An invalid record becomes exactly one server-sent event, whatever bytes the record
    contains."""
    lines = encoded(Record(7, "s", payload)).decode().split("\n")
    assert lines[:2] == ["id: 7", "event: unreadable"]
    assert lines[-2:] == ["", ""]
    assert all(line.startswith("data: ") for line in lines[2:-2])
    assert "\r" not in "".join(lines)


def test_separators_that_json_allows_stay_data() -> None:
    """A JSON text may contain Unicode line separators. They do not split its server-sent event."""
    payload = encode(event_of(pod("u1", owner="a\u2028b\u0085c")))
    lines = encoded(Record(7, "s", payload)).decode().split("\n")
    assert lines[2] == f"data: {payload.decode()}"


async def _nothing(after: int) -> list[Record]:
    raise AssertionError(f"the window has all that there is behind {after}")


async def test_a_silent_stream_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are no events, a stream regularly sends a comment, so that proxies keep it open."""
    monkeypatch.setattr(live, "LOOK_S", 0.02)
    monkeypatch.setattr(live, "BEAT_S", 0.05)
    application = web.Application()
    events = EventStream(Feed(), _nothing, measures=Measures(Metrics()))
    application.router.add_get("/events", events.handle)
    async with TestClient(TestServer(application)) as client, asyncio.timeout(10):
        answer = await client.get("/events")
        lines = [(await answer.content.readline()).decode() for _ in range(6)]
    assert lines[2:] == [": still here\n", "\n"] * 2


class Register:
    """A fake login with one token. A test can revoke the token or make the login fail."""

    def __init__(self) -> None:
        self.tokens = {"t": Person("mei")}
        self.rights = {READ_ALL}
        self.away = False

    async def person(self, token: str) -> Person | None:
        if self.away:
            raise LoginUnavailable("no API server")
        return self.tokens.get(token)

    async def may(self, person: Person, wish: Wish) -> bool:
        return bool(person.name) and wish in self.rights


@pytest.mark.parametrize("lost", ["token", "right", "login"])
async def test_a_stream_ends_with_the_token_and_the_right(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream ends soon after its client's token or permission is revoked, or when the login stops
    answering."""
    monkeypatch.setattr(live, "LOOK_S", 0.02)
    monkeypatch.setattr(live, "STILL_S", 0.05)
    monkeypatch.setattr(live, "BEAT_S", 0.1)
    register, now = Register(), 0.0
    gate = Gate(Remembered(register, now=lambda: now), Cursors(), ENDPOINTS)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await gate.guard(request, handler)

    application = web.Application(middlewares=[guard])
    events = EventStream(Feed(), _nothing, measures=Measures(Metrics()))
    application.router.add_get("/api/v1/events", events.handle)
    sent = {"Authorization": "Bearer t"}
    async with TestClient(TestServer(application)) as client, asyncio.timeout(10):
        answer = await client.get("/api/v1/events", headers=sent)
        said = [await answer.content.readline() for _ in range(4)]
        assert b": still here\n" in said, "as long as he may he hears on"
        register.away = lost == "login"
        (register.tokens if lost == "token" else {}).clear()
        (register.rights if lost == "right" else set()).clear()
        now += KEPT_S + 1
        assert await answer.read() is not None
