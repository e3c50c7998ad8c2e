"""Handlers of the read API that answer from the gateway's own fold.

Requests about events or another point in time (`?at=`) go to a child process. Invariants: an answer
has one revision. Until the fold has caught up, the answer is 503 with the reason. No request blocks
the fold for longer than one page takes."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec
from aiohttp import web

from apportion.core.answers.reads import RevisionAnswer
from apportion.core.explain.health import failed_devices
from apportion.core.ledger.state import State
from apportion.gateway.api import diff, history, log
from apportion.gateway.api.answering import Handlers, by_turns, json_response, short_turns, turn_of
from apportion.gateway.api.endpoint import Handler
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.query import RequestRefused, parsed, wait_of
from apportion.gateway.api.reads import FLEET, READS, REVISION, WHY, FleetQuery, Read
from apportion.gateway.api.reports import AT_ONCE, REPORTS
from apportion.gateway.feed import Feed
from apportion.gateway.fleet import FleetRows
from apportion.gateway.usage import Uses
from apportion.runtime.service.limits import Turns

PAST = (*log.ENDPOINTS, *history.ENDPOINTS, diff.DIFF)  # the endpoints that are only about the past


class Api:
    """The read API over one feed."""

    def __init__(
        self,
        feed: Feed,
        rows: FleetRows,
        uses: Uses,
        *,
        unready: Callable[[], str],  # why no answer is possible yet; "" if one is
        measures: Measures,
        look_back: Handler,  # answers about the past
        frozen: Callable[[], str],  # why no pod can be placed now; "" if pods can
    ) -> None:
        self._feed = feed
        self._rows = rows
        self._uses = uses
        self._unready = unready
        self._measures = measures
        self._look_back = look_back
        self._frozen = frozen
        self._answers = short_turns()

    def handlers(self) -> Handlers:
        """Yield the handlers of all endpoints that read, including those about the past."""
        own = {FLEET: self._fleet, WHY: self._why, REVISION: self._revision}
        for read in READS:
            yield read, self.or_past(own.get(read) or self._answering(read))
        yield from ((endpoint, self._past) for endpoint in PAST)
        report = by_turns(Turns(AT_ONCE), "reports", self._past)
        yield from ((endpoint, report) for endpoint in REPORTS)

    def or_past(self, handle: Handler) -> Handler:
        """Return a handler that passes requests with `?at=` to `look_back`, others to `handle`."""

        async def asked(request: web.Request) -> web.StreamResponse:
            return await (self._past if "at" in request.query else handle)(request)

        return asked

    async def present(self, request: web.Request) -> State:
        """Return the state once it has the revision that was requested. Raises RequestRefused."""
        reason = self._unready()
        if reason:
            error = f"the gateway is not ready: {reason}"
            raise RequestRefused(503, error, fix="retry later; see /readyz", retry_after_s=1)
        await self.wait(request)
        return self._feed.state

    def _answering(self, read: Read) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            await self.present(request)
            async with turn_of(self._answers, request, "requests"):
                began = time.perf_counter()
                response = json_response(read.of(self._feed, request))
            self._measures.answer_seconds.observe(time.perf_counter() - began)
            return response

        return handle

    async def _revision(self, request: web.Request) -> web.StreamResponse:
        parsed(REVISION.query, request.query)
        state = await self.present(request)
        return json_response(RevisionAnswer(revision=state.revision, frozen=self._frozen()))

    async def _fleet(self, request: web.Request) -> web.StreamResponse:
        await self.present(request)
        began = time.perf_counter()
        query = parsed(FleetQuery, request.query)
        answer = await self._rows.answer(-1 if query.after is None else query.after)
        heard, used = self._uses.rows(0 if answer.whole else query.heard)
        answer = msgspec.structs.replace(answer, heard=heard, used=used)
        response = json_response(answer, compressed=True)
        self._measures.answer_seconds.observe(time.perf_counter() - began)
        return response

    async def _why(self, request: web.Request) -> web.StreamResponse:
        state = await self.present(request)
        space, name = request.match_info["namespace"], request.match_info["name"]
        pod = self._feed.pod(f"{space}/{name}")
        rejected = state.rejected.values()
        if pod is None and all((it.namespace, it.name) != (space, name) for it in rejected):
            return await self._look_back(request)
        if pod is not None and failed_devices(state, pod):
            with contextlib.suppress(RequestRefused):  # else answer without the times of failures
                return await self._look_back(request)
        return json_response(WHY.of(self._feed, request))

    async def _past(self, request: web.Request) -> web.StreamResponse:
        await self.wait(request)
        return await self._look_back(request)

    async def wait(self, request: web.Request) -> None:
        """Wait until the revision that the request names is folded. Raises RequestRefused."""
        wait = wait_of(request.query)
        if self._feed.state.revision >= wait.at_least:
            return
        try:
            async with asyncio.timeout(wait.wait_s):
                await self._feed.reached(wait.at_least)
        except TimeoutError:
            revision = self._feed.state.revision
            error = f"revision {wait.at_least} not reached within {wait.wait_s:g} s; "
            error += f"the gateway is at {revision}"
            fix = "retry with a longer wait_s or a lower revision"
            raise RequestRefused(408, error, field="at_least", fix=fix) from None
