"""The reads of the API: what a request asks, answered from one state, of now or of the past.

Invariant: an answer is made of one state in one piece, and names its revision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
from aiohttp import web

from apportion.core.explain.answers import (
    ConfigurationAnswer,
    LinesAnswer,
    NamespacesAnswer,
    NodeDetail,
    PodDetail,
    RevisionAnswer,
    SummaryAnswer,
)
from apportion.core.explain.packed import FleetAnswer, whole_fleet
from apportion.core.explain.queued import PODS_SHOWN, lines_answer, namespaces_answer
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
from apportion.gateway.api.query import (
    COMMON,
    LIMIT_MAX,
    ListQuery,
    RequestRefused,
    fleet_of,
    list_of,
    only,
    whole,
)
from apportion_schemas import PodRejected

PREFIX = "/api/v1"


class View(Protocol):
    """A state to answer from."""

    @property
    def state(self) -> State:
        """All that the ledger says up to `state.revision`."""

    def pod(self, full_name: str) -> PodState | None:
        """The live pod of that `namespace/name`; of several, the one submitted last."""


Answering = Callable[[View, web.Request], msgspec.Struct]


def reads() -> Iterable[tuple[str, str, Answering]]:
    """Every read: its path below the prefix, its name, and what answers it."""
    lists: tuple[tuple[str, Callable[[State, ListQuery], msgspec.Struct], tuple[str, ...]], ...] = (
        ("pods", pages.pods, ("namespace", "phase", "node")),
        ("placements", pages.placements, ("namespace", "phase", "node")),
        ("nodes", pages.nodes, ()),
        ("devices", pages.devices, ("node",)),
        ("gangs", pages.gangs, ()),
        ("queues", pages.queues, ()),
        ("quotas", pages.quotas, ("namespace",)),
    )
    for name, make, filters in lists:
        yield name, name, _listing(make, filters)
    yield "revision", "revision", _revision
    yield "summary", "summary", _summary
    yield "configuration", "configuration", _configuration
    yield "lines", "lines", _lines
    yield "namespaces", "namespaces", _namespaces
    yield "fleet", "fleet", _fleet
    yield "nodes/{node}", "node", _node
    yield "pods/{namespace}/{name}", "pod", _pod
    yield "pods/{namespace}/{name}/why", "why", explained


def _listing(
    make: Callable[[State, ListQuery], msgspec.Struct], filters: tuple[str, ...]
) -> Answering:
    return lambda view, request: make(view.state, list_of(request.query, filters))


def _revision(view: View, request: web.Request) -> RevisionAnswer:
    only(request.query, COMMON)
    state = view.state
    return RevisionAnswer(revision=state.revision)


def _summary(view: View, request: web.Request) -> SummaryAnswer:
    only(request.query, COMMON)
    state = view.state
    return summary_answer(state)


def _configuration(view: View, request: web.Request) -> ConfigurationAnswer:
    only(request.query, COMMON)
    state = view.state
    return configuration_answer(state)


def _lines(view: View, request: web.Request) -> LinesAnswer:
    only(request.query, (*COMMON, "limit"))
    limit = request.query.get("limit")
    shown = whole("limit", limit, least=1, most=LIMIT_MAX) if limit is not None else PODS_SHOWN
    return lines_answer(view.state, shown)


def _namespaces(view: View, request: web.Request) -> NamespacesAnswer:
    only(request.query, COMMON)
    return namespaces_answer(view.state)


def _fleet(view: View, request: web.Request) -> FleetAnswer:
    """All of it, for a moment of the past; the present has its rows kept."""
    fleet_of(request.query)
    return whole_fleet(view.state)


def _node(view: View, request: web.Request) -> NodeDetail:
    only(request.query, COMMON)
    state = view.state
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


def _pod(view: View, request: web.Request) -> PodDetail:
    only(request.query, COMMON)
    state = view.state
    found = _find(view, request)
    if isinstance(found, PodRejected):
        return PodDetail(revision=state.revision, pod=rejected_answer(found))
    return PodDetail(revision=state.revision, pod=pod_answer(state, found))


def explained(view: View, request: web.Request) -> msgspec.Struct:
    """Why a pod is where it is, from this state alone. Raises RequestRefused."""
    only(request.query, COMMON)
    state = view.state
    found = _find(view, request)
    return why_rejected(state, found) if isinstance(found, PodRejected) else why(state, found)


def _find(view: View, request: web.Request) -> PodState | PodRejected:
    """The live pod of that name, or else the one that cannot be read."""
    state = view.state
    space, name = request.match_info["namespace"], request.match_info["name"]
    pod = view.pod(f"{space}/{name}") or next(
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
