"""The API of what was: every read at a moment, and what happened, to whom and when.

It is served by the process that keeps the past, to the gateway alone. Invariants: an answer names
the revision that the moment means; what is asked of a time that nobody knows is refused with what
is known; a page is bounded, and so is what is read for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec
from aiohttp import web

from apportion.core.explain.past_answers import MomentAnswer
from apportion.core.ledger.state import State
from apportion.gateway.api.answering import Handler, guarded, json_response
from apportion.gateway.api.diff import Diff
from apportion.gateway.api.history import History
from apportion.gateway.api.log import Log
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.moments import Moments
from apportion.gateway.api.past_client import RECORDS
from apportion.gateway.api.plans import Plans
from apportion.gateway.api.query import COMMON, REVISION_MAX, RequestRefused, only, whole
from apportion.gateway.api.reads import PREFIX, Answering, reads
from apportion.gateway.api.timeline import timeline
from apportion.gateway.api.why import PastView, PastWhy
from apportion.gateway.past.past import Past
from apportion.gateway.past.pieces import Pieces
from apportion.gateway.past.states import BeforeBeginning
from apportion.runtime.ledger.archive import ArchiveError
from apportion.runtime.ledger.port import LedgerError
from apportion_schemas import UnknownEvent


class PastApi:
    """Answers about the past of one ledger; `now` says what time it is."""

    def __init__(self, past: Past, *, measures: Measures, now: Callable[[], datetime]) -> None:
        self._past = past
        self._measures = measures
        self._moments = Moments(past, now)
        self._log = Log(past)
        self._pieces = Pieces(past.chronicle)
        self._history = History(past, self._moments)
        self._diffs = Diff(past, self._moments)
        self._why = PastWhy(past, self._history)
        self._plans = Plans(self._state, measures=measures)

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """Every read of the API, at a moment, and what there is of the past alone."""
        for path, what, answer in reads():
            known = {"why": self._why.handle}
            yield self._route(path, what, known.get(what) or self._answering(answer))
        yield self._route("moment", "moment", self._moment)
        yield self._route("timeline", "timeline", self._timeline)
        yield self._route("log", "log", self._log.page)
        yield self._route("log/{revision}", "log", self._log.entry)
        yield self._route("history/pods/{name}", "history", self._history.names)
        yield self._route("history/pods/{namespace}/{name}", "history", self._history.pod)
        yield self._route("history/nodes/{node}", "history", self._history.node)
        yield self._route("history/devices/{device}", "history", self._history.device)
        yield self._route("who", "who", self._history.who)
        yield self._route("diff", "diff", self._diff)
        plan = guarded(self._measures, "plan", _sound(self._plans.handle))
        yield web.post(f"{PREFIX}/plan", plan)
        yield web.get(RECORDS, guarded(self._measures, "records", _sound(self._records)))

    async def _state(self, request: web.Request) -> State:
        """The state at the moment that the request names, to be read at once."""
        revision = await self._moments.revision("at", request.query.get("at", ""))
        return await self._past.states.at(revision)

    def _route(self, path: str, what: str, handle: Handler) -> web.AbstractRouteDef:
        return web.get(f"{PREFIX}/{path}", guarded(self._measures, what, _sound(handle)))

    def _answering(self, answer: Answering) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            revision = await self._moments.revision("at", request.query.get("at", ""))
            time = await self._past.chronicle.time_at(revision)
            state = await self._past.states.at(revision)
            body = answer(PastView(state), request)
            return json_response(msgspec.structs.replace(body, time=time), compressed=True)

        return handle

    async def _moment(self, request: web.Request) -> web.StreamResponse:
        only(request.query, COMMON)
        revision = await self._moments.revision("at", request.query.get("at", ""))
        time = await self._past.chronicle.time_at(revision)
        return json_response(MomentAnswer(revision=revision, time=time))

    async def _records(self, request: web.Request) -> web.StreamResponse:
        """Records behind a revision, for those who follow the gateway's events from far back."""
        after = whole("after", request.query.get("after", ""), most=REVISION_MAX)
        found = await self._pieces.behind(after)
        return web.Response(body=msgspec.msgpack.encode(found))

    async def _timeline(self, request: web.Request) -> web.StreamResponse:
        return json_response(await timeline(self._past, self._moments, request.query))

    async def _diff(self, request: web.Request) -> web.StreamResponse:
        return json_response(await self._diffs.answer(request.query))


def _sound(handle: Handler) -> Handler:
    """`handle`, whose troubles with ledger and archives are told as refusals."""

    async def sound(request: web.Request) -> web.StreamResponse:
        try:
            return await handle(request)
        except BeforeBeginning as early:
            raise RequestRefused(
                404,
                str(early),
                field="at",
                fix=f"name revision {early.first} or a later one, or tell the gateway where the "
                "archives of what was dropped are: --archives DIR",
            ) from None
        except UnknownEvent as unknown:
            raise RequestRefused(
                503, f"a newer build has written up to there: {unknown}", fix="upgrade the gateway"
            ) from None
        except (LedgerError, ArchiveError, OSError) as error:
            raise RequestRefused(
                503, f"the past cannot be read now: {error}", fix="ask again later"
            ) from None

    return sound
