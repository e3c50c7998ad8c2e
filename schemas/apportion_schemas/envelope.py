"""Bytes to events and back: CloudEvents 1.0, structured JSON.

Three extension attributes carry what the ledger needs: `schemaversion`, `basis` (the revision that
the writer had folded) and `cause` (the revision that made it write).

What is written is of the newest version. What is read may be of any version that ever was: an older
one is held to its own fields and then lifted to the newest, so that only this module knows of it.

Invariants: `decode` either returns an event whose type, payload and subject are all in the
catalogue, or raises. `UnknownEvent` means that a newer writer exists, so a reader must stop there;
all other errors mean that every reader, however new, refuses these bytes. Which it is, and why, no
reader sees otherwise: a format that is not legal is refused before anybody looks whether it knows
it, and bytes that nest so deep that a parser may give up, sooner or later, are refused for that."""

import re
from collections.abc import Callable
from itertools import accumulate
from typing import Annotated, Any, Final, Literal, NoReturn

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
DEPTH_MAX: Final = 64
"""No event nests deeper. A parser's own limit depends on who calls it, and from how far inside."""


class EventError(Exception):
    """An event that cannot be used; the message names the attribute, the value and the cure."""


class UnreadableEvent(EventError):
    """The bytes are not a CloudEvents 1.0 JSON document."""


class UnknownEvent(EventError):
    """The type or its version is not in this build's catalogue: a newer writer exists.

    Also where this build fails to lift an older version: another one will not."""


class InvalidEvent(EventError):
    """The type is known and the payload breaks its schema, or stands on another's subject."""


class NotEnabledEvent(InvalidEvent):
    """No operator has said that this type, or this version of it, is legal on the ledger."""


Legal = Callable[[str, int], bool]
"""Whether a type is legal in a version, of those that are not legal on every ledger."""


class Event(Struct, frozen=True, kw_only=True):
    """One fact: what happened, who says so, when, and on which knowledge."""

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
    """What says of which build a document is, however that build goes on."""

    specversion: str
    type: Name
    schemaversion: Version


CATALOGUE: Final = tuple(
    row
    for module in (
        inventory, allocation, workload, agreement, cluster, placement, pricing,
        operations, usage, configuration, formats,
    )
    for row in BY_PAYLOAD.values()
    if row.payload.__module__ == module.__name__
)  # fmt: skip
"""All events, in the order in which people read of them."""
_decode_wire = msgspec.json.Decoder(_Wire).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_DECODERS = {row.type: msgspec.json.Decoder(row.payload).decode for row in BY_TYPE.values()}
_NEWEST = {
    row.type: (row.version, _DECODERS[row.type])
    for row in BY_TYPE.values()
    if row.version <= row.born
}
"""By type: the newest version, and what reads its payload; of those that are legal everywhere."""
_NOTHING = (0, msgspec.json.decode)
"""Stands for a type that is not known: no event is of version 0."""
_encode = msgspec.json.Encoder().encode
_NOT_TEXT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # all that bytes can cause
_STRING = re.compile(rb'"(?:[^"\\]|\\.|\\\Z)*+(?:"|\Z)', re.DOTALL)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_STEPS = bytes(set(range(256)) - _STEPS.keys())


def encode(event: Event) -> bytes:
    """The bytes of an event.

    Raises InvalidEvent: the event would not be accepted back; nothing bad is ever written."""
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
        raise InvalidEvent(f"{row.name}: {len(payload)} bytes; at most {EVENT_BYTES_MAX}")
    return payload


def decode(payload: bytes, *, subject: str, legal: Legal = lambda _, __: True) -> Event:
    """The event in these bytes, which came on this NATS subject.

    `legal` is asked about formats that are not legal on every ledger. Without it whatever this
    build knows is taken, which is for those who look at a record and hold no state.

    Raises UnreadableEvent, NotEnabledEvent, UnknownEvent, InvalidEvent: see the module."""
    try:
        wire, data = _parsed(payload, legal)
    except EventError:
        # What nests too deep is refused for that, whatever else is wrong with it.
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
        _refuse_broken(payload, legal, error)
    version, decode_data = _NEWEST.get(wire.type, _NOTHING)
    if wire.schemaversion != version or wire.specversion != SPEC_VERSION:
        return wire, _decode_other(wire, legal)
    try:
        return wire, decode_data(wire.data)
    except _NOT_TEXT as error:
        raise InvalidEvent(f"{BY_TYPE[wire.type].name}: {error}") from None


def _refuse_broken(payload: bytes, legal: Legal, error: Exception) -> NoReturn:
    """Say what is wrong with bytes that are no event of ours.

    Raises UnknownEvent: they are of a newer build, which may have given an event more attributes.
    Raises NotEnabledEvent: so they would be, if an operator had said that it may be. Raises
    UnreadableEvent: they are neither."""
    try:
        head = _decode_head(payload)
    except _NOT_TEXT:
        pass
    else:
        _known(head, legal)
    raise UnreadableEvent(f"not a CloudEvents 1.0 document: {error}") from None


def _known(head: _Head | _Wire, legal: Legal) -> EventType:
    """The row of an event that this build can read.

    Raises NotEnabledEvent, UnknownEvent, UnreadableEvent."""
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
            f"type {head.type!r} is not known to this build: a newer one wrote it, so upgrade "
            "Apportion here"
        )
    if head.schemaversion > row.version:
        raise UnknownEvent(
            f"{row.name}: schemaversion {head.schemaversion} (CloudEvents {head.specversion}) is "
            f"not known to this build, which reads up to {row.version}: a newer one wrote it, so "
            "upgrade Apportion here"
        )
    if head.specversion != SPEC_VERSION:
        raise UnreadableEvent(
            f"not a CloudEvents 1.0 document: specversion is {head.specversion[:40]!r}"
        )
    return row


def _decode_other(wire: _Wire, legal: Legal) -> Payload:
    """The payload of an event that is not of the newest version, or not legal on every ledger.

    Raises NotEnabledEvent, UnknownEvent, UnreadableEvent, InvalidEvent: see the module."""
    row = _known(wire, legal)
    try:
        if wire.schemaversion == row.version:
            data: Payload = _DECODERS[row.type](wire.data)
            return data
        return lifted(row, wire.schemaversion, wire.data)
    except _NOT_TEXT as error:
        raise InvalidEvent(f"{row.name} (version {wire.schemaversion}): {error}") from None


def lifted(row: EventType, version: int, data: bytes | Raw) -> Payload:
    """What a payload of an older version says, as the newest version of the row tells it.

    Raises msgspec.DecodeError: it breaks the schema of its own version, as builds of then saw it.
    Raises UnknownEvent: this build fails to lift it, which is a fault of this build."""
    written = msgspec.json.decode(data, type=row.payload_of(version))
    steps = row.older[max(version - row.first, 0) :]
    if not steps:  # of a build before the first release: it has fewer fields and needs no lift
        return written
    fields = msgspec.json.decode(data)
    try:
        for older in steps:
            fields = older.lift(fields)
        return msgspec.json.decode(_encode(fields), type=row.payload)
    except Exception as fault:  # any fault of a lift is the same to its readers
        raise UnknownEvent(
            f"{row.name}: version {version} could not be lifted to {row.version} ({fault}), which "
            "is a fault of this build; upgrade Apportion, and report it with this event"
        ) from fault
