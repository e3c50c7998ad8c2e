"""The endpoints that are answered from one state, present or past.

Invariant: an answer is made from one state and contains its revision."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Protocol

import msgspec
from aiohttp import web
from msgspec import Meta

from apportion.core.answers.reads import (
    ConfigurationAnswer,
    DevicePage,
    GangPage,
    LinesAnswer,
    MigrationAnswer,
    NamespacesAnswer,
    NodeDetail,
    NodePage,
    PlacementPage,
    PodDetail,
    PodPage,
    QueuePage,
    QuotaPage,
    RevisionAnswer,
    StartForecast,
    SummaryAnswer,
    Why,
)
from apportion.core.explain.fleet_rows import FleetAnswer, whole_fleet
from apportion.core.explain.migration import migration_answer
from apportion.core.explain.views import (
    configuration_answer,
    device_answers,
    node_answer,
    pod_answer,
    rejected_answer,
    summary_answer,
)
from apportion.core.explain.waiting_lines import PODS_SHOWN, lines_answer, namespaces_answer
from apportion.core.explain.why import why, why_rejected
from apportion.core.ledger.state import PodState, State
from apportion.gateway.api import pages
from apportion.gateway.api.endpoint import PREFIX, Audience, Endpoint
from apportion.gateway.api.query import (
    LIMIT_MAX,
    REVISION_MAX,
    AtQuery,
    PageQuery,
    RequestRefused,
    parsed,
)
from apportion_schemas import PodRejected

TENANTS: Final = Audience.TENANTS


class View(Protocol):
    """A state from which an endpoint answers: the present one or a past one."""

    @property
    def state(self) -> State:
        """Return the state from which requests are answered."""

    def pod(self, full_name: str) -> PodState | None:
        """Return the newest live pod with this `namespace/name`, or None."""

    def forecast(self, pod: PodState) -> StartForecast | None:
        """Return when a pending pod should start; None for other pods and past states."""


# makes an answer from a state, the parameters, and the path's parts
Make = Callable[[View, Any, Mapping[str, str]], msgspec.Struct]


class Read(Endpoint, frozen=True, kw_only=True):
    """An endpoint that answers from one state, current or past."""

    make: Make

    def of(self, view: View, request: web.Request) -> msgspec.Struct:
        """Return the answer to this request. Raises RequestRefused."""
        return self.make(view, parsed(self.query, request.query), request.match_info)


class LinesQuery(AtQuery, frozen=True, kw_only=True):
    """The parameters of the endpoint for groups of pending pods."""

    limit: Annotated[
        int,
        Meta(
            ge=1, le=LIMIT_MAX, description="Maximum pods to list in each group of equal requests."
        ),
    ] = PODS_SHOWN
    start: Annotated[
        int, Meta(ge=0, le=1, description="1: add a forecast of its start to each group. Ignored "
                  "for past times."),
    ] = 0  # fmt: skip


class FleetQuery(AtQuery, frozen=True, kw_only=True):
    """The parameters of the endpoint for the picture of the fleet."""

    after: Annotated[
        int, Meta(ge=0, le=REVISION_MAX, description="Only nodes that changed after this "
                  "revision; default: all nodes."),
    ] | None = None  # fmt: skip
    heard: Annotated[
        int, Meta(ge=0, le=REVISION_MAX, description="Only usage samples that are newer than this "
        "number. Use the number `heard` of the "
        "previous answer."),
    ] = 0  # fmt: skip


def _node(view: View, _query: AtQuery, names: Mapping[str, str]) -> NodeDetail:
    state, name = view.state, names["node"]
    node = state.nodes.get(name)
    if node is None:
        error = f"no node {name} at revision {state.revision}"
        fix = f"list them with `apportion get nodes` or {PREFIX}/nodes"
        raise RequestRefused(404, error, field="node", fix=fix)
    return NodeDetail(
        revision=state.revision, node=node_answer(node), devices=tuple(device_answers(node))
    )


def _pod(view: View, _query: AtQuery, names: Mapping[str, str]) -> PodDetail:
    state, found = view.state, _find(view, names)
    if isinstance(found, PodRejected):
        return PodDetail(revision=state.revision, pod=rejected_answer(found))
    return PodDetail(revision=state.revision, pod=pod_answer(state, found))


def _why(view: View, _query: AtQuery, names: Mapping[str, str]) -> Why:
    state, found = view.state, _find(view, names)
    if isinstance(found, PodRejected):
        return why_rejected(state, found)
    return why(state, found, start=view.forecast(found))


def _find(view: View, names: Mapping[str, str]) -> PodState | PodRejected:
    state, space, name = view.state, names["namespace"], names["name"]
    pod = view.pod(f"{space}/{name}") or next(
        (it for it in state.rejected.values() if (it.namespace, it.name) == (space, name)), None
    )
    if pod is None:
        error = f"no live pod {space}/{name} at revision {state.revision}"
        fix = f"list live pods with `apportion get pods` or {PREFIX}/pods, "
        fix += "and past pods with `apportion tail --from 1`"
        raise RequestRefused(404, error, field="name", fix=fix)
    return pod


def _page(make: Callable[[State, Any], msgspec.Struct]) -> Make:
    return lambda view, query, _names: make(view.state, query)


REVISION = Read(
    path="revision", name="revision", answer=RevisionAnswer, audience=TENANTS,
    make=lambda view, *_: RevisionAnswer(revision=view.state.revision),
    summary="The newest revision that the gateway has read. If no pod can be placed or started "
    "now, also the cause",
)  # fmt: skip
FLEET = Read(
    path="fleet", name="fleet", answer=FleetAnswer, audience=TENANTS, query=FleetQuery,
    make=lambda view, *_: whole_fleet(view.state),
    summary="All nodes as compact arrays, or only the changed nodes, with the usage of shares",
)  # fmt: skip
WHY = Read(
    path="pods/{namespace}/{name}/why", name="why", answer=Why, audience=TENANTS, make=_why,
    summary="Why a pod is placed or pending; for an ended pod, as of just before its end. With "
    "`at`, also its evictions and breaches",
)  # fmt: skip
# Every endpoint that is answered from a state; a new read is one more row here.
READS: Final = (
    Read(
        path="pods", name="pods", answer=PodPage, audience=TENANTS, query=pages.PodsQuery,
        make=lambda view, query, _: pages.pods(view.state, query, view.forecast),
        summary="Pods by time of submission, then rejected pods",
    ),
    Read(
        path="placements", name="placements", answer=PlacementPage, audience=TENANTS,
        query=pages.PlacementsQuery, make=_page(pages.placements),
        summary="Current placements by time of decision",
    ),
    Read(
        path="nodes", name="nodes", answer=NodePage, audience=TENANTS, query=PageQuery,
        make=_page(pages.nodes), summary="Nodes by name",
    ),
    Read(
        path="devices", name="devices", answer=DevicePage, audience=TENANTS,
        query=pages.DevicesQuery, make=_page(pages.devices),
        summary="Devices by node and index, with the pods that use them",
    ),
    Read(
        path="gangs", name="gangs", answer=GangPage, audience=TENANTS, query=PageQuery,
        make=_page(pages.gangs),
        summary="Gangs, with the number of their pods per phase",
    ),
    Read(
        path="queues", name="queues", answer=QueuePage, audience=TENANTS, query=PageQuery,
        make=_page(pages.queues),
        summary="Queues: weight, limits and usage; tenants see no usage",
    ),
    Read(
        path="quotas", name="quotas", answer=QuotaPage, audience=TENANTS, query=pages.QuotasQuery,
        make=_page(pages.quotas),
        summary="Device quotas by namespace: limits and usage",
    ),
    REVISION,
    Read(
        path="summary", name="summary", answer=SummaryAnswer, audience=TENANTS,
        make=lambda view, *_: summary_answer(view.state),
        summary="Totals: pods by phase, nodes, devices, memory, and the current policy",
    ),
    Read(
        path="configuration", name="configuration", answer=ConfigurationAnswer,
        make=lambda view, *_: configuration_answer(view.state), audience=Audience.LEDGER,
        summary="The current configuration of all services, and its revision",
    ),
    Read(
        path="lines", name="lines", answer=LinesAnswer, audience=TENANTS, query=LinesQuery,
        make=lambda view, query, _: lines_answer(
            view.state, query.limit, *([view.forecast] if query.start else [])
        ),
        summary="Pending pods grouped by request, with causes and the nearest nodes",
    ),
    Read(
        path="namespaces", name="namespaces", answer=NamespacesAnswer, audience=TENANTS,
        make=lambda view, *_: namespaces_answer(view.state),
        summary="Namespaces with live pods, sorted by the number of devices in use",
    ),
    Read(
        path="migration", name="migration", answer=MigrationAnswer, audience=Audience.LEDGER,
        make=lambda view, *_: migration_answer(view.state),
        summary="How far the cluster has moved from HAMi, Volcano or another system to Apportion, "
        "and the next step",
    ),
    FLEET,
    Read(
        path="nodes/{node}", name="node", answer=NodeDetail, audience=TENANTS, make=_node,
        summary="One node with its devices",
    ),
    Read(
        path="pods/{namespace}/{name}", name="pod", answer=PodDetail, audience=TENANTS, make=_pod,
        summary="One pod",
    ),
    WHY,
)  # fmt: skip
