"""The log: events as text, newest first, in pages, and filtered.

Invariant: a page reads a bounded part of the ledger. If few events match, the page ends early."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from apportion.core.answers.past import LogEntry, LogPage, LogRow
from apportion.core.explain.tenant_redaction import UNKNOWN, namespaces_of
from apportion.core.explain.text.answer_text import log_with_text
from apportion.core.explain.text.event_text import Teller
from apportion.core.identity.permissions import matches
from apportion.core.ledger.rules import Rules
from apportion.gateway.api.endpoint import Audience, Endpoint
from apportion.gateway.api.query import (
    LIMIT_MAX,
    REVISION_MAX,
    RequestRefused,
    WaitQuery,
    parsed,
    whole,
)
from apportion.gateway.past.chronicle import time_of
from apportion.gateway.past.past import Past
from apportion.runtime.ledger.port import SUBJECT_PREFIX, Record
from apportion_schemas import CATALOGUE, DeviceHealthChanged, EventError, PodEvicted
from apportion_schemas.quantities import NAME_MAX

LIMIT_DEFAULT = 100
READ_MAX = 20_000
SLICE = 2_000
_decode_page = msgspec.json.Decoder(LogPage).decode
TYPES = frozenset(row.name for row in CATALOGUE)


class Filter(msgspec.Struct, frozen=True):
    """Selects events by type, by subject (NATS wildcards), and by a text in the log's row."""

    type: str = ""
    subject: str = ""
    text: str = ""

    def wants(self, record: Record) -> bool:
        """Check a record before it is decoded; return False if it certainly does not match."""
        if self.type and f'"apportion.dev/{self.type}"'.encode() not in record.payload:
            return False
        return not self.subject or matches(self.subject, record.subject)

    def takes(self, row: LogRow) -> bool:
        """Return True if the row has the type, and the text in its sentence, subject or source."""
        if self.type and row.type != self.type:
            return False
        text = self.text.casefold()
        return not text or any(
            text in said.casefold() for said in (row.sentence, row.subject, row.source)
        )


class LogQuery(WaitQuery, frozen=True, kw_only=True):
    """The parameters of the log."""

    before: (
        Annotated[int, Meta(ge=1, le=REVISION_MAX, description="Only events before this revision.")]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Maximum events per page.")] = (
        LIMIT_DEFAULT
    )
    type: Annotated[
        str, Meta(description="Only events of this type; see docs/reference/events.md.")
    ] = ""
    subject: Annotated[
        str, Meta(max_length=NAME_MAX, description="Only events on this subject, with NATS "
                  "wildcards."),
    ] = ""  # fmt: skip
    text: Annotated[
        str, Meta(max_length=NAME_MAX, description="Only events with this text in their "
                  "sentence, subject or source."),
    ] = ""  # fmt: skip
    after: Annotated[
        str,
        Meta(
            description="Return the page after a previous page. Use the value `continue` of "
            "that page."
        ),
    ] = msgspec.field(default="", name="continue")


PAGE = Endpoint(
    path="log", name="log", answer=LogPage, query=LogQuery, audience=Audience.TENANTS,
    summary="Events as sentences, newest first. With a filter, pages may be short: read on while "
    "`continue` is not empty",
)  # fmt: skip
ENTRY = Endpoint(
    path="log/{revision}", name="log", answer=LogEntry, query=WaitQuery, audience=Audience.TENANTS,
    summary="One event of the ledger, with its sentence",
)  # fmt: skip
ENDPOINTS = (PAGE, ENTRY)


