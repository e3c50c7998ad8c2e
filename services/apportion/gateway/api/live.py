"""Live events over HTTP as server-sent events, for clients without NATS.

An event's id is its revision, so a client that reconnects with `Last-Event-ID` continues there.
Invariant: a client gets every event after its start, in order and once. A client that does not read
is disconnected, and delays neither the fold nor other clients."""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from apportion.core.explain.tenant_redaction import (
    UNKNOWN,
    event_namespaces,
    event_redacted,
    namespaces_of,
)
from apportion.gateway.api.answering import SIGHT, STILL, Sight, place_of, write_in_time
from apportion.gateway.api.endpoint import Audience, Endpoint
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.query import REVISION_MAX, Query, RequestRefused, parsed, whole
from apportion.gateway.feed import Feed
from apportion.runtime.ledger.port import Record
from apportion.runtime.service.limits import AtOnce
from apportion_schemas import EventError, decode
from apportion_schemas.decoding import from_outside

CLIENTS_MAX = 64
EACH_MAX = 16  # per client, so that no client uses up all streams
CHUNK_EVENTS = 256
BEAT_S = 15.0  # a comment this often keeps proxies from closing an idle stream
STILL_S = 5.0  # how often a client's token and rights are checked again
LOOK_S = 1.0  # how soon a client that has left is noticed, because that wakes no task


class EventsQuery(Query, frozen=True, kw_only=True):
    """The parameters of the stream of events."""

    first: Annotated[
        int, Meta(ge=1, le=REVISION_MAX, description="First revision to send; default: the next "
                  "one."),
    ] | None = msgspec.field(default=None, name="from")  # fmt: skip


EVENTS = Endpoint(
    path="events", name="events", answer=None, also=("text/event-stream",), query=EventsQuery,
    audience=Audience.TENANTS,
    summary="Live events of the ledger as server-sent events: the id is the revision, the data is "
    "the CloudEvent",
)  # fmt: skip


class _Type(msgspec.Struct):
    type: str = ""


# a line end of the event stream; other separators are part of the data
_LINE_END = re.compile("\r\n|\r|\n")
_decode_type = from_outside(msgspec.json.Decoder(_Type).decode)


class EventStream:
    """The event streams of one gateway."""

    def __init__(
        self, feed: Feed, records: Callable[[int], Awaitable[list[Record]]], *, measures: Measures
    ) -> None:
        self._feed = feed
        self._records = records
        self._clients = AtOnce(CLIENTS_MAX, each=EACH_MAX)
        self._measures = measures

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve `GET /api/v1/events?from=REVISION`; without `from`, begin with the next event."""
        start = parsed(EventsQuery, request.query).first
        cursor = self._feed.state.revision if start is None else start - 1
        if (seen := request.headers.get("Last-Event-ID")) is not None:
            cursor = whole("Last-Event-ID", seen, most=REVISION_MAX)
        fix = "use another gateway, or read the ledger with a NATS client"
        with place_of(self._clients, request, "open event streams", fix):
            self._measures.stream_clients.inc()
            try:
                headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
                response = web.StreamResponse(headers=headers)
                await response.prepare(request)
                # If the login cannot answer, the client reconnects and gets the refusal then.
                with contextlib.suppress(ConnectionError, RequestRefused):
                    await self._write(request, response, cursor)
                return response
            finally:
                self._measures.stream_clients.dec()

    async def _write(self, request: web.Request, response: web.StreamResponse, cursor: int) -> None:
        still, looked_s = request.get(STILL), time.monotonic()
        await write_in_time(request, response, b": the id of an event is its revision\n\n")
        silent_s = 0.0
        while request.transport is not None:
            if still is not None and time.monotonic() - looked_s >= STILL_S:
                looked_s = time.monotonic()
                if not await still.may_go_on():
                    return
            records = self._feed.after(cursor, CHUNK_EVENTS)
            if records is None:
                records = await self._records(cursor)
            if records:
                shown = [await self._shown(record, request.get(SIGHT)) for record in records]
                await write_in_time(request, response, b"".join(shown))
                cursor = records[-1].revision
                silent_s = 0.0
                continue
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._feed.reached(cursor + 1)
            except TimeoutError:
                silent_s += LOOK_S
            if silent_s >= BEAT_S:
                await write_in_time(request, response, b": still here\n\n")
                silent_s = 0.0

    async def _shown(self, record: Record, sight: Sight | None) -> bytes:
        if sight is None:
            return encoded(record)
        try:
            data = decode(record.payload, subject=record.subject).data
        except EventError:
            return hidden(record)
        for namespace in namespaces_of(data, self._feed.namespace_of):
            if namespace == UNKNOWN or not await sight.may_see(namespace):
                return hidden(record)
        event = msgspec.json.decode(record.payload)
        named = event_namespaces(event["data"])
        known = {name for name in named if await sight.may_see(name)}
        if known == named:
            return encoded(record)
        event["data"] = event_redacted(event["data"], known.__contains__)
        return encoded(msgspec.structs.replace(record, payload=msgspec.json.encode(event)))


def hidden(record: Record) -> bytes:
    """Encode a hidden event as only its revision, from which the client can resume."""
    return f"id: {record.revision}\nevent: hidden\ndata: {{}}\n\n".encode()


def encoded(record: Record) -> bytes:
    """Encode a record as a server-sent event; the data is the CloudEvent as stored."""
    try:
        name = _decode_type(record.payload).type.rpartition("/")[2]
    except msgspec.DecodeError:
        name = ""
    text = record.payload.decode("utf-8", "replace")
    data = "".join(f"data: {line}\n" for line in _LINE_END.split(text))
    kind = name if name.isalnum() else "unreadable"
    return f"id: {record.revision}\nevent: {kind}\n{data}\n".encode()
