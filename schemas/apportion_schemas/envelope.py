"""Bytes to events and back: CloudEvents 1.0, structured JSON.

Three extension attributes carry what the ledger needs: `schemaversion`, `basis` (the revision that
the writer had folded) and `cause` (the revision that made it write).

What is written is of the newest version. What is read may be of any version that ever was: an older
one is held to its own fields and then lifted to the newest, so that only this module knows of it.

Invariant: `decode` either returns an event whose type, payload and subject are all in the
catalogue, or raises. `UnknownEvent` means that a newer writer exists, so a reader must stop there;
`UnreadableEvent` and `InvalidEvent` mean that every reader, however new, refuses these bytes.
"""

from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import Meta, Raw, Struct

from apportion_schemas.catalogue import BY_PAYLOAD, BY_TYPE, EventType, subject_of
from apportion_schemas.quantities import Name, Natural, Payload

EVENT_BYTES_MAX = 1 << 20  # the stream's max_msg_size
ID_BYTES_MAX = 512
SPEC_VERSION = "1.0"


class EventError(Exception):
    """An event that cannot be used; the message names the attribute, the value and the cure."""


class UnreadableEvent(EventError):
    """The bytes are not a CloudEvents 1.0 JSON document."""


class UnknownEvent(EventError):
    """The type or its version is not in this build's catalogue: a newer writer exists.

    Also where this build fails to lift an older version: another one will not.
    """


class InvalidEvent(EventError):
    """The type is known and the payload breaks its schema, or stands on another's subject."""


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
    schemaversion: Annotated[int, Meta(ge=1)]
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
    schemaversion: Annotated[int, Meta(ge=1)]


_decode_wire = msgspec.json.Decoder(_Wire).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_NEWEST = {
    row.type: (row.version, msgspec.json.Decoder(row.payload).decode) for row in BY_TYPE.values()
}
"""By type: the newest version, and what reads its payload."""
_NOTHING = (0, msgspec.json.decode)
"""Stands for a type that is not known: no event is of version 0."""
_encode = msgspec.json.Encoder().encode
_NOT_TEXT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # all that bytes can cause


def encode(event: Event) -> bytes:
    """The bytes of an event.

    Raises:
        InvalidEvent: the event would not be accepted back; nothing bad is ever written.
    """
    row = BY_PAYLOAD[type(event.data)]
    try:
        data = _encode(event.data)
        version, decode_data = _NEWEST[row.type]
        decode_data(data)
        payload = _encode(
            _Wire(
                specversion=SPEC_VERSION,
                type=row.type,
                schemaversion=version,
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


def decode(payload: bytes, *, subject: str) -> Event:
    """The event in these bytes, which came on this NATS subject.

    Raises:
        UnreadableEvent, UnknownEvent, InvalidEvent: see the module.
    """
    try:
        wire = _decode_wire(payload)
    except _NOT_TEXT as error:
        _refuse_broken(payload, error)
    version, decode_data = _NEWEST.get(wire.type, _NOTHING)
    if wire.schemaversion != version or wire.specversion != SPEC_VERSION:
        data = _decode_other(wire)
    else:
        try:
            data = decode_data(wire.data)
        except _NOT_TEXT as error:
            raise InvalidEvent(f"{BY_TYPE[wire.type].name}: {error}") from None
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


def _refuse_broken(payload: bytes, error: Exception) -> NoReturn:
    """Say what is wrong with bytes that are no event of ours.

    Raises:
        UnknownEvent: they are of a newer build, which may have given an event more attributes.
        UnreadableEvent: they are not.
    """
    try:
        head = _decode_head(payload)
    except _NOT_TEXT:
        pass
    else:
        _known(head)
    raise UnreadableEvent(f"not a CloudEvents 1.0 document: {error}") from None


def _known(head: _Head | _Wire) -> EventType:
    """The row of an event that this build can read. Raises UnknownEvent."""
    row = BY_TYPE.get(head.type)
    if row is None:
        raise UnknownEvent(
            f"type {head.type!r} is not known to this build: a newer one wrote it, so upgrade "
            "Apportion here"
        )
    if head.schemaversion > row.version or head.specversion != SPEC_VERSION:
        raise UnknownEvent(
            f"{row.name}: schemaversion {head.schemaversion} (CloudEvents {head.specversion}) is "
            f"not known to this build, which reads up to {row.version}: a newer one wrote it, so "
            "upgrade Apportion here"
        )
    return row


def _decode_other(wire: _Wire) -> Payload:
    """The payload of an event that is not of the newest version.

    Raises:
        UnknownEvent, InvalidEvent: see the module.
    """
    row = _known(wire)
    try:
        return lifted(row, wire.schemaversion, wire.data)
    except _NOT_TEXT as error:
        raise InvalidEvent(f"{row.name} (version {wire.schemaversion}): {error}") from None


def lifted(row: EventType, version: int, data: bytes | Raw) -> Payload:
    """What a payload of an older version says, as the newest version of the row tells it.

    Raises:
        msgspec.DecodeError: it breaks the schema of its own version, as builds of then saw it.
        UnknownEvent: this build fails to lift it, which is a fault of this build.
    """
    msgspec.json.decode(data, type=row.payload_of(version))
    fields = msgspec.json.decode(data)
    try:
        for older in row.older[version - 1 :]:
            fields = older.lift(fields)
        return msgspec.json.decode(_encode(fields), type=row.payload)
    except Exception as fault:  # any fault of a lift is the same to its readers
        raise UnknownEvent(
            f"{row.name}: version {version} could not be lifted to {row.version} ({fault}), which "
            "is a fault of this build; upgrade Apportion, and report it with this event"
        ) from fault
