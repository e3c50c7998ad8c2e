"""Answers about the past: what a moment means, what happened, who held what, what changed.

They stand beside `answers` and keep its rules: one definition for gateway and command line, amounts
with their unit, and the revision as of which each is.
"""

from msgspec import Raw, field

from apportion.core.explain.answers import Answer


class MomentAnswer(Answer, frozen=True):
    """The newest event at or before a moment, and when it was."""

    revision: int
    time: str


class Bin(Answer, frozen=True):
    """What happened in a span of time, by type of event; no revisions where nothing did."""

    from_time: str
    to_time: str
    first_revision: int = 0
    last_revision: int = 0
    counts: dict[str, int] = {}


class MarkRow(Answer, frozen=True):
    """An event that people look for on a line of time."""

    revision: int
    time: str
    kind: str
    sentence: str


class TimelineAnswer(Answer, frozen=True):
    """The whole ledger at a glance: from when to when, how much in each bin, and the marks."""

    revision: int
    first_revision: int
    first_time: str
    last_time: str
    bins: tuple[Bin, ...]
    marks: tuple[MarkRow, ...]


class LogRow(Answer, frozen=True):
    """One event in words. `type` is empty where no build reads it."""

    revision: int
    time: str
    type: str
    subject: str
    source: str
    sentence: str


class LogPage(Answer, frozen=True):
    """Events, the newest first; older ones go on behind `continue`, which is empty at the end."""

    revision: int
    items: tuple[LogRow, ...]
    next: str = field(default="", name="continue")


class LogEntry(Answer, frozen=True):
    """One event as it stands in the ledger; `event` is None where its bytes are no JSON."""

    revision: int
    row: LogRow
    event: Raw | None = None
