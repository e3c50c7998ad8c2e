"""Decides which answers a tenant may see, and how each is redacted.

Answers about the present and the past are decoded and redacted only here. Invariant: tenants get
answers only from endpoints that are declared for them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, structs

from apportion.core.answers.past import DiffAnswer, DiffRow, LogEntry, TimelineAnswer
from apportion.core.answers.reads import ErrorAnswer, GangPage, Line, LinesAnswer, QuotaPage
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
from apportion.core.reports.answers import (
    IdleAnswer,
    IdleRow,
    LostAnswer,
    LostRow,
    ReportAnswer,
    ReportRow,
)
from apportion.core.reports.report import DIGITS
from apportion.core.reports.rows import NO_POD
from apportion.gateway.api.endpoint import Audience, Endpoint

_OTHERS_PARTS: Final = (OF_OTHERS,)  # replaces the parts of a sentence that a tenant may not see
REPORTS: Final = (ReportAnswer, IdleAnswer, LostAnswer)
# Groupings of reports that a tenant may see; by queue, user or label they show others' use.
BY_SHOWN: Final = frozenset({"namespace", "node", "model"})

T = TypeVar("T", bound=Struct)
F = TypeVar("F", bound=Callable[[Any, Sees], Any])
Ask = Callable[[str], Awaitable[bool]]
Seal = Callable[[str], str]


class Fleet(FleetAnswer, frozen=True):
    """A `FleetAnswer` with its rows decoded, so that they can be redacted."""

    nodes: Everyone[tuple[PackedNode, ...]] = ()  # type: ignore[assignment] # encoded there
    used: Everyone[tuple[PackedUse, ...]] = ()  # type: ignore[assignment] # encoded there


class Entry(LogEntry, frozen=True):
    """A `LogEntry` with its event decoded, so that the event can be redacted."""

    event: Any = None


class Look(NamedTuple):
    """The rules to redact one type of answer."""

    kind: Any
    shown: Callable[[Any, Sees], Any] = redacted
    also: Callable[[Any], Iterable[str]] = lambda _: ()  # finds namespaces that no field declares

    def namespaces(self, answer: Struct) -> set[str]:
        """Return every namespace that may occur in the answer."""
        return namespaces_in(answer).union(self.also(answer))


LOOKS: Final[dict[Any, Look]] = {}  # where an answer's fields do not declare all of its redaction


def _redacts(
    *answers: Any, kind: Any = None, also: Callable[[Any], Iterable[str]] = lambda _: ()
) -> Callable[[F], F]:
    # The decorator of the function that redacts these answers, decoded as `kind`.
    def declared(shown: F) -> F:
        LOOKS.update({each: Look(kind or each, shown, also) for each in answers})
        return shown

    return declared


@_redacts(
    *REPORTS,
    also=lambda it: (
        {row.key for row in (*it.rows, *getattr(it, "steps", ()))} if it.by == "namespace" else ()
    ),
)
def _report(answer: ReportAnswer | IdleAnswer | LostAnswer, sees: Sees) -> Struct:
    """Redact a report. If it is by namespace, merge the rows of all hidden namespaces."""
    if answer.by == "namespace":
        answer = structs.replace(answer, rows=tuple(_together(answer.rows, sees)))
        if not isinstance(answer, IdleAnswer):
            answer = structs.replace(answer, steps=tuple(_together(answer.steps, sees)))
    return redacted(answer, sees)


def _together(rows: Iterable[Any], sees: Sees) -> Iterator[Any]:
    """Merge the rows of hidden namespaces into one row per step, so that totals stay right."""
    others: dict[str, list[ReportRow | IdleRow | LostRow]] = {}
    for row in rows:
        if row.key == NO_POD or sees(row.key):
            yield row
        else:
            others.setdefault(getattr(row, "start", ""), []).append(row)
    for alike in others.values():
        figures: dict[str, Any] = {}
        for name in alike[0].__struct_fields__:  # sum the figures; texts are equal in all rows
            values = [value for row in alike if (value := getattr(row, name)) is not None]
            if values and not isinstance(values[0], str):
                figures[name] = round(sum(values), DIGITS)
        yield structs.replace(alike[0], **figures | {"key": OTHERS})


@_redacts(
    LogEntry,
    kind=Entry,
    also=lambda it: event_namespaces(it.event.get("data")) if isinstance(it.event, dict) else (),
)
def _entry(answer: Entry, sees: Sees) -> Entry:
    shown = redacted(answer, sees)
    event = answer.event if all(map(sees, answer.row.namespaces)) else None
    if isinstance(event, dict) and "data" in event:
        event = {**event, "data": event_redacted(event["data"], sees)}
    return structs.replace(shown, event=event)


@_redacts(DiffAnswer)
def _differences(answer: DiffAnswer, sees: Sees) -> DiffAnswer:
    shown = redacted(answer, sees)

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


@_redacts(GangPage)
def _gangs(answer: GangPage, sees: Sees) -> GangPage:
    shown = redacted(answer, sees)
    items = _hidden_last(list(shown.items), lambda gang: gang.namespace == OTHERS)
    return structs.replace(shown, items=tuple(items))


def _hidden_last(rows: list[T], is_hidden: Callable[[T], bool]) -> list[T]:
    """Move hidden rows to the end, because their position would hint at their names."""
    hidden = sorted(filter(is_hidden, rows), key=msgspec.json.encode)
    return [row for row in rows if not is_hidden(row)] + hidden


@_redacts(TimelineAnswer)
def _timeline(answer: TimelineAnswer, sees: Sees) -> TimelineAnswer:
    shown = redacted(answer, sees)
    # The text around a redacted name may contain it again, for example in a reason.
    marks = tuple(
        now if now.parts == before.parts
        else structs.replace(now, sentence=OF_OTHERS, parts=_OTHERS_PARTS)
        for now, before in zip(shown.marks, answer.marks, strict=True)
    )  # fmt: skip
    return structs.replace(shown, marks=marks)


@_redacts(LinesAnswer)
def _lines(answer: LinesAnswer, sees: Sees) -> LinesAnswer:
    """Redact groups of pending pods, so that no group shows the sentence of a hidden pod."""
    shown = redacted(answer, sees)

    def line(now: Line) -> Line:
        if now.whose != OTHERS or not now.sentence:
            return now
        own = (pod.sentence for pod in now.first if pod.namespace != OTHERS)
        return structs.replace(now, sentence=next(filter(None, own), OF_OTHERS))

    return structs.replace(shown, lines=tuple(map(line, shown.lines)))


@_redacts(QuotaPage)
def _quotas(answer: QuotaPage, sees: Sees) -> QuotaPage:
    own = tuple(quota for quota in answer.items if sees(quota.namespace))
    return redacted(structs.replace(answer, items=own), sees)


@_redacts(
    FleetAnswer,
    kind=Fleet,
    also=lambda it: {use[0].partition("/")[0] for row in it.used for use in row.shares},
)
def _fleet(answer: Fleet, sees: Sees) -> Fleet:
    def used(row: PackedUse) -> PackedUse:
        own = (use for use in row.shares if sees(use[0].partition("/")[0]))
        return structs.replace(row, shares=tuple(own))

    return redacted(structs.replace(answer, used=tuple(map(used, answer.used))), sees)


OF_ERRORS: Final = Look(ErrorAnswer)  # how a tenant sees an error, at any path


def look_at(endpoint: Endpoint) -> Look:
    """Return the rules that redact an endpoint's answer for tenants."""
    return LOOKS.get(endpoint.answer, Look(endpoint.answer))


def is_shown(endpoint: Endpoint, query: Mapping[str, str]) -> bool:
    """Return True if tenants may get this answer: as JSON, and by namespace, node or model."""
    by = query.get("by", "namespace") if endpoint.answer in REPORTS else "namespace"
    in_json = query.get("format", "json") == "json"
    return endpoint.audience is Audience.TENANTS and in_json and by in BY_SHOWN


def planned_namespaces(body: bytes) -> list[str]:
    """Return the namespaces of the planned pods.

    The client must have read access to each, because the answer also names live pods there."""
    return sorted({pod["namespace"] for pod in msgspec.json.decode(body)["pods"]})


async def shown(body: bytes, look: Look, may_see: Ask, seal: Seal, aside: Executor) -> bytes:
    """Redact an answer's JSON for a client who sees the namespaces that `may_see` accepts.

    `seal` encrypts a list's cursor. The work runs in `aside`, as a thousand rows take 0.1 s."""

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
    """Return a function that is True for those of `namespaces` that the client may see."""
    allowed = {name for name in namespaces if name != UNKNOWN and await may_see(name)}
    return allowed.__contains__
