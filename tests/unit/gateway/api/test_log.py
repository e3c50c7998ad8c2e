"""Tests of how the log of events can be filtered: by subject pattern, event type and text."""

import pytest

from apportion.core.explain.text.event_text import Teller
from apportion.core.identity.permissions import matches
from apportion.core.ledger.rules import Rules
from apportion.gateway.api.log import Filter, LogQuery, filter_of, row_of
from apportion.gateway.api.query import RequestRefused, parsed
from apportion.runtime.ledger.port import Record
from apportion_schemas import Event, NodeCordoned, encode, subject_of

CORDONED = NodeCordoned(node="n1", by="Ann", reason="Fan")
TIME = "2026-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        ("a.b", "a.b", True), ("a.b", "a.b.c", False), ("a.*", "a.b", True), ("a.*", "a", False),
        ("a.>", "a.b.c", True), ("a.>", "a", False), ("*.b.>", "a.b.c", True), (">", "a", True),
        ("a.b.c", "a.b", False),
    ],
)  # fmt: skip
def test_subjects(pattern: str, subject: str, fits: bool) -> None:
    """In a subject pattern, `*` matches one token and `>` matches one or more tokens."""
    assert matches(pattern, subject) is fits


def test_filters() -> None:
    """The log is filtered by type, by subject with or without its prefix, and by text in upper or
    lower case."""
    record = Record(
        7, subject_of(CORDONED), encode(Event(id="1", source="cli", time=TIME, data=CORDONED))
    )
    row = row_of(record, Teller(), Rules())
    assert (row.revision, row.type, row.source) == (7, "NodeCordoned", "cli")
    for query, kept in (
        ({"type": "NodeCordoned"}, True),
        ({"type": "NodeUncordoned"}, False),
        ({"subject": "operator.node.*"}, True),
        ({"subject": "apportion.v1.operator.>"}, True),
        ({"subject": "placement.>"}, False),
        ({"text": "by ann"}, True),
        ({"text": "bob"}, False),
    ):
        wanted = filter_of(parsed(LogQuery, query))
        assert (wanted.wants(record) and wanted.takes(row)) is kept, query
    with pytest.raises(RequestRefused):
        filter_of(LogQuery(type="Nothing"))
    assert filter_of(LogQuery()) == Filter()


def test_what_is_no_event_has_a_row() -> None:
    """A record that is no valid event is in the log, with the reason why it has no effect."""
    row = row_of(Record(3, "apportion.v1.workload.x", b"?"), Teller(), Rules())
    assert (row.type, row.time) == ("", "")
    assert row.sentence.startswith("not applied: ")
