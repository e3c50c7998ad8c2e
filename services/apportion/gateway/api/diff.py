"""Compares the states at two points in time and names the event behind each difference.

Invariants: every row is a difference of the states. The event in a row is the newest in the span
that made such a change. For a pod, pending and placed are one kind of change."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from apportion.core.answers.past import DiffAnswer, DiffRow, LogRow, MomentAnswer
from apportion.core.explain.differences import (
    SHOWN,
    WHOLE_LIMIT,
    Difference,
    Part,
    Picture,
    picture,
)
from apportion.core.explain.text.answer_text import diff_with_text
from apportion.core.explain.text.event_text import Teller
from apportion.gateway.api.endpoint import Audience, Endpoint
from apportion.gateway.api.log import row_of
from apportion.gateway.api.moments import Moments, asked_for
from apportion.gateway.api.query import LIMIT_MAX, RequestRefused, WaitQuery
from apportion.gateway.past.index import DEVICE, LIMIT, NODE, POD
from apportion.gateway.past.indexing import KINDS
from apportion.gateway.past.past import Past
from apportion_schemas import PodGone
from apportion_schemas.decoding import from_outside

LIMIT_DEFAULT = 200
SHORT_EVENTS = 20_000  # in a longer span, more may have changed than exists
# a pod is pending, placed or gone, so either aspect changes the other
OF_A_POD = ("waiting", "placement")
# prefix of the source of events from a user's command; the user's name follows
OF_A_PERSON = "cli/"


class _By(msgspec.Struct):
    by: str = ""
    reason: str = ""


class _Said(msgspec.Struct):
    data: _By = msgspec.field(default_factory=_By)


class _Worded(NamedTuple):
    row: LogRow
    data: _By


_decode_by = from_outside(msgspec.json.Decoder(_Said).decode)


class DiffQuery(WaitQuery, frozen=True, kw_only=True):
    """The parameters of a comparison."""

    begin: Annotated[str, Meta(description="The earlier time or revision; required.")] = (
        msgspec.field(default="", name="from")
    )
    end: Annotated[str, Meta(description="The later time or revision; default: now.")] | None = (
        msgspec.field(default=None, name="to")
    )
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Maximum rows per list.")] = (
        LIMIT_DEFAULT
    )


DIFF = Endpoint(
    path="diff", name="diff", answer=DiffAnswer, query=DiffQuery, audience=Audience.TENANTS,
    summary="What changed between two times: placements, nodes, devices, configuration and policy, "
    "with the event and its author",
)  # fmt: skip


class Diff:
    """Compares the states of one ledger at two points in time."""

    def __init__(self, past: Past, moments: Moments) -> None:
        self._past = past
        self._moments = moments

    async def answer(self, query: DiffQuery, _names: Mapping[str, str]) -> DiffAnswer:
        """Return the differences between two times. Raises RequestRefused, LedgerError."""
        newest = await self._past.caught_up()
        first = await self._moments.since("from", query.begin)
        last = newest if query.end is None else await self._moments.revision("to", query.end)
        if first > last:
            begin, end = asked_for(query.begin, first), asked_for(query.end or "", last)
            rest, fix = f" is {begin}, which is later than to: {end}", "swap from and to"
            raise RequestRefused(400, field="from", rest=rest, fix=fix)
        index, part = self._past.index, None  # compare everything
        if last - first <= SHORT_EVENTS and first >= index.begins:
            found = index.changed(after=first, upto=last)
            part = Part(*(found.get(kind, ()) for kind in (POD, NODE, DEVICE, LIMIT)))
        before = picture(await self._past.states.at(first), part)
        after = picture(await self._past.states.at(last), part)
        answer = _Found(self._past, before, after, query.limit)
        rows = {name: await answer.rows(name) for name in SHOWN}
        return DiffAnswer(
            revision=newest,
            begin=await self._moment(first),
            end=await self._moment(last),
            more=answer.more,
            **rows,
        )

    async def _moment(self, revision: int) -> MomentAnswer:
        time = await self._past.chronicle.time_at(revision)
        return MomentAnswer(revision=revision, time=time)


def event_behind(changed: Mapping[tuple[str, str], int], key: str, what: str) -> int:
    """Return the revision of the newest event that changed the aspect `what` of `key`, or 0.

    The aspects of a pod count as one, because a placement or an end also ends the pod's wait. For a
    limit, an event about any aspect counts."""
    if what == WHOLE_LIMIT:
        return max((made for (thing, _), made in changed.items() if thing == key), default=0)
    sides = OF_A_POD if what in OF_A_POD else (what,)
    return max(changed.get((key, side), 0) for side in sides)


def who_wrote(source: str) -> str:
    """Return the user or service that wrote an event, from its `source`."""
    return source.removeprefix(OF_A_PERSON)


class _Found:
    def __init__(self, past: Past, before: Picture, after: Picture, limit: int) -> None:
        self._past = past
        self._before = before
        self._after = after
        self._limit = limit
        self._teller = Teller(past.index.name_of)
        self.more: dict[str, int] = {}

    async def rows(self, name: str) -> tuple[DiffRow, ...]:
        every = SHOWN[name](self._before, self._after)
        shown = list(islice(every, self._limit))
        hidden = sum(1 for _ in every)
        if hidden:
            self.more[name] = hidden
        changed = self._changed_by(name, shown)
        made = {
            (key, each.what): event_behind(changed, key, each.what)
            for each in shown
            for key in (each.key, each.left)
        }
        rules = self._past.indexer.rules
        revisions = sorted({revision for revision in made.values() if revision})
        said = {
            each.revision: _Worded(row_of(each, self._teller, rules), _decode_by(each.payload).data)
            for each in await self._past.chronicle.records(revisions)
        }
        rows = []
        for each in shown:
            row = DiffRow(name=each.name, what=each.what, was=each.was, now=each.now)
            found = said.get(made[each.key, each.what])
            if found is not None:
                row = msgspec.structs.replace(
                    row, revision=found.row.revision, time=found.row.time,
                    parts=found.row.parts, clauses=found.row.clauses,
                    by=found.data.by or who_wrote(found.row.source),
                )  # fmt: skip
            ended = said.get(made[each.left, each.what]) or found
            if ended is not None and ended.row.type == PodGone.__name__:
                row = msgspec.structs.replace(row, cause=ended.data.reason)
            rows.append(diff_with_text(row))
        return tuple(rows)

    def _changed_by(self, name: str, shown: Iterable[Difference]) -> dict[tuple[str, str], int]:
        index, kind = self._past.index, KINDS[name]
        after, upto = self._before.revision, self._after.revision
        keys = {uid for each in shown for uid in (each.key, each.left) if uid}
        changed = index.changed_by(kind, keys, after=after, upto=upto)
        if name == "nodes":
            joined = [key for key in keys if self._after.joined(self._before, key)]
            came = index.changed_by(kind, joined, after=after, upto=upto, oldest=True)
            changed |= {(key, what): made for (key, what), made in came.items() if what == "state"}
        return changed
