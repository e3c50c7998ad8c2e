"""Plans and moves over HTTP: a fork of this process computes what would happen.

The fork shares the state without a copy, so events wait only for its start. Invariants: nothing is
appended; plans have a time limit; a client that leaves or does not read ends its plan."""

import asyncio
import contextlib
import importlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import msgspec
from aiohttp import web

from apportion.core.answers.plans import (
    DefragAnswer,
    DefragLine,
    DefragRequest,
    PlanAnswer,
    PlanLine,
    PlanProgress,
    PlanRequest,
)
from apportion.core.answers.reads import ErrorAnswer, StartForecast
from apportion.core.ledger.state import PodState, State
from apportion.gateway.api.answering import HUNG_UP, json_response, write_in_time
from apportion.gateway.api.endpoint import Audience, Endpoint
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.query import RequestRefused, WaitQuery, parsed
from apportion.runtime.process.clock import rfc3339
from apportion.runtime.process.fork_worker import ApartFailed, Tell, TookTooLong, apart
from apportion_schemas.decoding import from_outside

AT_ONCE = 2
SECONDS = 60.0
SEARCH_S = 45.0  # for moves; then the answer has those found until then
TELL_EVERY_S = 0.5
LINES = "application/x-ndjson"
LISTED_MAX = 1_000  # nodes to lose, or kinds of nodes to add, in one plan

PLAN = Endpoint(
    path="plan", name="plan", method="POST", body=PlanRequest, answer=PlanAnswer, also=(LINES,),
    audience=Audience.TENANTS,
    summary="What would happen with more pods, or with nodes removed or added",
)  # fmt: skip
DEFRAG = Endpoint(
    path="defrag", name="defrag", method="POST", body=DefragRequest, answer=DefragAnswer,
    also=(LINES,), query=WaitQuery,
    summary="Which running pods to move so that pending pods fit, or nodes become empty",
)  # fmt: skip


class _Line(msgspec.Struct):
    answer: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")
    status: int = 200


T = TypeVar("T")
PLAN_EXAMPLE = '{"manifest": "…", "lose": ["node-3"], "add": ["4x8xH100-80GB"], "policy": "price"}'
DEFRAG_EXAMPLE = '{"pods": ["team/train-0"], "moves_max": 4, "lost_gpu_hours_max": 8}'

_encode = msgspec.json.Encoder().encode
_line = from_outside(msgspec.json.Decoder(_Line).decode)
_decode = from_outside(msgspec.json.Decoder(PlanRequest).decode)
_decode_defrag = from_outside(msgspec.json.Decoder(DefragRequest).decode)
Wanted = PlanRequest | DefragRequest
Forecasts = Callable[[State], Callable[[PodState], StartForecast | None]]


class Plans:
    """Computes plans, and moves of pods, for HTTP requests, each in a fork of this process."""

    def __init__(
        self,
        state_of: Callable[[web.Request], Awaitable[State]],
        *,
        measures: Measures,
        forecasts_in: Forecasts | None = None,
    ) -> None:
        """Plan from the state of a request. `forecasts_in` is None for the past."""
        self._state_of = state_of
        self._measures = measures
        self._forecasts_in = forecasts_in

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /api/v1/plan`. A client that accepts lines of JSON also gets progress."""
        parsed(PLAN.query, request.query)
        wanted = await _read(request, _decode, PLAN_EXAMPLE)
        for field, listed in (("lose", wanted.lose), ("drain", wanted.drain), ("add", wanted.add)):
            _at_most(field, len(listed))
        return await self._answer(request, wanted)

    async def handle_defrag(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /api/v1/defrag`, with progress as above."""
        parsed(DEFRAG.query, request.query)
        wanted = await _read(request, _decode_defrag, DEFRAG_EXAMPLE)
        _at_most("pods", len(wanted.pods))
        return await self._answer(request, wanted)

    async def _answer(self, request: web.Request, wanted: Wanted) -> web.StreamResponse:
        began = time.perf_counter()
        try:
            # These modules import numpy. Import them before the fork, so later forks have them.
            await asyncio.to_thread(importlib.import_module, "apportion.lab.defrag")
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

    async def _lines(self, state: State, wanted: Wanted) -> AsyncGenerator[bytes, None]:
        now = rfc3339(datetime.now(UTC))
        work = partial(_work, state, wanted, now, self._forecasts_in)
        try:
            async with contextlib.aclosing(apart(work, seconds=SECONDS)) as frames:
                async for frame in frames:
                    yield frame
        except TookTooLong:
            error = f"the plan took longer than {SECONDS:g} s"
            fix = "plan fewer pods or nodes at once"
            if isinstance(wanted, DefragRequest):
                fix = "name the pods that need room, or empty fewer nodes with --free-nodes"
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


async def _read(request: web.Request, decode: Callable[[bytes], T], example: str) -> T:
    try:
        return decode(await request.read())
    except msgspec.DecodeError as error:
        raise RequestRefused(
            400, f"invalid request body: {error}", field="body",
            fix=f"send JSON as in {example}; every field is optional",
        ) from None  # fmt: skip


def _at_most(field: str, count: int) -> None:
    if count > LISTED_MAX:
        problem = f"{field} has {count} entries"
        raise RequestRefused(400, problem, field=field, fix=f"use at most {LISTED_MAX:,}")


def _work(
    state: State, wanted: Wanted, now: str, forecasts_in: Forecasts | None, tell: Tell
) -> bytes:
    from apportion.lab.changes import WishInvalid  # noqa: PLC0415 - see `_answer`
    from apportion.lab.course import CourseFailed  # noqa: PLC0415
    from apportion.lab.defrag import defrag  # noqa: PLC0415
    from apportion.lab.planning import plan, plan_of  # noqa: PLC0415

    began_s = last_said_s = time.monotonic()

    def pace(progress: PlanProgress) -> None:
        nonlocal last_said_s
        if time.monotonic() - last_said_s >= TELL_EVERY_S:
            last_said_s = time.monotonic()
            tell(_encode(PlanLine(progress=progress)))

    try:
        if isinstance(wanted, DefragRequest):
            found = defrag(
                state, wanted, time=now, tell=pace,
                is_late=lambda: time.monotonic() - began_s > SEARCH_S,
            )  # fmt: skip
            return _encode(DefragLine(answer=found))
        wish = plan_of(wanted, state)
        made = plan(state, wish, time=now, tell=pace, forecasts_in=forecasts_in)
        return _encode(PlanLine(answer=made))
    except WishInvalid as wrong:
        status = 404 if wrong.field in {"lose", "pods"} else 400
        said = ErrorAnswer(error=wrong.problem, field=wrong.field, fix=wrong.fix, rest=wrong.rest)
        return _failed(status, said)
    except CourseFailed as failure:
        return _failed(500, ErrorAnswer(error=f"the plan contradicts itself: {failure}"))
