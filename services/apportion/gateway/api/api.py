"""The read API: what a request asks, found in the gateway's own fold, as documented JSON.

Invariants: an answer is of one revision and names it; while the fold is not up to now there is no
answer but 503 with the reason; every error is an `ErrorAnswer`; one request never holds up the fold
for longer than one page takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

import msgspec
from aiohttp import web

from apportion.core.explain.answers import (
    ConfigurationAnswer,
    ErrorAnswer,
    NodeDetail,
    PodDetail,
    RevisionAnswer,
    SummaryAnswer,
)
from apportion.core.explain.views import (
    configuration_answer,
    device_answers,
    node_answer,
    pod_answer,
    rejected_answer,
    summary_answer,
)
from apportion.core.explain.why import why, why_rejected
from apportion.core.ledger.state import PodState, State
from apportion.gateway.api import pages
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.query import COMMON, ListQuery, RequestRefused, list_of, only, wait_of
from apportion.gateway.feed import Feed
from apportion_schemas import PodRejected

PREFIX = "/api/v1"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

Answering = Callable[[State, web.Request], msgspec.Struct]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_response(body: msgspec.Struct, *, status: int = 200) -> web.Response:
    """The struct as a JSON response."""
    return web.Response(
        body=_encode(body), status=status, content_type="application/json", headers=_HEADERS
    )


class Api:
    """Answers from one feed; `unready` says why there is no answer yet, or is empty."""

    def __init__(self, feed: Feed, *, unready: Callable[[], str], measures: Measures) -> None:
        self._feed = feed
        self._unready = unready
        self._measures = measures

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """Every route but the event stream."""
        lists: tuple[tuple[str, Callable[[State, ListQuery], msgspec.Struct], tuple[str, ...]], ...]
        lists = (
            ("pods", pages.pods, ("namespace", "phase", "node")),
            ("placements", pages.placements, ("namespace", "phase", "node")),
            ("nodes", pages.nodes, ()),
            ("devices", pages.devices, ("node",)),
            ("gangs", pages.gangs, ()),
        )
        for name, make, filters in lists:
            yield web.get(f"{PREFIX}/{name}", self._answering(name, _listing(make, filters)))
        pod = f"{PREFIX}/pods/{{namespace}}/{{name}}"
        for path, name, answer in (
            (f"{PREFIX}/revision", "revision", _revision),
            (f"{PREFIX}/summary", "summary", _summary),
            (f"{PREFIX}/configuration", "configuration", _configuration),
            (f"{PREFIX}/nodes/{{node}}", "node", _node),
            (pod, "pod", self._pod),
            (f"{pod}/why", "why", self._why),
        ):
            yield web.get(path, self._answering(name, answer))

    def guarded(self, what: str, handle: Handler) -> Handler:
        """`handle` with its refusals answered as JSON, and counted."""

        async def guard(request: web.Request) -> web.StreamResponse:
            try:
                response = await handle(request)
            except RequestRefused as refused:
                response = json_response(refused.answer, status=refused.status)
            except Exception:  # noqa: BLE001 - one bad answer must not look like no gateway
                _log.exception("could not answer %s", request.path_qs)
                error = ErrorAnswer(error="internal error; the gateway's log has the cause")
                response = json_response(error, status=500)
            self._measures.requests.labels(what, str(response.status)).inc()
            return response

        return guard

    def refuse_unless_ready(self) -> None:
        """Raise RequestRefused while the fold is not up to now."""
        reason = self._unready()
        if reason:
            raise RequestRefused(
                503, f"the gateway is not ready: {reason}", fix="ask again later; see /readyz"
            )

    def _answering(self, what: str, answer: Answering) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.refuse_unless_ready()
            await self._wait(request)
            began = time.perf_counter()
            response = json_response(answer(self._feed.state, request))
            self._measures.answer_seconds.observe(time.perf_counter() - began)
            return response

        return self.guarded(what, handle)

    async def _wait(self, request: web.Request) -> None:
        """Read your writes: wait until the revision that the request names is folded."""
        wait = wait_of(request.query)
        if self._feed.state.revision >= wait.at_least:
            return
        try:
            async with asyncio.timeout(wait.wait_s):
                await self._feed.reached(wait.at_least)
        except TimeoutError:
            raise RequestRefused(
                408,
                f"revision {wait.at_least} is not reached after {wait.wait_s:g} s; "
                f"the gateway is at {self._feed.state.revision}",
                field="at_least",
                fix="ask again, with a longer wait_s or a lower revision",
            ) from None

    def _pod(self, state: State, request: web.Request) -> PodDetail:
        only(request.query, COMMON)
        found = self._find(state, request)
        if isinstance(found, PodRejected):
            return PodDetail(revision=state.revision, pod=rejected_answer(found))
        return PodDetail(revision=state.revision, pod=pod_answer(state, found))

    def _why(self, state: State, request: web.Request) -> msgspec.Struct:
        only(request.query, COMMON)
        found = self._find(state, request)
        return why_rejected(state, found) if isinstance(found, PodRejected) else why(state, found)

    def _find(self, state: State, request: web.Request) -> PodState | PodRejected:
        """The live pod of that name, or else the one that cannot be read."""
        space, name = request.match_info["namespace"], request.match_info["name"]
        pod = self._feed.pod(f"{space}/{name}") or next(
            (it for it in state.rejected.values() if (it.namespace, it.name) == (space, name)), None
        )
        if pod is None:
            raise RequestRefused(
                404,
                f"no live pod {space}/{name} at revision {state.revision}",
                field="name",
                fix=f"`apportion get pods` or {PREFIX}/pods lists the live ones; the ledger still "
                "has what was: `apportion tail --from 1`",
            )
        return pod


def _listing(
    make: Callable[[State, ListQuery], msgspec.Struct], filters: tuple[str, ...]
) -> Answering:
    return lambda state, request: make(state, list_of(request.query, filters))


def _revision(state: State, request: web.Request) -> RevisionAnswer:
    only(request.query, COMMON)
    return RevisionAnswer(revision=state.revision)


def _summary(state: State, request: web.Request) -> SummaryAnswer:
    only(request.query, COMMON)
    return summary_answer(state)


def _configuration(state: State, request: web.Request) -> ConfigurationAnswer:
    only(request.query, COMMON)
    return configuration_answer(state)


def _node(state: State, request: web.Request) -> NodeDetail:
    only(request.query, COMMON)
    name = request.match_info["node"]
    node = state.nodes.get(name)
    if node is None:
        raise RequestRefused(
            404,
            f"no node {name} at revision {state.revision}",
            field="node",
            fix=f"`apportion get nodes` or {PREFIX}/nodes lists them",
        )
    return NodeDetail(
        revision=state.revision, node=node_answer(node), devices=tuple(device_answers(node))
    )


async def unknown_path(request: web.Request) -> NoReturn:
    """Any path or method below the prefix that is no route."""
    raise RequestRefused(
        404,
        f"no such path: {request.method} {request.path[:200]}",
        fix=f"GET {PREFIX}/ and one of revision, summary, configuration, pods, "
        "pods/NAMESPACE/NAME, pods/NAMESPACE/NAME/why, placements, nodes, nodes/NODE, devices, "
        "gangs, events",
    )
