"""What happened to one pod, node or device, and who held what: found in the index, by key.

Invariant: a page is bounded, goes on where the one before ended, and is of the revisions up to the
one that it names.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from apportion.core.explain import device_names
from apportion.core.explain.answers import AMBIGUOUS_DEVICE, UNKNOWN_DEVICE
from apportion.core.explain.lines import Teller
from apportion.core.explain.past_answers import (
    HistoryPage,
    HistoryRow,
    PodName,
    PodNames,
    WhoPage,
    WhoRow,
)
from apportion.gateway.api.answering import json_response
from apportion.gateway.api.log import row_of
from apportion.gateway.api.moments import Moments, asked_for
from apportion.gateway.api.query import (
    COMMON,
    LIMIT_MAX,
    REVISION_MAX,
    RequestRefused,
    only,
    text_of,
    whole,
)
from apportion.gateway.past.index import DEVICE, NODE, POD, Hold
from apportion.gateway.past.past import Past

LIMIT_DEFAULT = 200
PODS_MAX = 100
"""Pods of one name whose stories are told as one: the newest."""
SIMILAR_MAX = 100
"""So many ids of devices that begin alike are counted."""
NAMESAKES_MAX = 100
"""So many namespaces are named where a pod of one name is or was."""


class History:
    """The stories of one ledger."""

    def __init__(self, past: Past, moments: Moments) -> None:
        self._past = past
        self._moments = moments

    async def pod(self, request: web.Request) -> web.StreamResponse:
        """`/history/pods/NAMESPACE/NAME`: all pods that had the name, and failures under them."""
        upto = await self.upto(request.query)
        name = f"{request.match_info['namespace']}/{request.match_info['name']}"
        index = self._past.index
        uids = tuple(index.pods_named(name, upto=upto, limit=PODS_MAX))
        if not uids:
            raise self.no_pod(name, upto)
        after, limit = _page(request.query)
        revisions = set(index.facts(POD, uids, after=after, upto=upto, limit=limit + 1))
        revisions |= set(index.failures_under(uids, after=after, upto=upto))
        return json_response(await self._worded(sorted(revisions), upto, limit, uids))

    async def names(self, request: web.Request) -> web.StreamResponse:
        """`/history/pods/NAME`: where a pod of that name is or was."""
        upto = await self.upto(request.query)
        only(request.query, COMMON)
        name = text_of("name", request.match_info["name"])
        found = self._past.index.full_names(name, upto=upto, limit=NAMESAKES_MAX)
        items = tuple(PodName(namespace=each.partition("/")[0], name=name) for each in found)
        return json_response(PodNames(revision=upto, items=items))

    async def node(self, request: web.Request) -> web.StreamResponse:
        """`/history/nodes/NODE`: what the node told, who came and went, who cordoned it."""
        upto = await self.upto(request.query)
        return await self._thing(NODE, self.known_node(request.match_info["node"]), upto, request)

    async def device(self, request: web.Request) -> web.StreamResponse:
        """`/history/devices/ID`, or the beginning of an ID that no other one has."""
        upto = await self.upto(request.query)
        device = self.known_device(request.match_info["device"])
        return await self._thing(DEVICE, device, upto, request)

    async def who(self, request: web.Request) -> web.StreamResponse:
        """`/who?node=|device=[&at=][&since=]`: the shares held then, or ever since up to then."""
        query = request.query
        only(query, (*COMMON, "node", "device", "since", "limit", "continue"))
        if ("node" in query) == ("device" in query):
            raise RequestRefused(
                400, "node or device is missing, or both are there", field="device",
                fix="name one of them: ?node=NODE or ?device=ID",
            )  # fmt: skip
        upto = await self.upto(query)
        since = await self._moments.since("since", query["since"]) if "since" in query else upto
        if since > upto:
            raise RequestRefused(
                400, field="since",
                rest=f" is {asked_for(query.get('since', ''), since)}, which is behind at, "
                f"{asked_for(query.get('at', ''), upto)}",
                fix="name an earlier moment",
            )  # fmt: skip
        if "node" in query:
            kind, key = NODE, self.known_node(query["node"])
        else:
            kind, key = DEVICE, self.known_device(query["device"])
        skip, limit = _page(query)
        found = self._past.index.holds(
            kind, key, since=since, upto=upto, skip=skip, limit=limit + 1
        )
        rows = tuple(_who_row(hold, upto) for hold in found[:limit])
        time = await self._past.chronicle.time_at(upto)
        more = str(skip + limit) if len(found) > limit else ""
        return json_response(WhoPage(revision=upto, since=since, items=rows, time=time, next=more))

    async def upto(self, query: Mapping[str, str]) -> int:
        """The revision of the moment that is asked for, or the newest; the index has read it."""
        newest = await self._past.caught_up()
        return await self._moments.revision("at", query["at"]) if "at" in query else newest

    def no_pod(self, name: str, upto: int) -> RequestRefused:
        """The refusal of a name that no pod ever had."""
        return RequestRefused(
            404,
            f"no pod {name} at revision {upto}, and none before it",
            field="name",
            fix="`apportion get pods` lists the live ones, `apportion tail --from 1` all that were",
        )

    def known_node(self, name: str) -> str:
        """The node, if there ever was one of the name. Raises RequestRefused."""
        name = text_of("node", name)
        if not self._past.index.knows(NODE, name):
            raise RequestRefused(
                404, f"there never was a node {name}", field="node",
                fix="`apportion get nodes` lists those that are there",
            )  # fmt: skip
        return name

    def known_device(self, name: str) -> str:
        """The device of that id, or the one whose id begins so. Raises RequestRefused."""
        name = text_of("device", name)
        alike = self._past.index.keys_like(DEVICE, name, limit=SIMILAR_MAX)
        found = device_names.meant(name, alike)
        if len(found) == 1:
            return found[0]
        problem = device_names.unclear(name, found)
        raise RequestRefused(
            404, problem or f"there never was a device {name}", field="device",
            code=AMBIGUOUS_DEVICE if problem else UNKNOWN_DEVICE,
            fix=device_names.WRITE_MORE if problem
            else "`apportion get devices` lists those that are there",
        )  # fmt: skip

    async def _thing(
        self, kind: int, key: str, upto: int, request: web.Request
    ) -> web.StreamResponse:
        after, limit = _page(request.query)
        revisions = self._past.index.facts(kind, [key], after=after, upto=upto, limit=limit + 1)
        return json_response(await self._worded(revisions, upto, limit, ()))

    async def _worded(
        self, revisions: list[int], upto: int, limit: int, uids: tuple[str, ...]
    ) -> HistoryPage:
        shown = revisions[:limit]
        teller = Teller(self._past.index.name_of)
        rules = self._past.indexer.rules
        records = await self._past.chronicle.records(shown)
        found = [row_of(record, teller, rules) for record in records]
        rows = tuple(
            HistoryRow(
                revision=row.revision,
                time=row.time,
                type=row.type,
                sentence=row.sentence,
                subject=row.subject,
                namespaces=row.namespaces,
            )
            for row in found
        )
        more = str(shown[-1]) if len(revisions) > limit else ""
        return HistoryPage(revision=upto, items=rows, uids=uids, next=more)


def _page(query: Mapping[str, str]) -> tuple[int, int]:
    """Behind what to go on, and how many. Raises RequestRefused."""
    only(query, (*COMMON, "node", "device", "since", "limit", "continue"))
    behind, limit = query.get("continue", ""), query.get("limit", "")
    return (
        whole("continue", behind, most=REVISION_MAX) if behind else 0,
        whole("limit", limit, least=1, most=LIMIT_MAX) if limit else LIMIT_DEFAULT,
    )


def _who_row(hold: Hold, upto: int) -> WhoRow:
    """The share as it was known at a revision: what came to an end later was held."""
    ended = 0 < hold.until <= upto
    return WhoRow(
        namespace=hold.namespace,
        pod=hold.pod,
        uid=hold.uid,
        container=hold.container,
        device=hold.device,
        node=hold.node,
        memory_mib=hold.memory_mib,
        cores=hold.cores,
        from_revision=hold.decision,
        from_time=hold.time,
        to_revision=hold.until if ended else 0,
        to_time=hold.until_time if ended else "",
        decision_revision=hold.decision,
    )
