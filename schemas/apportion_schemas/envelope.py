"""Encode and decode events as CloudEvents 1.0 in structured JSON.

There are three extension attributes: `schemaversion`, `basis` (the revision up to which the writer
had folded) and `cause` (the revision of the event to which the writer reacted). Writers use the
newest version. Readers accept every version. An older payload is checked against its own fields and
then lifted (converted) to the newest, so that only this module handles old versions.

Invariants: `decode` returns an event whose type, payload and subject are in the catalogue, or
raises. `UnknownEvent` means that a newer build wrote the event, so the reader must stop. Every
other error is the same in all builds, so all readers refuse the same bytes. To ensure this,
`decode` first checks that the ledger allows the event's type and version. It also refuses JSON
nested deeper than a limit."""

import contextlib
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from apportion_schemas import (
    agreement,
    allocation,
    cluster,
    configuration,
    formats,
    inventory,
    operations,
    placement,
    pricing,
    usage,
    workload,
)
from apportion_schemas.catalogue import (
    BORN,
    BY_PAYLOAD,
    BY_TYPE,
    TYPE_PREFIX,
    EventType,
    subject_of,
)
from apportion_schemas.formats import Version
from apportion_schemas.quantities import Name, Natural, Payload

EVENT_BYTES_MAX = 1 << 20  # the stream's max_msg_size
ID_BYTES_MAX = 512
SPEC_VERSION = "1.0"
# The limit of nesting in JSON; a parser's own limit depends on its caller's stack depth.
DEPTH_MAX: Final = 64


class EventError(Exception):
    """Raised for bytes that are not a usable event; names the attribute, the value and the fix."""


class UnreadableEvent(EventError):
    """Raised for bytes that are not a CloudEvents 1.0 JSON document."""


class UnknownEvent(EventError):
    """Raised if a newer build wrote the event, with a type or version unknown to this build.

    Also raised if this build fails to convert an older version, because other builds may succeed.
    """


class InvalidEvent(EventError):
    """Raised for a known type whose payload breaks the schema or whose subject is wrong."""


class NotEnabledEvent(InvalidEvent):
    """Raised if no operator has enabled this type, or this version of it, on the ledger."""


# True if an operator has enabled this version of a type, which is not legal on every ledger.
Legal = Callable[[str, int], bool]


class Event(Struct, frozen=True, kw_only=True):
    """An event in the ledger: payload, writer, time, and the revisions on which it is based."""

    id: str
    source: str
    time: str
    data: Any
    basis: int = 0
    cause: int = 0


class _Wire(Struct, kw_only=True, forbid_unknown_fields=True):
    specversion: str
    type: Name
    schemaversion: Version
    id: Annotated[str, Meta(min_length=1, max_length=ID_BYTES_MAX)]
    source: Name
    time: Annotated[str, Meta(min_length=20, max_length=40)]
    data: Raw
    basis: Natural = 0
    cause: Natural = 0
    datacontenttype: Literal["application/json"] = "application/json"


class _Head(Struct):
    """The type and version of an event. Any CloudEvents document can be decoded as this struct."""

    specversion: str
    type: Name
    schemaversion: Version


# All events, in the order of the documentation.
CATALOGUE: Final = tuple(
    row
    for module in (
        inventory, allocation, workload, agreement, cluster, placement, pricing,
        operations, usage, configuration, formats,
    )
    for row in BY_PAYLOAD.values()
    if row.payload.__module__ == module.__name__
)  # fmt: skip
_decode_wire = msgspec.json.Decoder(_Wire).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_DECODERS = {row.type: msgspec.json.Decoder(row.payload).decode for row in BY_TYPE.values()}
# By type: the newest version and its decoder, if that is legal on every ledger.
_NEWEST = {
    row.type: (row.version, _DECODERS[row.type])
    for row in BY_TYPE.values()
    if row.version <= row.born
}
_NOTHING = (0, msgspec.json.decode)  # for an unknown type: no event has version 0
_encode = msgspec.json.Encoder().encode
_NOT_TEXT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # all that bytes can cause
_STRING = re.compile(rb'"(?:[^"\\]|\\.|\\\Z)*+(?:"|\Z)', re.DOTALL)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_STEPS = bytes(set(range(256)) - _STEPS.keys())


def encode(event: Event) -> bytes:
    """Return the event's bytes. Raises InvalidEvent if `decode` would not accept them."""
    row = BY_PAYLOAD[type(event.data)]
    try:
        data = _encode(event.data)
        _DECODERS[row.type](data)
        payload = _encode(
            _Wire(
                specversion=SPEC_VERSION,
                type=row.type,
                schemaversion=row.version,
                id=event.id,
                source=event.source,
                time=event.time,
                basis=event.basis,
                cause=event.cause,
                data=Raw(data),
            )
        )
        _decode_wire(payload)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InvalidEvent(f"{row.name}: {error}") from None
    if len(payload) > EVENT_BYTES_MAX:
        raise InvalidEvent(f"{row.name} has {len(payload)} bytes; the limit is {EVENT_BYTES_MAX}")
    return payload


