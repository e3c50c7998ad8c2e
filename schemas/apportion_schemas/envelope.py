"""Bytes to events and back: CloudEvents 1.0, structured JSON.

Three extension attributes carry what the ledger needs: `schemaversion`, `basis` (the revision that
the writer had folded) and `cause` (the revision that made it write).

Invariant: `decode` either returns an event whose type, version, payload and subject are all in the
catalogue, or raises. `UnknownEvent` means that a newer writer exists, so a reader must stop there;
`UnreadableEvent` and `InvalidEvent` mean that every reader, however new, refuses these bytes.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from apportion_schemas.catalogue import BY_PAYLOAD, BY_TYPE, subject_of
from apportion_schemas.quantities import Name, Natural, Payload

EVENT_BYTES_MAX = 1 << 20  # the stream's max_msg_size
ID_BYTES_MAX = 512


class EventError(Exception):
    """An event that cannot be used; the message names the attribute, the value and the cure."""


class UnreadableEvent(EventError):
    """The bytes are not a CloudEvents 1.0 JSON document."""


class UnknownEvent(EventError):
    """The type or its version is not in this build's catalogue: a newer writer exists."""


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


_decode_wire = msgspec.json.Decoder(_Wire).decode
_decode_data = {row.type: msgspec.json.Decoder(row.payload).decode for row in BY_TYPE.values()}
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
        _decode_data[row.type](data)
        payload = _encode(
            _Wire(
                specversion="1.0",
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


def decode(payload: bytes, *, subject: str) -> Event:
    """The event in these bytes, which came on this NATS subject.

    Raises:
        UnreadableEvent, UnknownEvent, InvalidEvent: see the module.
    """
    try:
        wire = _decode_wire(payload)
    except _NOT_TEXT as error:
        raise UnreadableEvent(f"not a CloudEvents 1.0 document: {error}") from None
    row = BY_TYPE.get(wire.type)
    if row is None:
        raise UnknownEvent(f"type {wire.type!r} is not known to this build: upgrade Apportion")
    if wire.schemaversion != row.version or wire.specversion != "1.0":
        raise UnknownEvent(
            f"{row.name}: schemaversion {wire.schemaversion} (CloudEvents {wire.specversion}) is "
            f"not known to this build, which reads {row.version}: upgrade Apportion"
        )
    try:
        data: Payload = _decode_data[wire.type](wire.data)
    except _NOT_TEXT as error:
        raise InvalidEvent(f"{row.name}: {error}") from None
    if subject_of(data) != subject:
        raise InvalidEvent(
            f"{row.name}: stands on subject {subject!r} and belongs on {subject_of(data)!r}"
        )
    return Event(
        id=wire.id,
        source=wire.source,
        time=wire.time,
        data=data,
        basis=wire.basis,
        cause=wire.cause,
    )
