"""Histories of pods, nodes and devices, past allocations, and the timeline, from the index.

Invariants: pages and the number of bins are bounded. A page continues where the previous one ended,
and covers revisions up to its own. The bins of the timeline cover its span without a gap."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from apportion.core.answers.past import (
    Bin,
    HistoryPage,
    MomentAnswer,
    PodName,
    PodNames,
    TimelineAnswer,
    WhoPage,
)
from apportion.core.answers.reads import AMBIGUOUS_DEVICE, UNKNOWN_DEVICE
from apportion.core.explain.text import names as device_names
from apportion.core.explain.text.answer_text import mark_with_text
from apportion.core.explain.text.event_text import Teller
from apportion.gateway.api.endpoint import Audience, Endpoint
from apportion.gateway.api.log import row_of
from apportion.gateway.api.moments import Moments, asked_for
from apportion.gateway.api.query import (
    LIMIT_MAX,
    AtQuery,
    PageQuery,
    RequestRefused,
    WaitQuery,
    text_of,
)
from apportion.gateway.past.cells import binned
from apportion.gateway.past.index import DEVICE, NODE, POD
from apportion.gateway.past.past import Past
from apportion.runtime.process.clock import rfc3339

LIMIT_DEFAULT = 200
BINS_DEFAULT = 200
BINS_MAX = 2_000
MARKS_MAX = 500
PODS_MAX = 100  # the newest pods of one name, whose histories are merged
SIMILAR_MAX = 100  # device ids with the same prefix that are counted
NAMESAKES_MAX = 100  # namespaces listed for one pod name


class HistoryQuery(PageQuery, frozen=True, kw_only=True):
    """The parameters of the history of a pod, node or device."""

    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Maximum rows per page.")] = (
        LIMIT_DEFAULT
    )


class WhoQuery(HistoryQuery, frozen=True, kw_only=True):
    """The parameters of past allocations: either a node or a device, and a point in time."""

    node: Annotated[str, Meta(description="The node; set either `node` or `device`.")] | None = None
    device: Annotated[str, Meta(description="The device's id or a unique prefix of it.")] | None = (
        None
    )
    since: Annotated[str, Meta(description="Start of the period; its end is `at`.")] | None = None


class TimelineQuery(WaitQuery, frozen=True, kw_only=True):
    """The parameters of the timeline."""

    bins: Annotated[
        int,
        Meta(
            ge=1, le=BINS_MAX, description="Number of intervals into which the period is divided."
        ),
    ] = BINS_DEFAULT
    first: Annotated[str, Meta(description="Start of the period.")] | None = msgspec.field(
        default=None, name="from"
    )
    last: Annotated[str, Meta(description="End of the period.")] | None = msgspec.field(
        default=None, name="to"
    )


MOMENT = Endpoint(
    path="moment", name="moment", answer=MomentAnswer, audience=Audience.TENANTS,
    summary="The revision of a given time, and that revision's time",
)  # fmt: skip
TIMELINE = Endpoint(
    path="timeline", name="timeline", answer=TimelineAnswer, query=TimelineQuery,
    audience=Audience.TENANTS,
    summary="Event counts by type and time, and notable events: failures, recoveries, cordons, "
    "policy and configuration changes",
)  # fmt: skip
POD_NAMES = Endpoint(
    path="history/pods/{name}", name="history", answer=PodNames, audience=Audience.TENANTS,
    summary="The namespaces that have or had a pod of this name",
)  # fmt: skip
POD_HISTORY = Endpoint(
    path="history/pods/{namespace}/{name}", name="history", answer=HistoryPage, query=HistoryQuery,
    audience=Audience.TENANTS,
    summary="History of all pods that had this name, with failures of their nodes and devices",
)  # fmt: skip
NODE_HISTORY = Endpoint(
    path="history/nodes/{node}", name="history", answer=HistoryPage, query=HistoryQuery,
    audience=Audience.TENANTS,
    summary="History of a node: its reports, pods and cordons",
)  # fmt: skip
DEVICE_HISTORY = Endpoint(
    path="history/devices/{device}", name="history", answer=HistoryPage, query=HistoryQuery,
    audience=Audience.TENANTS,
    summary="History of a device, by its id or a unique prefix of it",
)  # fmt: skip
WHO = Endpoint(
    path="who", name="who", answer=WhoPage, query=WhoQuery, audience=Audience.TENANTS,
    summary="Which pods used a node or a device at a time or in a period, and for how long",
)  # fmt: skip
ENDPOINTS = (MOMENT, TIMELINE, POD_NAMES, POD_HISTORY, NODE_HISTORY, DEVICE_HISTORY, WHO)


class History:
    """Answers queries about the history of one ledger, from its index."""

    def __init__(self, past: Past, moments: Moments) -> None:
        self._past = past
        self._moments = moments

    async def moment(self, query: AtQuery, _names: Mapping[str, str]) -> MomentAnswer:
        """Return the revision at `at`, and its time. Raises RequestRefused, LedgerError."""
        revision = await self._moments.revision("at", query.at or "")
        time = await self._past.chronicle.time_at(revision)
        return MomentAnswer(revision=revision, time=time)

    async def timeline(self, query: TimelineQuery, _names: Mapping[str, str]) -> TimelineAnswer:
        """Return the timeline's bins and its newest events. Raises RequestRefused, LedgerError."""
        revision = await self._past.caught_up()
        cells = self._past.indexer.cells.all
        first = 0 if query.first is None else await self._moments.revision("from", query.first)
        last = revision if query.last is None else await self._moments.revision("to", query.last)
        shown = [cell for cell in cells if cell.last >= first and cell.first <= last]
        from_ns, to_ns = (shown[0].from_ns, shown[-1].to_ns) if shown else (0, 0)
        spans = binned(shown, number=query.bins, from_ns=from_ns, to_ns=to_ns) if shown else ()
        marks = self._past.index.marks(since=first, upto=last, limit=MARKS_MAX)
        return TimelineAnswer(
            revision=revision,
            first_revision=cells[0].first if cells else 0,
            first_time=rfc3339_ns(cells[0].from_ns) if cells else "",
            last_time=rfc3339_ns(cells[-1].to_ns) if cells else "",
            bins=tuple(
                Bin(
                    from_time=rfc3339_ns(begins),
                    to_time=rfc3339_ns(ends),
                    first_revision=cell.first if cell else 0,
                    last_revision=cell.last if cell else 0,
                    counts=dict(sorted(cell.counts.items())) if cell else {},
                )
                for begins, ends, cell in spans
            ),
            marks=tuple(map(mark_with_text, marks)),
        )

    async def pod(self, query: HistoryQuery, names: Mapping[str, str]) -> HistoryPage:
        """Return the events of all pods with this name, with failures of their devices and nodes.

        Raises RequestRefused."""
        upto = await self.upto(query)
        name = f"{names['namespace']}/{names['name']}"
        index = self._past.index
        uids = tuple(index.pods_named(name, upto=upto, limit=PODS_MAX))
        if not uids:
            raise self.no_pod(name, upto)
        after, limit = query.after_revision, query.limit
        revisions = set(index.facts(POD, uids, after=after, upto=upto, limit=limit + 1))
        revisions |= set(index.failures_under(uids, after=after, upto=upto))
        return await self._worded(sorted(revisions), upto, limit, uids)

    async def names(self, query: AtQuery, names: Mapping[str, str]) -> PodNames:
        """Return all pods with this name, live or ended. Raises RequestRefused, LedgerError."""
        upto = await self.upto(query)
        name = text_of("name", names["name"])
        found = self._past.index.full_names(name, upto=upto, limit=NAMESAKES_MAX)
        items = tuple(PodName(namespace=each.partition("/")[0], name=name) for each in found)
        return PodNames(revision=upto, items=items)

    async def node(self, query: HistoryQuery, names: Mapping[str, str]) -> HistoryPage:
        """Return the events of a node and of its pods. Raises RequestRefused."""
        upto = await self.upto(query)
        return await self._thing(NODE, self.known_node(names["node"]), upto, query)

    async def device(self, query: HistoryQuery, names: Mapping[str, str]) -> HistoryPage:
        """Return the events of a device, by id or unique prefix. Raises RequestRefused."""
        upto = await self.upto(query)
        return await self._thing(DEVICE, self.known_device(names["device"]), upto, query)

    async def who(self, query: WhoQuery, _names: Mapping[str, str]) -> WhoPage:
        """Return allocations at or after a point in time. Raises RequestRefused, LedgerError."""
        if (query.node is None) == (query.device is None):
            error = "exactly one of node and device is required"
            fix = "use ?node=NODE or ?device=ID"
            raise RequestRefused(400, error, field="device", fix=fix)
        upto = await self.upto(query)
        since = upto if query.since is None else await self._moments.since("since", query.since)
        if since > upto:
            raise RequestRefused(
                400, field="since",
                rest=f" is {asked_for(query.since or '', since)}, which is later than at: "
                f"{asked_for(query.at or '', upto)}",
                fix="use an earlier time",
            )  # fmt: skip
        if query.node is not None:
            kind, key = NODE, self.known_node(query.node)
        else:
            kind, key = DEVICE, self.known_device(query.device or "")
        skip, limit = query.after_revision, query.limit
        found = self._past.index.holds(
            kind, key, since=since, upto=upto, skip=skip, limit=limit + 1
        )
        time = await self._past.chronicle.time_at(upto)
        more = str(skip + limit) if len(found) > limit else ""
        return WhoPage(revision=upto, since=since, items=tuple(found[:limit]), time=time, next=more)

    async def upto(self, query: AtQuery) -> int:
        """Wait for the index to catch up. Return the revision of `at`, by default the newest."""
        newest = await self._past.caught_up()
        return newest if query.at is None else await self._moments.revision("at", query.at)

    def no_pod(self, name: str, upto: int) -> RequestRefused:
        """Return the error that no pod was ever called `name`."""
        error = f"no pod {name} at revision {upto} or before"
        fix = (
            "list live pods with `apportion get pods`, and past pods with `apportion tail --from 1`"
        )
        return RequestRefused(404, error, field="name", fix=fix)

    def known_node(self, name: str) -> str:
        """Return `name` if a node ever had this name. Raises RequestRefused."""
        name = text_of("node", name)
        if not self._past.index.knows(NODE, name):
            fix = "list nodes with `apportion get nodes`"
            raise RequestRefused(404, f"no node {name} ever existed", field="node", fix=fix)
        return name

    def known_device(self, name: str) -> str:
        """Return the id of the device with this id or id prefix. Raises RequestRefused."""
        name = text_of("device", name)
        alike = self._past.index.keys_like(DEVICE, name, limit=SIMILAR_MAX)
        found = device_names.meant(name, alike)
        if len(found) == 1:
            return found[0]
        problem = device_names.unclear(name, found)
        raise RequestRefused(
            404, problem or f"no device {name} ever existed", field="device",
            code=AMBIGUOUS_DEVICE if problem else UNKNOWN_DEVICE,
            fix=device_names.WRITE_MORE if problem
            else "list devices with `apportion get devices`",
        )  # fmt: skip

    async def _thing(self, kind: int, key: str, upto: int, query: HistoryQuery) -> HistoryPage:
        after, limit = query.after_revision, query.limit
        revisions = self._past.index.facts(kind, [key], after=after, upto=upto, limit=limit + 1)
        return await self._worded(revisions, upto, limit, ())

    async def _worded(
        self, revisions: list[int], upto: int, limit: int, uids: tuple[str, ...]
    ) -> HistoryPage:
        shown = revisions[:limit]
        teller = Teller(self._past.index.name_of)
        rules = self._past.indexer.rules
        records = await self._past.chronicle.records(shown)
        rows = tuple(row_of(record, teller, rules) for record in records)
        more = str(shown[-1]) if len(revisions) > limit else ""
        return HistoryPage(revision=upto, items=rows, uids=uids, next=more)


def rfc3339_ns(ns: int) -> str:
    """Format a time in ns since 1970 as events do: UTC, in microseconds."""
    seconds, rest = divmod(ns, 1_000_000_000)
    time = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1_000)
    return rfc3339(time)
