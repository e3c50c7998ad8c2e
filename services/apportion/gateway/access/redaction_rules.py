"""Answers as a tenant sees them: which can be shown to him at all, and how each is redacted.

The one place where that is decided: answers of now and of the past are decoded into their structs
here, and redacted. Invariant: an endpoint that does not declare tenants as its audience is not
shown to them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, structs

from apportion.core.answers.past import DiffAnswer, DiffRow, LogEntry, MarkRow, TimelineAnswer
from apportion.core.answers.reads import (
    ErrorAnswer,
    GangAnswer,
    GangPage,
    Line,
    LinesAnswer,
    QuotaAnswer,
    QuotaPage,
)
from apportion.core.answers.visibility import OF_OTHERS, OTHERS, Everyone
from apportion.core.explain.fleet_rows import FleetAnswer, PackedNode, PackedUse
from apportion.core.explain.tenant_redaction import (
    UNKNOWN,
    Sees,
    event_namespaces,
    event_redacted,
    namespaces_in,
    redacted,
)
from apportion.core.reports.answers import IdleAnswer, IdleRow, ReportAnswer, ReportRow
from apportion.core.reports.report import DIGITS
from apportion.core.reports.rows import NOBODY
from apportion.gateway.api.endpoint import Audience, Endpoint

_OTHERS_PARTS: Final = (OF_OTHERS,)
"""The parts of a sentence that a tenant may not see."""
REPORTS: Final = (ReportAnswer, IdleAnswer)
BY_SHOWN: Final = frozenset({"namespace", "node"})
"""Rows of reports that a tenant is shown; by queue, user or label they would be those of others."""

T = TypeVar("T", bound=Struct)
Ask = Callable[[str], Awaitable[bool]]
Seal = Callable[[str], str]


class Fleet(FleetAnswer, frozen=True):
    """A `FleetAnswer` with its rows decoded."""

    nodes: Everyone[tuple[PackedNode, ...]] = ()  # type: ignore[assignment] # encoded there
    used: Everyone[tuple[PackedUse, ...]] = ()  # type: ignore[assignment] # encoded there


class Entry(LogEntry, frozen=True):
    """A `LogEntry` with its event decoded."""

    event: Any = None


class Look(NamedTuple):
    """What an answer is, how a tenant sees it, and namespaces that its fields do not declare."""

    kind: Any
    shown: Callable[[Any, Sees], Any] = redacted
    also: Callable[[Any], Iterable[str]] = lambda _: ()

    def namespaces(self, answer: Struct) -> set[str]:
        """Every namespace that the answer may be about."""
        return namespaces_in(answer).union(self.also(answer))


def _report(answer: ReportAnswer | IdleAnswer, sees: Sees) -> Struct:
    """A report by node, which everybody knows, or by namespace: those of others are one row."""
    if answer.by == "namespace":
        answer = structs.replace(answer, rows=tuple(_together(answer.rows, sees)))
        if isinstance(answer, ReportAnswer):
            answer = structs.replace(answer, steps=tuple(_together(answer.steps, sees)))
    shown: Struct = redacted(answer, sees)
    return shown


def _keys(answer: ReportAnswer | IdleAnswer) -> Iterable[str]:
    steps = answer.steps if isinstance(answer, ReportAnswer) else ()
    return {row.key for row in (*answer.rows, *steps)} if answer.by == "namespace" else ()


def _together(rows: Iterable[Any], sees: Sees) -> Iterator[Any]:
    """Rows of which those of namespaces that he does not see are one, of each step one: they come
    to the total still, and of no other namespace he learns what it had."""
    others: dict[str, list[ReportRow | IdleRow]] = {}
    for row in rows:
        if row.key == NOBODY or sees(row.key):
            yield row
        else:
            others.setdefault(getattr(row, "start", ""), []).append(row)
    for alike in others.values():
        figures: dict[str, Any] = {}
        for name in alike[0].__struct_fields__:  # of figures their sum; texts are the same in all
            values = [value for row in alike if (value := getattr(row, name)) is not None]
            if values and not isinstance(values[0], str):
                figures[name] = round(sum(values), DIGITS)
        yield structs.replace(alike[0], **figures | {"key": OTHERS})


def _entry(answer: Entry, sees: Sees) -> Entry:
    """One event, if it is about no other namespace; names of others in its texts are blanked."""
    shown: Entry = redacted(answer, sees)
    event = answer.event if all(map(sees, answer.row.namespaces)) else None
    if isinstance(event, dict) and "data" in event:
        event = {**event, "data": event_redacted(event["data"], sees)}
    return structs.replace(shown, event=event)


def _differences(answer: DiffAnswer, sees: Sees) -> DiffAnswer:
    """Without configuration and limits, which may name anybody, nor words about pods of others."""
    shown: DiffAnswer = redacted(answer, sees)

    def rows(now: tuple[DiffRow, ...], before: tuple[DiffRow, ...]) -> list[DiffRow]:
        return [
            structs.replace(row, sentence=OF_OTHERS, parts=_OTHERS_PARTS, clauses=(), by="",
                            cause="")
            if (row.name, row.parts) != (was.name, was.parts) else row
            for row, was in zip(now, before, strict=True)
        ]  # fmt: skip

    def hidden(row: DiffRow) -> bool:
        return row.parts == _OTHERS_PARTS

    return structs.replace(
        shown,
        placements=tuple(_hidden_last(rows(shown.placements, answer.placements), hidden)),
        waiting=tuple(_hidden_last(rows(shown.waiting, answer.waiting), hidden)),
        nodes=tuple(rows(shown.nodes, answer.nodes)),
        devices=tuple(rows(shown.devices, answer.devices)),
    )


def _gangs(answer: GangPage, sees: Sees) -> GangPage:
    shown: GangPage = redacted(answer, sees)

    def hidden(gang: GangAnswer) -> bool:
        return gang.namespace == OTHERS

    return structs.replace(shown, items=tuple(_hidden_last(list(shown.items), hidden)))


def _hidden_last(rows: list[T], is_hidden: Callable[[T], bool]) -> list[T]:
    """Put rows of others behind: in the order of names their place would hint at theirs."""
    hidden = sorted(filter(is_hidden, rows), key=msgspec.json.encode)
    return [row for row in rows if not is_hidden(row)] + hidden


def _timeline(answer: TimelineAnswer, sees: Sees) -> TimelineAnswer:
    shown: TimelineAnswer = redacted(answer, sees)

    def mark(now: MarkRow, before: MarkRow) -> MarkRow:
        """Words around a name may have it again, as reasons of others do."""
        if now.parts == before.parts:
            return now
        return structs.replace(now, sentence=OF_OTHERS, parts=_OTHERS_PARTS)

    return structs.replace(shown, marks=tuple(map(mark, shown.marks, answer.marks)))


def _lines(answer: LinesAnswer, sees: Sees) -> LinesAnswer:
    """Each line with the answer of a pod that he sees: the first may wait for a limit of others."""
    shown: LinesAnswer = redacted(answer, sees)

    def line(now: Line) -> Line:
        if now.whose != OTHERS or not now.sentence:
            return now
        own = (pod.sentence for pod in now.first if pod.namespace != OTHERS)
        return structs.replace(now, sentence=next(filter(None, own), OF_OTHERS))

    return structs.replace(shown, lines=tuple(map(line, shown.lines)))


def _quotas(answer: QuotaPage, sees: Sees) -> QuotaPage:
    """Without those of other namespaces: of a quota a tenant learns not even that there is one."""

    def own(quota: QuotaAnswer) -> bool:
        return sees(quota.namespace)

    shown: QuotaPage = redacted(
        structs.replace(answer, items=tuple(filter(own, answer.items))), sees
    )
    return shown


def _fleet(answer: Fleet, sees: Sees) -> Fleet:
    """Without the use that pods of others make of their shares."""

    def used(row: PackedUse) -> PackedUse:
        own = (use for use in row.shares if sees(use[0].partition("/")[0]))
        return structs.replace(row, shares=tuple(own))

    shown: Fleet = redacted(structs.replace(answer, used=tuple(map(used, answer.used))), sees)
    return shown


LOOKS: Final[Mapping[Any, Look]] = {
    GangPage: Look(GangPage, _gangs),
    LinesAnswer: Look(LinesAnswer, _lines),
    QuotaPage: Look(QuotaPage, _quotas),
    LogEntry: Look(
        Entry, _entry,
        lambda it: event_namespaces(it.event.get("data")) if isinstance(it.event, dict) else (),
    ),
    DiffAnswer: Look(DiffAnswer, _differences),
    TimelineAnswer: Look(TimelineAnswer, _timeline),
    ReportAnswer: Look(ReportAnswer, _report, _keys),
    IdleAnswer: Look(IdleAnswer, _report, _keys),
    FleetAnswer: Look(
        Fleet, _fleet, lambda it: {u[0].partition("/")[0] for row in it.used for u in row.shares}
    ),
}  # fmt: skip
"""Answers of which a tenant sees more or less than what their fields declare."""
OF_ERRORS: Final = Look(ErrorAnswer)
"""What a tenant sees of an error, at any path."""


def look_at(endpoint: Endpoint) -> Look:
    """How a tenant sees the answer of an endpoint that is for tenants."""
    return LOOKS.get(endpoint.answer, Look(endpoint.answer))


def is_shown(endpoint: Endpoint, query: Mapping[str, str]) -> bool:
    """Whether a tenant sees what is asked for in this form: JSON, and rows that he may see."""
    by = query.get("by", "namespace") if endpoint.answer in REPORTS else "namespace"
    in_json = query.get("format", "json") == "json"
    return endpoint.audience is Audience.TENANTS and in_json and by in BY_SHOWN


def planned_namespaces(body: bytes) -> list[str]:
    """Where the pods of a plan's manifests would be: only who sees that may ask about them.

    A plan says of each whether it is live already, and so whether somebody has a pod of its name.
    """
    return sorted({pod["namespace"] for pod in msgspec.json.decode(body)["pods"]})


async def shown(body: bytes, look: Look, may_see: Ask, seal: Seal, aside: Executor) -> bytes:
    """Redact the JSON of an answer for a client that may see the namespaces of `may_see`.

    The cursor of a list is sealed: it may name what the client does not see. The work is done by
    `aside`: an answer of a thousand rows takes a tenth of a second."""

    def decoded() -> tuple[Any, set[str]]:
        answer = msgspec.json.decode(body, type=look.kind)
        if hasattr(answer, "next"):
            answer = structs.replace(answer, next=seal(answer.next))
        return answer, look.namespaces(answer)

    loop = asyncio.get_running_loop()
    answer, names = await loop.run_in_executor(aside, decoded)
    sees = await sight(names, may_see)
    return await loop.run_in_executor(aside, lambda: msgspec.json.encode(look.shown(answer, sees)))


async def sight(namespaces: Iterable[str], may_see: Ask) -> Sees:
    """Which of these are seen; all others are not."""
    allowed = {name for name in namespaces if name != UNKNOWN and await may_see(name)}
    return allowed.__contains__
