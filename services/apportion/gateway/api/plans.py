"""Plans over HTTP: a fork of this process computes what would happen.

The fork shares the state without a copy, so events wait only for its start. Invariants: nothing is
appended; plans have a time limit; a client that leaves or does not read ends its plan."""

import asyncio
import contextlib
import importlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

import msgspec
from aiohttp import web

from apportion.core.answers.plans import PlanAnswer, PlanLine, PlanProgress, PlanRequest
from apportion.core.answers.reads import ErrorAnswer
from apportion.core.ledger.state import State
from apportion.gateway.api.answering import HUNG_UP, json_response, write_in_time
from apportion.gateway.api.endpoint import Audience, Endpoint
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.query import RequestRefused, parsed
from apportion.runtime.process.clock import rfc3339
from apportion.runtime.process.fork_worker import ApartFailed, Tell, TookTooLong, apart
from apportion_schemas.decoding import from_outside

AT_ONCE = 2
SECONDS = 60.0
TELL_EVERY_S = 0.5
LINES = "application/x-ndjson"
LISTED_MAX = 1_000  # nodes to lose, or kinds of nodes to add, in one plan

PLAN = Endpoint(
    path="plan", name="plan", method="POST", body=PlanRequest, answer=PlanAnswer, also=(LINES,),
    audience=Audience.TENANTS,
    summary="What would happen with more pods, or with nodes removed or added",
)  # fmt: skip


class _Line(msgspec.Struct):
    answer: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")
    status: int = 200


_encode = msgspec.json.Encoder().encode
_line = from_outside(msgspec.json.Decoder(_Line).decode)
_decode = from_outside(msgspec.json.Decoder(PlanRequest).decode)


class Plans:
    """Computes plans for HTTP requests, each in a fork of this process."""

    def __init__(
        self, state_of: Callable[[web.Request], Awaitable[State]], *, measures: Measures
    ) -> None:
        self._state_of = state_of
        self._measures = measures

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /api/v1/plan`. A client that accepts lines of JSON also gets progress."""
        parsed(PLAN.query, request.query)
        wanted = await _read(request)
        began = time.perf_counter()
        try:
            # These modules import numpy. Import them before the fork, so later forks have them.
            await asyncio.to_thread(importlib.import_module, "apportion.lab.planning")
            state = await self._state_of(request)
            async with (
                contextlib.aclosing(self._lines(state, wanted)) as made,
                contextlib.aclosing(_while_there(request, made)) as lines,
            ):
                if LINES in request.headers.get("Accept", ""):
                    headers = {"Content-Type": LINES, "Cache-Control": "no-store"}
                    response = web.StreamResponse(headers=headers)
                    await response.prepare(request)
                    with contextlib.suppress(ConnectionError):
                        async for data in lines:
                            await write_in_time(request, response, data + b"\n")
                    return response
                line = _Line()
                async for data in lines:
                    line = _line(data)
                if request.transport is None:
                    return web.Response(status=HUNG_UP)
                body = line.error if bytes(line.error) else line.answer
                return json_response(body, status=line.status)
        finally:
            self._measures.plan_seconds.observe(time.perf_counter() - began)

    async def _lines(self, state: State, wanted: PlanRequest) -> AsyncGenerator[bytes, None]:
        work = partial(_work, state, wanted, rfc3339(datetime.now(UTC)))
        try:
            async with contextlib.aclosing(apart(work, seconds=SECONDS)) as frames:
                async for frame in frames:
                    yield frame
        except TookTooLong:
            error = f"the plan took longer than {SECONDS:g} s"
            fix = "plan fewer pods or nodes at once"
            yield _failed(503, ErrorAnswer(error=error, fix=fix))
        except (ApartFailed, OSError) as failure:
            error = f"the plan failed: {failure}"
            yield _failed(503, ErrorAnswer(error=error, fix="see the gateway's log"))


async def _while_there(
    request: web.Request, lines: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    # A fork may be silent for long, and a disconnect shows only on a write: look for it, too.
    while request.transport is not None:
        coming = asyncio.ensure_future(anext(lines, None))
        try:
            while not coming.done() and request.transport is not None:
                await asyncio.wait({coming}, timeout=TELL_EVERY_S)
            line = coming.result() if coming.done() else None
        finally:
            coming.cancel()
            await asyncio.wait({coming})
        if line is None:
            return
        yield line


def _failed(status: int, error: ErrorAnswer) -> bytes:
    return _encode(PlanLine(error=error, status=status))


async def _read(request: web.Request) -> PlanRequest:
    body = await request.read()
    try:
        wanted = _decode(body)
    except msgspec.DecodeError as error:
        raise RequestRefused(
            400,
            f"invalid request body: {error}",
            field="body",
            fix='send JSON as in {"manifest": "…", "lose": ["node-3"], "add": ["4x8xH100-80GB"], '
            '"policy": "price"}; every field is optional',
        ) from None
    for field, listed in (("lose", wanted.lose), ("drain", wanted.drain), ("add", wanted.add)):
        if len(listed) > LISTED_MAX:
            problem = f"{field} has {len(listed)} entries"
            raise RequestRefused(400, problem, field=field, fix=f"use at most {LISTED_MAX:,}")
    return wanted


def _work(state: State, wanted: PlanRequest, now: str, tell: Tell) -> bytes:
    from apportion.lab.changes import WishInvalid  # noqa: PLC0415 - see `handle`
    from apportion.lab.course import CourseFailed  # noqa: PLC0415
    from apportion.lab.planning import plan, plan_of  # noqa: PLC0415

    last_said_s = time.monotonic()

    def pace(progress: PlanProgress) -> None:
        nonlocal last_said_s
        if time.monotonic() - last_said_s >= TELL_EVERY_S:
            last_said_s = time.monotonic()
            tell(_encode(PlanLine(progress=progress)))

    try:
        return _encode(PlanLine(answer=plan(state, plan_of(wanted, state), time=now, tell=pace)))
    except WishInvalid as wrong:
        status = 404 if wrong.field == "lose" else 400
        said = ErrorAnswer(error=wrong.problem, field=wrong.field, fix=wrong.fix, rest=wrong.rest)
        return _failed(status, said)
    except CourseFailed as failure:
        return _failed(500, ErrorAnswer(error=f"the plan contradicts itself: {failure}"))
