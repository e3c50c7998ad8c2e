"""Lists in pages, each from one revision of the state. A page costs only what it returns.

A page continues after the last item of the previous one. New events do not change the order, so no
item is listed twice. Invariant: no page exceeds its limit, but a page of devices completes its last
node."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, TypeVar

from msgspec import Meta, structs

from apportion.core.answers.reads import (
    DeviceAnswer,
    DevicePage,
    GangPage,
    NodePage,
    Page,
    PlacementPage,
    PodPage,
    QueuePage,
    QuotaAnswer,
    QuotaPage,
    StartForecast,
)
from apportion.core.explain.explainer import Explainer, queue_answers, quota_answers
from apportion.core.explain.views import (
    REFUSED,
    REJECTED,
    device_answers,
    gang_answer,
    node_answer,
    placement_answer,
    pod_answer,
    rejected_answer,
    shown_phase,
)
from apportion.core.explain.why import with_never
from apportion.core.ledger.state import Phase, PodState, State
from apportion.core.names import natural
from apportion.gateway.api.query import PageQuery, RequestRefused
from apportion_schemas.quantities import NAME_MAX

T = TypeVar("T")
_REJECTED = f"{REJECTED}:"
STARTS_MAX = 100  # pods of a page with forecasts, which take up to some ms each
PHASES = (*(phase.value for phase in Phase), REFUSED, REJECTED)
NodeName = Annotated[str, Meta(max_length=NAME_MAX, description="Only items on this node.")]
NamespaceName = Annotated[
    str, Meta(max_length=NAME_MAX, description="Only items of this namespace.")
]


class PlacementsQuery(PageQuery, frozen=True, kw_only=True):
    """The parameters of lists of placed pods."""

    namespace: NamespaceName = ""
    phase: Annotated[
        str, Meta(extra_json_schema={"enum": list(PHASES)}, description="Only pods in this phase.")
    ] = ""
    node: NodeName = ""


class PodsQuery(PlacementsQuery, frozen=True, kw_only=True):
    """The parameters of lists of pods."""

    start: Annotated[
        int, Meta(ge=0, le=1, description="1: add a forecast of its start to each pending pod, on "
                  "pages of at most 100 pods. Ignored for past times."),
    ] = 0  # fmt: skip


class DevicesQuery(PageQuery, frozen=True, kw_only=True):
    """The parameters of the list of devices."""

    node: NodeName = ""


class QuotasQuery(PageQuery, frozen=True, kw_only=True):
    """The parameters of the list of quotas."""

    namespace: NamespaceName = ""


def pods(
    state: State,
    query: PodsQuery,
    forecast: Callable[[PodState], StartForecast | None] = lambda _: None,
) -> PodPage:
    """Return a page of pods: first by revision of submission, then unreadable pods by uid.

    A page continues after a revision, or after `rejected:UID`. With `query.start`, pending pods
    have a forecast of their start, and a page has at most `STARTS_MAX` pods."""
    if query.start:
        query = structs.replace(query, limit=min(query.limit, STARTS_MAX))
    if query.after.startswith(_REJECTED):
        return _rejected(state, query, query.after.removeprefix(_REJECTED), query.limit)
    after = query.after_revision
    behind = (pod for pod in _pods(state, query) if pod.submitted_revision > after)
    chosen, more = _cut(list(itertools.islice(behind, query.limit + 1)), query.limit)
    explainer = Explainer(state)
    live = tuple(pod_answer(state, pod, explainer) for pod in chosen)
    if query.start:
        live = tuple(
            structs.replace(answer, start=with_never(forecast(pod), answer.never))
            for answer, pod in zip(live, chosen, strict=True)
        )
    if more:
        return PodPage(revision=state.revision, items=live, next=str(chosen[-1].submitted_revision))
    rest = _rejected(state, query, "", query.limit - len(live))
    return PodPage(revision=state.revision, items=live + rest.items, next=rest.next)


def _rejected(state: State, query: PodsQuery, after: str, limit: int) -> PodPage:
    if query.node or query.phase not in {"", REJECTED}:
        return PodPage(revision=state.revision, items=())
    uids = (
        uid
        for uid, pod in state.rejected.items()
        if uid > after and query.namespace in {"", pod.namespace}
    )
    chosen, more = _cut(heapq.nsmallest(limit + 1, uids), limit)
    items = tuple(rejected_answer(state.rejected[uid]) for uid in chosen)
    behind = _REJECTED + (chosen[-1] if chosen else "") if more else ""
    return PodPage(revision=state.revision, items=items, next=behind)


def placements(state: State, query: PlacementsQuery) -> PlacementPage:
    """Return a page of live placements in order of decision."""
    after = query.after_revision
    placed = (pod for pod in _pods(state, query) if pod.placement and pod.placed_revision > after)
    first = heapq.nsmallest(query.limit + 1, placed, key=lambda pod: pod.placed_revision)
    chosen, more = _cut(first, query.limit)
    items = tuple(placement_answer(pod) for pod in chosen)
    behind = str(chosen[-1].placed_revision) if more else ""
    return PlacementPage(revision=state.revision, items=items, next=behind)


def nodes(state: State, query: PageQuery) -> NodePage:
    """Return a page of nodes by name."""
    nodes = state.nodes
    return _by_name(state, nodes, query, lambda names: tuple(node_answer(nodes[n]) for n in names))


def devices(state: State, query: DevicesQuery) -> DevicePage:
    """Return a page of devices by node and index. All devices of a node are on the same page."""
    if query.node and query.node not in state.nodes:
        error = f"no node {query.node!r} at revision {state.revision}"
        fix = "list them with `apportion get nodes` or /api/v1/nodes"
        raise RequestRefused(404, error, field="node", fix=fix)
    wanted: Iterable[str] = (query.node,) if query.node else state.nodes
    behind = natural(query.after) if query.after else None
    names = sorted(
        (name for name in wanted if behind is None or natural(name) > behind), key=natural
    )
    items: list[DeviceAnswer] = []
    for place, name in enumerate(names):
        items += device_answers(state.nodes[name])
        if len(items) >= query.limit and place + 1 < len(names):
            return DevicePage(revision=state.revision, items=tuple(items), next=name)
    return DevicePage(revision=state.revision, items=tuple(items))


def gangs(state: State, query: PageQuery) -> GangPage:
    """Return a page of gangs by name."""
    groups = state.groups
    return _by_name(
        state, groups, query,
        lambda names: tuple(gang_answer(state, name, groups[name]) for name in names),
    )  # fmt: skip


def queues(state: State, query: PageQuery) -> QueuePage:
    """Return a page of queues by name."""
    return _by_name(state, state.queues, query, lambda names: queue_answers(state, names))


def quotas(state: State, query: QuotasQuery) -> QuotaPage:
    """Return a page of device quotas by `namespace/name`."""
    among = [query.namespace] if query.namespace else state.quotas
    there = (f"{space}/{name}" for space in among for name in state.quotas.get(space, ()))

    def rows(names: list[str]) -> tuple[QuotaAnswer, ...]:
        parts = (name.partition("/") for name in names)
        return quota_answers(state, ((space, own) for space, _, own in parts))

    return _by_name(state, there, query, rows)


def _by_name(
    state: State, of: Iterable[str], query: PageQuery, rows: Callable[[list[str]], tuple[T, ...]]
) -> Page[T]:
    behind = natural(query.after) if query.after else None
    names = (name for name in of if behind is None or natural(name) > behind)
    chosen, more = _cut(heapq.nsmallest(query.limit + 1, names, key=natural), query.limit)
    return Page(revision=state.revision, items=tuple(rows(chosen)), next=chosen[-1] if more else "")


def _cut(found: list[T], limit: int) -> tuple[list[T], bool]:
    return found[:limit], len(found) > limit


def _pods(state: State, query: PlacementsQuery) -> Iterator[PodState]:
    if query.node:
        node = state.nodes.get(query.node)
        held = node.pods.values() if node else ()
        among: Iterable[PodState] = sorted(held, key=lambda pod: pod.submitted_revision)
    else:
        among = state.pods.values()  # in order of submission
    for pod in among:
        if query.namespace and pod.submitted.namespace != query.namespace:
            continue
        if query.phase and query.phase not in (pod.phase.value, shown_phase(pod)):
            continue
        yield pod