def decode(payload: bytes, *, subject: str, legal: Legal = lambda _, __: True) -> Event:
    """Decode an event that was received on this NATS subject.

    `legal` returns True if the ledger allows a type and version; by default all are allowed. Raises
    UnreadableEvent, NotEnabledEvent, UnknownEvent or InvalidEvent, as the module describes."""
    try:
        wire, data = _parsed(payload, legal)
    except EventError:
        # Too deep nesting is the reason given, whatever other errors there are.
        steps = _STRING.sub(b"", payload).translate(None, _NO_STEPS)
        if max(accumulate(map(_STEPS.__getitem__, steps)), default=0) > DEPTH_MAX:
            raise UnreadableEvent(
                f"not an event: it nests deeper than {DEPTH_MAX} levels"
            ) from None
        raise
    if subject_of(data) != subject:
        raise InvalidEvent(
            f"{BY_PAYLOAD[type(data)].name}: stands on subject {subject!r} and belongs on "
            f"{subject_of(data)!r}"
        )
    return Event(
        id=wire.id,
        source=wire.source,
        time=wire.time,
        data=data,
        basis=wire.basis,
        cause=wire.cause,
    )


def _parsed(payload: bytes, legal: Legal) -> tuple[_Wire, Any]:
    try:
        wire = _decode_wire(payload)
    except _NOT_TEXT as error:
        with contextlib.suppress(*_NOT_TEXT):  # a newer build may have added attributes
            _known(_decode_head(payload), legal)
        raise UnreadableEvent(f"not a CloudEvents 1.0 document: {error}") from None
    version, decode_data = _NEWEST.get(wire.type, _NOTHING)
    if wire.schemaversion == version and wire.specversion == SPEC_VERSION:
        try:
            return wire, decode_data(wire.data)
        except _NOT_TEXT as error:
            raise InvalidEvent(f"{BY_TYPE[wire.type].name}: {error}") from None
    row = _known(wire, legal)
    try:
        if wire.schemaversion == row.version:
            return wire, _DECODERS[row.type](wire.data)
        return wire, lifted(row, wire.schemaversion, wire.data)
    except _NOT_TEXT as error:
        raise InvalidEvent(f"{row.name} (version {wire.schemaversion}): {error}") from None


def _known(head: _Head | _Wire, legal: Legal) -> EventType:
    row = BY_TYPE.get(head.type)
    name = head.type.removeprefix(TYPE_PREFIX)
    born = BORN.get(name, 0) if name != head.type else 0
    if head.schemaversion > born and not legal(head.type, head.schemaversion):
        format_ = f"{name}@{head.schemaversion}"
        raise NotEnabledEvent(
            f"format {format_!r} is not enabled on this ledger, so it changes nothing; if a newer "
            "build is to write it, see: apportion ledger enable --help"
        )
    if row is None:
        raise UnknownEvent(
            f"this build does not know the event type {head.type!r}, which a newer build wrote; "
            "upgrade Apportion here"
        )
    if head.schemaversion > row.version:
        raise UnknownEvent(
            f"{row.name}: a newer build wrote schemaversion {head.schemaversion} (CloudEvents "
            f"{head.specversion}), but this build reads only up to {row.version}; upgrade "
            "Apportion here"
        )
    if head.specversion != SPEC_VERSION:
        raise UnreadableEvent(
            f"not a CloudEvents 1.0 document: specversion is {head.specversion[:40]!r}"
        )
    return row


def lifted(row: EventType, version: int, data: bytes | Raw) -> Payload:
    """Decode a payload of an older version and convert it to the row's newest version.

    Raises msgspec.DecodeError if the payload breaks the schema of its own version. Raises
    UnknownEvent if this build fails to convert it, which is a bug of this build."""
    written = msgspec.json.decode(data, type=row.payload_of(version))
    steps = row.older[max(version - row.first, 0) :]
    if not steps:  # written before the first release: it has fewer fields and needs no lift
        return written
    fields = msgspec.json.decode(data)
    try:
        for older in steps:
            fields = older.lift(fields)
        return msgspec.json.decode(_encode(fields), type=row.payload)
    except Exception as fault:  # readers treat all bugs of a lift alike
        raise UnknownEvent(
            f"{row.name}: cannot convert version {version} to {row.version} ({fault}), because of "
            "a bug in this build; upgrade Apportion, and report the bug with this event"
        ) from fault
