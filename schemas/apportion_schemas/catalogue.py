"""Which event goes where, who may write it, and what it was before.

Each payload says so itself: `event` stands above its class and makes its row here. Old events stay
in the ledger, so a row holds every version of its event. Invariants: one event type has one writer
and one kind of subject, which no version changes; a version that was written once keeps its fields.
The JSON Schemas, `asyncapi.yaml` and the table in the documentation are made from the rows; who may
append to a subject stands in `apportion.core.identity.roles`."""

import re
from collections.abc import Callable
from operator import attrgetter
from string import Formatter
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from apportion_schemas.quantities import Payload

SUBJECTS = "apportion.v1"
TYPE_PREFIX = "apportion.dev/"
READING = "reading"
"""Below `operator`: how the ledger is to be read, which readers look up before they begin."""
_is_token = re.compile(r"[A-Za-z0-9_~-]+").fullmatch  # most names; `quote` leaves them as they are
BORN: Final[dict[str, int]] = {}
"""The newest version of each event that is legal without `FormatEnabled`, of the first release.

It may grow until that is out, and never after: what it names is legal on ledgers that are there.
The numbers above 1 are of builds before that release, whose ledgers (tests/golden/ledgers) must
stay readable, so they are not given out again. No lift is kept for them: what these builds wrote in
an older version is what the newest one allows, with the defaults for what it left out.
"""
P = TypeVar("P", bound=type[Payload])


class Older(NamedTuple):
    """One version of an event that is written no more, and how the next version tells the same.

    `payload` has the fields as they were written, in a class of the event's own name; it is kept in
    a module of a package `older`. `lift` takes the JSON object of a payload of this version and
    returns that of the next one. It may change what it is given, and it finds an answer for
    whatever this version allowed: a build that refused what another has applied would hold another
    state."""

    payload: type[Payload]
    lift: Callable[[dict[str, Any]], dict[str, Any]]


class EventType(NamedTuple):
    """One row: the payload, its subject below `apportion.v1`, and its only writer.

    `payload` is of the newest version, which is the one that is written. `older` are those before
    it, from `first` on. `subject` has fields of the payload in braces, which `subject_of` fills."""

    payload: type[Payload]
    subject: str
    writer: str
    older: tuple[Older, ...]
    subject_of: Callable[[Any], str]

    @property
    def channel(self) -> str:
        """The first token of the subject below `apportion.v1`."""
        return self.subject.partition(".")[0]

    @property
    def appender(self) -> str:
        """The role that appends it to the stream: the writer, but for agents, who are not trusted
        with the ledger: they hand in what they write, and an intake judges and appends it."""
        return "intake" if self.writer == "agent" else self.writer

    @property
    def version(self) -> int:
        """The version that this build writes; older ones are lifted to it."""
        return (BORN.get(self.payload.__name__) or 1) + len(self.older)  # for each event written

    @property
    def first(self) -> int:
        """The version of the first release, or 1 for an event that came later.

        Builds before that release counted the versions that they wrote too. Each had some of the
        fields of `first` and no other, so those are read as `first` is."""
        return self.born or 1

    @property
    def born(self) -> int:
        """Up to which version it is legal on every ledger; 0 where an operator enables each."""
        return BORN.get(self.name, 0)

    def payload_of(self, version: int) -> type[Payload]:
        """The payload by which that version, from 1 to the newest, is read."""
        at = max(version - self.first, 0)
        return self.older[at].payload if at < len(self.older) else self.payload

    @property
    def name(self) -> str:
        """The bare name, as in `PodPlaced`."""
        return self.payload.__name__

    @property
    def type(self) -> str:
        """The CloudEvents `type`, as in `apportion.dev/PodPlaced`."""
        return TYPE_PREFIX + self.name


def token(name: str) -> str:
    """Encode any name as one NATS subject token, reversibly (`.` and wildcards cannot stand)."""
    if _is_token(name):
        return name
    return quote(name, safe="").replace(".", "%2E")


def untoken(text: str) -> str:
    """The name that `token` encoded."""
    return unquote(text)


BY_TYPE: Final[dict[str, EventType]] = {}
BY_PAYLOAD: Final[dict[type[Payload], EventType]] = {}


def event(
    subject: str, writer: str, *, born: int = 1, older: tuple[Older, ...] = ()
) -> Callable[[P], P]:
    """Declare a payload as an event: on which subject it stands, and who alone writes it.

    `born` is its number in `BORN`: what comes after the first release has 0."""

    def declare(payload: P) -> P:
        row = EventType(payload, subject, writer, older, _filler(f"{SUBJECTS}.{subject}"))
        BY_TYPE[row.type] = BY_PAYLOAD[payload] = row
        if born:
            BORN[row.name] = born
        return payload

    return declare


def _filler(subject: str) -> Callable[[Any], str]:
    """What puts the fields into the subject; it is made once, for each event that is read."""
    parts = [
        (text, attrgetter(field) if field else None)
        for text, field, _, _ in Formatter().parse(subject)
    ]
    text, get = parts[0]
    if get is None:
        return lambda _: text
    if len(parts) == 1:
        return lambda data: text + token(str(get(data)))
    return lambda data: "".join(text + token(str(get(data))) for text, get in parts if get)


def subject_of(data: Payload) -> str:
    """The NATS subject of an event with this payload, as in `apportion.v1.placement.node-1`."""
    return BY_PAYLOAD[type(data)].subject_of(data)
