"""The rules for reading a ledger: which event formats are legal, which revisions readers skip.

Operators set both with events: `FormatEnabled`, and `RevisionSetAside` for a revision to skip. Such
an event may come after the revision that it is about, so readers look these events up before they
start and whenever they halt. Invariant: the ledger alone decides which formats are legal and which
revisions are skipped, for every reader and from any start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from apportion_schemas import (
    CATALOGUE,
    Event,
    EventError,
    FormatEnabled,
    InvalidEvent,
    RevisionSetAside,
    decode,
)
from apportion_schemas.catalogue import BORN, READING, SUBJECTS, TYPE_PREFIX

RULES = f"{SUBJECTS}.operator.{READING}.>"  # subjects of the events that make the rules


class SetAsideEvent(InvalidEvent):
    """Raised for a revision that an operator has set aside, so that readers skip it."""


class Superseded(Exception):
    """A new rule applies to events that the state has already folded; rebuild the state."""


class Enabled(Struct, frozen=True, array_like=True):
    """The newest format `version` that an operator has allowed, by the event at revision `at`."""

    version: int
    at: int


class Aside(Struct, frozen=True, array_like=True):
    """Why readers skip a revision: the user, the reason, and the revision `at` of the event
    RevisionSetAside."""

    at: int
    by: str
    reason: str


class Said(NamedTuple):
    """A `FormatEnabled` or `RevisionSetAside` event, and its revision."""

    revision: int
    data: FormatEnabled | RevisionSetAside


class Rules(Struct):
    """All rules that were looked up in the ledger so far, possibly beyond the state's revision."""

    enabled: dict[str, tuple[Enabled, ...]] = {}  # by the format's name
    aside: dict[int, Aside] = {}  # by the revision to skip
    heard: set[int] = set()  # of the `RevisionSetAside` events

    def read(self, revision: int, subject: str, payload: bytes) -> Event:
        """Decode the event at this revision.

        Raises SetAsideEvent, NotEnabledEvent, InvalidEvent or UnreadableEvent if all readers skip
        the event. Raises UnknownEvent if this build is too old to know the event."""
        aside = self.aside.get(revision)
        if aside is not None:
            raise SetAsideEvent(f"set aside at revision {aside.at} by {aside.by}: {aside.reason}")

        def legal(type_: str, version: int) -> bool:
            return self.legal(type_, version, revision)

        return decode(payload, subject=subject, legal=legal)

    def legal(self, type_: str, version: int, revision: int) -> bool:
        """Return True if this version of the type was enabled before that revision."""
        if not type_.startswith(TYPE_PREFIX):
            return False
        enabled = self.enabled.get(type_.removeprefix(TYPE_PREFIX), ())
        return any(each.at < revision and version <= each.version for each in enabled)

    def enable(self, revision: int, data: FormatEnabled) -> str:
        """Make a format legal after `revision`. Return an error text if it is legal already."""
        known = self.enabled.get(data.format, ())
        enabled = Enabled(data.version, revision)
        if enabled in known:
            return ""  # already looked up
        if legal_version(data.format, known, revision) >= data.version:
            return f"{data.format}@{data.version} is legal already"
        self.enabled[data.format] = (*known, enabled)
        return ""

    def heed(self, revision: int, data: RevisionSetAside) -> str:
        """Return why the RevisionSetAside at `revision` has no effect; empty if it takes effect.

        Raises Superseded if the revision that it sets aside was already folded."""
        if revision not in self.heard:
            raise Superseded(
                f"revision {data.revision} was set aside at revision {revision} by {data.by}: "
                f"{data.reason}"
            )
        aside = self.aside.get(data.revision)
        if aside is not None and aside.at == revision:
            return ""
        return (
            f"revision {data.revision} cannot be set aside: it does not stand before this, or is "
            "set aside already, or is itself of those that set aside"
        )

    def foresee(self, said: Iterable[Said]) -> None:
        """Apply all rule events of the ledger, in order, before the fold starts."""
        every = list(said)
        for revision, data in every:
            if not isinstance(data, RevisionSetAside):
                continue
            if data.revision < revision and data.revision not in self.heard:
                self.aside.setdefault(data.revision, Aside(revision, data.by, data.reason))
            self.heard.add(revision)
        for revision, data in every:
            if isinstance(data, FormatEnabled) and revision not in self.aside:
                self.enable(revision, data)

    def changed_since(self, revision: int) -> bool:
        """Return True if an event after `revision` sets aside that revision or an earlier one.

        If so, a state that was folded up to `revision` before that event is out of date."""
        return any(each <= revision < why.at for each, why in self.aside.items())

    def upto(self, revision: int) -> Rules:
        """Return only the rules from events up to that revision."""
        enabled = {
            name: kept
            for name, all_ in self.enabled.items()
            if (kept := tuple(each for each in all_ if each.at <= revision))
        }
        aside = {each: why for each, why in self.aside.items() if each <= revision}
        return Rules(enabled, aside, {each for each in self.heard if each <= revision})

    def go_on(self, ahead: Rules, revision: int) -> bool:
        """Add the rules in `ahead` to the rules of a state that was folded up to `revision`.

        Return False if `ahead` skips other revisions of the folded part. Then rebuild the state."""
        now = ahead.upto(revision).aside
        if any(self.aside.get(each) != why for each, why in now.items()):
            return False
        if any(why.at > revision and each not in now for each, why in self.aside.items()):
            return False
        self.aside |= ahead.aside
        self.heard |= ahead.heard
        for name, enabled in ahead.enabled.items():
            known = self.enabled.get(name, ())
            later = tuple(each for each in enabled if each.at > revision)
            self.enabled[name] = known + later
        return True


def rules_of(said: Iterable[Said]) -> Rules:
    """Return the rules that these events set; pass the events in ledger order."""
    rules = Rules()
    rules.foresee(said)
    return rules


def legal_version(name: str, enabled: Iterable[Enabled], revision: int) -> int:
    """Return the highest legal version of a format at that revision, 0 if none."""
    said = (each.version for each in enabled if each.at < revision)
    return max(BORN.get(name, 0), *said, 0)


def said_at(revision: int, subject: str, payload: bytes) -> Said | None:
    """Decode a record if its event sets a rule; return None for any other record."""
    if not subject.startswith(RULES.removesuffix(">")):
        return None
    try:
        data = decode(payload, subject=subject).data
    except EventError:
        return None
    return Said(revision, data) if isinstance(data, FormatEnabled | RevisionSetAside) else None


def missing(rules: Rules, writer: str, revision: int) -> list[str]:
    """Return the formats that this build's `writer` uses and that are not legal at `revision`."""
    return [
        f"{row.name}@{row.version}"
        for row in CATALOGUE
        if row.writer == writer
        and legal_version(row.name, rules.enabled.get(row.name, ()), revision) < row.version
    ]