class Log:
    """The log of one ledger, read in pages."""

    def __init__(self, past: Past) -> None:
        self._past = past

    async def page(self, query: LogQuery, _names: Mapping[str, str]) -> LogPage:
        """Return a page of matching events. Raises RequestRefused, LedgerError."""
        first, last = await self._past.chronicle.span()
        before = query.before or last + 1
        if query.after:
            before = whole("continue", query.after, least=1, most=REVISION_MAX)
        before, wanted, limit = min(before, last + 1), filter_of(query), query.limit
        rows: list[LogRow] = []
        teller = Teller(self._past.index.name_of)
        lowest = max(first, before - READ_MAX)
        size = limit if wanted == Filter() else SLICE
        while before > lowest and len(rows) < limit:
            after = max(lowest, before - size) - 1
            records: list[Record] = []
            await self._past.chronicle.read(records.append, after=after, upto=before - 1)
            found = [
                row_of(record, teller, self._past.indexer.rules)
                for record in records
                if wanted.wants(record)
            ]
            rows += [row for row in found if wanted.takes(row)][::-1]
            before = after + 1
        if len(rows) > limit:
            rows, before = rows[:limit], rows[limit - 1].revision
        more = str(before) if before > first else ""
        return LogPage(revision=last, items=tuple(rows), next=more)

    async def entry(self, _query: WaitQuery, names: Mapping[str, str]) -> LogEntry:
        """Return a stored event and its text. Raises RequestRefused, LedgerError."""
        revision = whole("revision", names["revision"], least=1, most=REVISION_MAX)
        first, last = await self._past.chronicle.span()
        for record in await self._past.chronicle.records([revision]):
            row = row_of(record, Teller(self._past.index.name_of), self._past.indexer.rules)
            return LogEntry(revision=last, row=row, event=record.json)
        error, fix = f"no event at revision {revision}", f"use a revision from {first} to {last}"
        raise RequestRefused(404, error, field="revision", fix=fix)


def narrowed(body: bytes, given: Mapping[str, str]) -> bytes:
    """Remove rows that match the filter only by redacted text, and cut the page to the limit.

    Raises RequestRefused."""
    query = parsed(LogQuery, given)
    page, wanted, limit = _decode_page(body), filter_of(query), query.limit
    rows = tuple(
        row
        for row in page.items
        if wanted.takes(row) and (not wanted.subject or matches(wanted.subject, row.subject))
    )
    more = str(rows[limit - 1].revision) if len(rows) > limit else page.next
    return msgspec.json.encode(msgspec.structs.replace(page, items=rows[:limit], next=more))


def filter_of(query: LogQuery) -> Filter:
    """Return the filter of a request. Raises RequestRefused."""
    kind, subject = query.type, query.subject
    if kind and kind not in TYPES:
        rest, fix = f" is {kind[:80]!r}", "use a type from docs/reference/events.md"
        raise RequestRefused(400, field="type", rest=rest, fix=fix)
    if subject and not subject.startswith(SUBJECT_PREFIX):
        subject = SUBJECT_PREFIX + subject
    return Filter(type=kind, subject=subject, text=query.text)


def row_of(record: Record, teller: Teller, rules: Rules) -> LogRow:
    """Return the log's row for an event. If readers do not apply the event, the row says why."""
    try:
        event = rules.read(record.revision, record.subject, record.payload)
    except EventError as error:
        row = LogRow(
            revision=record.revision,
            time=time_of(record),
            type="",
            subject=record.subject,
            source="",
            parts=(f"not applied: {error}",),
            namespaces=(UNKNOWN,),
        )
        return log_with_text(row)
    data, line = event.data, teller.parts(event.data)
    is_health = isinstance(data, DeviceHealthChanged)
    row = LogRow(
        revision=record.revision,
        time=event.time,
        type=type(data).__name__,
        subject=record.subject,
        source=event.source,
        parts=line.parts,
        own=line.own,
        clauses=line.clauses,
        healthy=data.healthy if is_health else None,
        reason=data.reason if is_health else "",
        priority=data.priority if isinstance(data, PodEvicted) else 0,
        namespaces=namespaces_of(data, lambda uid: teller.name_of(uid).rpartition("/")[0]),
    )
    return log_with_text(row)
