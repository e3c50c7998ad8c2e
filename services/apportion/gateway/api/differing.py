"""What changed between two moments, and by which event: the states compared, the index asked.

Invariant: every row is a difference of the two states; its event is the newest one in between that
can have made it, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import msgspec

from apportion.core.explain import differences
from apportion.core.explain.differences import Difference, Picture, picture
from apportion.core.explain.lines import Teller
from apportion.core.explain.past_answers import DiffAnswer, DiffRow, MomentAnswer
from apportion.gateway.api.log import row_of
from apportion.gateway.api.moments import Moments
from apportion.gateway.api.query import LIMIT_MAX, WAITING, RequestRefused, only, whole
from apportion.gateway.past.index import DEVICE, NODE
from apportion.gateway.past.past import Past

LIMIT_DEFAULT = 200
_MARKS = {
    "state": ("failure", "recovery"),
    "health": ("failure", "recovery"),
    "cordon": ("cordon", "uncordon"),
}


class _By(msgspec.Struct):
    by: str = ""


class _Said(msgspec.Struct):
    data: _By = msgspec.field(default_factory=_By)


_decode_by = msgspec.json.Decoder(_Said).decode
Cause = Callable[[Difference], int]


class Differing:
    """Compares states of one ledger, and looks for the events behind what differs."""

    def __init__(self, past: Past, moments: Moments) -> None:
        self._past = past
        self._moments = moments

    async def answer(self, query: Mapping[str, str]) -> DiffAnswer:
        """`?from=&to=[&limit=]`; without `to`, up to now. Raises RequestRefused, LedgerError."""
        only(query, (*WAITING, "from", "to", "limit"))
        text = query.get("limit", "")
        limit = whole("limit", text, least=1, most=LIMIT_MAX) if text else LIMIT_DEFAULT
        newest = await self._past.caught_up()
        first = await self._moments.revision("from", query.get("from", ""))
        last = await self._moments.revision("to", query["to"]) if "to" in query else newest
        if first > last:
            raise RequestRefused(
                400, f"from is revision {first}, which is behind to, {last}", field="from",
                fix="name the earlier moment first",
            )  # fmt: skip
        before = picture(await self._past.states.at(first))
        after = picture(await self._past.states.at(last))
        found = _Found(self._past, before, after, limit)
        return DiffAnswer(
            revision=newest,
            begin=await self._moment(first),
            end=await self._moment(last),
            placements=await found.rows("placements", differences.placements, found.placed_by),
            nodes=await found.rows("nodes", differences.nodes, found.node_by),
            devices=await found.rows("devices", differences.devices, found.device_by),
            configuration=await found.rows(
                "configuration", differences.configuration, lambda _: after.configuration_revision
            ),
            policy=await found.rows("policy", differences.policy, lambda _: after.policy_revision),
            more=found.more,
        )

    async def _moment(self, revision: int) -> MomentAnswer:
        time = await self._past.chronicle.time_at(revision)
        return MomentAnswer(revision=revision, time=time)


class _Found:
    """The rows of one answer, and how many of each list are not shown."""

    def __init__(self, past: Past, before: Picture, after: Picture, limit: int) -> None:
        self._past = past
        self._before = before
        self._after = after
        self._limit = limit
        self._teller = Teller(past.index.name_of)
        self.more: dict[str, int] = {}

    async def rows(
        self,
        name: str,
        differ: Callable[[Picture, Picture], Iterable[Difference]],
        cause: Cause,
    ) -> tuple[DiffRow, ...]:
        """The first of these differences, each with its event."""
        every = iter(differ(self._before, self._after))
        shown = list(islice(every, self._limit))
        hidden = sum(1 for _ in every)
        if hidden:
            self.more[name] = hidden
        causes = [cause(each) for each in shown]
        revisions = sorted({revision for revision in causes if revision})
        records = await self._past.chronicle.records(revisions)
        rules = self._past.indexer.rules
        found = {each.revision: (row_of(each, self._teller, rules), each) for each in records}
        rows = []
        for each, revision in zip(shown, causes, strict=True):
            row = DiffRow(name=each.name, what=each.what, before=each.before, after=each.after)
            if revision in found:
                said, record = found[revision]
                row = msgspec.structs.replace(
                    row, revision=revision, time=said.time, sentence=said.sentence,
                    by=_decode_by(record.payload).data.by or said.source,
                )  # fmt: skip
            rows.append(row)
        return tuple(rows)

    def placed_by(self, each: Difference) -> int:
        """The event that gave the pod what it holds, or took it."""
        return self._past.index.holding_changed(each.key, upto=self._after.revision)

    def node_by(self, each: Difference) -> int:
        """The event that made the node so."""
        return self._marked(NODE, each)

    def device_by(self, each: Difference) -> int:
        """The event that made the device so."""
        return self._marked(DEVICE, each)

    def _marked(self, kind: int, each: Difference) -> int:
        after, upto = self._before.revision, self._after.revision
        index = self._past.index
        mark = index.newest_mark(kind, each.key, _MARKS[each.what], after=after, upto=upto)
        if mark is not None:
            return mark.revision
        newest = index.newest_facts(kind, each.key, after=after, upto=upto, limit=1)
        return newest[0] if newest else 0
