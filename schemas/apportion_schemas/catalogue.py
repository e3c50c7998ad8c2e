"""Catalogue of events: the subject, the only writer and the former versions of each event.

The decorator `event` adds a row for a payload class. Invariants: an event type has the same writer
in all versions; a version never changes its fields. Older versions stay in the row, because old
events stay in the ledger. The JSON Schemas, `asyncapi.yaml` and the documentation's table are made
from the rows; permissions are in `apportion.core.identity.roles`."""

import re
from collections.abc import Callable
from operator import attrgetter
from string import Formatter
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from apportion_schemas.quantities import Payload

SUBJECTS = "apportion.v1"
TYPE_PREFIX = "apportion.dev/"
READING = "reading"  # below `operator`: events that set how the ledger is read, looked up first
_is_token = re.compile(r"[A-Za-z0-9_~-]+").fullmatch  # most names; `quote` leaves them as they are
# The newest version of each event that is legal without `FormatEnabled`. It must not grow after
# the first release, because existing ledgers rely on it. Numbers above 1 count the versions of
# earlier builds, whose ledgers (tests/golden/ledgers) must stay readable, so they are never reused.
# These versions need no lift: the newest one accepts them, with defaults for missing fields.
BORN: Final[dict[str, int]] = {}
P = TypeVar("P", bound=type[Payload])


class Older(NamedTuple):
    """A former version of an event, with the function that converts it to the next version.

    `payload` has the fields of that version; its class has the event's name, in a package `older`.
    `lift` may modify its argument, a JSON object, and must accept every payload that this version
    allowed."""

    payload: type[Payload]
    lift: Callable[[dict[str, Any]], dict[str, Any]]


class EventType(NamedTuple):
    """One type of event: its payload, its subject below `apportion.v1`, and its only writer."""

    payload: type[Payload]  # the class of the newest version
    subject: str  # payload fields are in braces
    writer: str
    older: tuple[Older, ...]
    subject_of: Callable[[Any], str]

    @property
    def channel(self) -> str:
        """Return the first part of the subject below `apportion.v1`, as in `placement`."""
        return self.subject.partition(".")[0]

    @property
    def appender(self) -> str:
        """Return the role that appends the event: the writer, or the intake for an agent's event.

        Agents may not write to the ledger: an intake checks their reports and appends them."""
        return "intake" if self.writer == "agent" else self.writer

    @property
    def version(self) -> int:
        """Return the newest version: this build writes it, and converts older versions to it."""
        return (BORN.get(self.payload.__name__) or 1) + len(self.older)  # hot: runs for each event

    @property
    def first(self) -> int:
        """Return the oldest version that has its own payload class.

        Still older versions have fewer fields and are decoded as this version."""
        return self.born or 1

    @property
    def born(self) -> int:
        """Return the highest version that is legal without `FormatEnabled`, or 0 if none is."""
        return BORN.get(self.name, 0)

    def payload_of(self, version: int) -> type[Payload]:
        """Return the payload class for events of this version, from 1 to the newest."""
        at = max(version - self.first, 0)
        return self.older[at].payload if at < len(self.older) else self.payload

    @property
    def name(self) -> str:
        """Return the bare name, as in `PodPlaced`."""
        return self.payload.__name__

    @property
    def type(self) -> str:
        """Return the CloudEvents `type`, as in `apportion.dev/PodPlaced`."""
        return TYPE_PREFIX + self.name


def token(name: str) -> str:
    """Encode a name as one token of a NATS subject, without `.` or wildcards; see `untoken`."""
    if _is_token(name):
        return name
    return quote(name, safe="").replace(".", "%2E")


def untoken(text: str) -> str:
    """Return the name that `token` encoded."""
    return unquote(text)


BY_TYPE: Final[dict[str, EventType]] = {}
BY_PAYLOAD: Final[dict[type[Payload], EventType]] = {}


def event(
    subject: str, writer: str, *, born: int = 1, older: tuple[Older, ...] = ()
) -> Callable[[P], P]:
    """Register the decorated payload as an event with this subject and its only writer.

    Versions up to `born` are legal on every ledger. `born` is 0 for a newer event."""

    def declare(payload: P) -> P:
        row = EventType(payload, subject, writer, older, _filler(f"{SUBJECTS}.{subject}"))
        BY_TYPE[row.type] = BY_PAYLOAD[payload] = row
        if born:
            BORN[row.name] = born
        return payload

    return declare


def _filler(subject: str) -> Callable[[Any], str]:
    """Return a function that puts a payload's fields into the subject."""
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
    """Return the NATS subject of this payload's event, as in `apportion.v1.placement.node-1`."""
    return BY_PAYLOAD[type(data)].subject_of(data)
