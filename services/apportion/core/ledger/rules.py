"""By which rules the bytes of a ledger are events: which formats are legal, what is set aside.

Both are said by operators in events, `FormatEnabled` and `RevisionSetAside`, which readers look up
before they begin and whenever they have halted: what is said later on may be about what stands
before it. Invariants: whether a format is legal at a revision, and whether a revision counts, is a
function of the ledger alone, the same for every reader whatever it knows and wherever it begins;
what is set aside is refused with the words of whoever did it, and never forgotten."""

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

RULES = f"{SUBJECTS}.operator.{READING}.>"
"""The subjects of the events that make the rules."""


class SetAsideEvent(InvalidEvent):
    """An operator has said that what stands at this revision changes nothing."""


class Superseded(Exception):
    """What is folded was folded without a rule that stands here: begin anew, and look it up."""


class Enabled(Struct, frozen=True, array_like=True):
    """Up to which version a format is legal behind revision `at`."""

    version: int
    at: int


class Aside(Struct, frozen=True, array_like=True):
    """Which event set a revision aside, in whose name, and why."""

    at: int
    by: str
    reason: str


class Said(NamedTuple):
    """One event that makes a rule, and where it stands."""

    revision: int
    data: FormatEnabled | RevisionSetAside


class Rules(Struct):
    """The rules as far as they are known, which may be further than the state beside them is.

    `enabled` is by bare name, `aside` by revision; `heard` are the revisions of all events that set
    something aside, as far as those were looked up."""

    enabled: dict[str, tuple[Enabled, ...]] = {}
    aside: dict[int, Aside] = {}
    heard: set[int] = set()

    def read(self, revision: int, subject: str, payload: bytes) -> Event:
        """The event at this revision.

        Raises SetAsideEvent, NotEnabledEvent, InvalidEvent, UnreadableEvent: every reader passes
        over it. UnknownEvent: it is legal, and this build does not know it."""
        aside = self.aside.get(revision)
        if aside is not None:
            raise SetAsideEvent(f"set aside at revision {aside.at} by {aside.by}: {aside.reason}")

        def legal(type_: str, version: int) -> bool:
            return self.legal(type_, version, revision)

        return decode(payload, subject=subject, legal=legal)

    def legal(self, type_: str, version: int, revision: int) -> bool:
        """Whether an operator has enabled this type in this version before that revision."""
        if not type_.startswith(TYPE_PREFIX):
            return False
        enabled = self.enabled.get(type_.removeprefix(TYPE_PREFIX), ())
        return any(each.at < revision and version <= each.version for each in enabled)

    def enable(self, revision: int, data: FormatEnabled) -> str:
        """Take a format as legal from there on; why not, where it is already."""
        known = self.enabled.get(data.format, ())
        enabled = Enabled(data.version, revision)
        if enabled in known:
            return ""  # it was looked up before
        if legal_version(data.format, known, revision) >= data.version:
            return f"{data.format}@{data.version} is legal already"
        self.enabled[data.format] = (*known, enabled)
        return ""

    def heed(self, revision: int, data: RevisionSetAside) -> str:
        """Why that revision is not set aside by the event at this one; empty where it is.

        Raises Superseded: that was not known when the revision was folded."""
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
        """Take what was looked up: all that the ledger has of these, in order."""
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
        """Whether something up to that revision was set aside behind it: what it folds to now is
        not what it was then."""
        return any(each <= revision < why.at for each, why in self.aside.items())

    def upto(self, revision: int) -> Rules:
        """What of it a state of that revision was folded by."""
        enabled = {
            name: kept
            for name, all_ in self.enabled.items()
            if (kept := tuple(each for each in all_ if each.at <= revision))
        }
        aside = {each: why for each, why in self.aside.items() if each <= revision}
        return Rules(enabled, aside, {each for each in self.heard if each <= revision})

    def go_on(self, ahead: Rules, revision: int) -> bool:
        """Have a state of that revision go on by rules that were looked up now.

        False: it was folded by others, and must not be used."""
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
    """The rules by which a ledger is read that has said all of this, in order."""
    rules = Rules()
    rules.foresee(said)
    return rules


def legal_version(name: str, enabled: Iterable[Enabled], revision: int) -> int:
    """Up to which version a format is legal at that revision; 0 for none."""
    said = (each.version for each in enabled if each.at < revision)
    return max(BORN.get(name, 0), *said, 0)


def said_at(revision: int, subject: str, payload: bytes) -> Said | None:
    """The rule that a record makes, None where it is no valid event that makes one."""
    if not subject.startswith(RULES.removesuffix(">")):
        return None
    try:
        data = decode(payload, subject=subject).data
    except EventError:
        return None
    return Said(revision, data) if isinstance(data, FormatEnabled | RevisionSetAside) else None


def missing(rules: Rules, writer: str, revision: int) -> list[str]:
    """The formats that this writer writes in this build, and that are not legal there yet."""
    return [
        f"{row.name}@{row.version}"
        for row in CATALOGUE
        if row.writer == writer
        and legal_version(row.name, rules.enabled.get(row.name, ()), revision) < row.version
    ]
