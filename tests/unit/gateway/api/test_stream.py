"""Server-sent events: one record, one event, whatever its bytes are."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from apportion.gateway.api import stream
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.stream import EventStream, encoded
from apportion.gateway.feed import Feed
from apportion.runtime.ledger.port import Record
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import encode
from tests.support.ledger_of import event_of
from tests.support.pods import pod


def test_event() -> None:
    """Revision, bare type, and the CloudEvent as it stands in the ledger."""
    payload = encode(event_of(pod("u1")))
    text = encoded(Record(7, "apportion.v1.workload.u1", payload)).decode()
    assert text == f"id: 7\nevent: PodSubmitted\ndata: {payload.decode()}\n\n"


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff\xfe", b"a\nb\r\nc", b'{"type":"x\\nid: 9"}', b'{"type":7}'],
)
def test_bytes_that_are_no_event(payload: bytes) -> None:
    """Nothing in a payload can end the event early or forge another."""
    lines = encoded(Record(7, "s", payload)).decode().split("\n")
    assert lines[:2] == ["id: 7", "event: unreadable"]
    assert lines[-2:] == ["", ""]
    assert all(line.startswith("data: ") for line in lines[2:-2])
    assert "\r" not in "".join(lines)


def test_separators_that_json_allows_stay_data() -> None:
    """A line separator of Unicode inside a JSON text must not cut the text in two."""
    payload = encode(event_of(pod("u1", owner="a\u2028b\u0085c")))
    lines = encoded(Record(7, "s", payload)).decode().split("\n")
    assert lines[2] == f"data: {payload.decode()}"


async def _nothing(after: int) -> list[Record]:
    raise AssertionError(f"the window has all that there is behind {after}")


async def test_a_silent_stream_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again, or a proxy takes it for dead; a comment is no event to a client."""
    monkeypatch.setattr(stream, "LOOK_S", 0.02)
    monkeypatch.setattr(stream, "BEAT_S", 0.05)
    application = web.Application()
    events = EventStream(Feed(), _nothing, measures=Measures(Metrics()))
    application.router.add_get("/events", events.handle)
    async with TestClient(TestServer(application)) as client, asyncio.timeout(10):
        answer = await client.get("/events")
        lines = [(await answer.content.readline()).decode() for _ in range(6)]
    assert lines[2:] == [": still here\n", "\n"] * 2
