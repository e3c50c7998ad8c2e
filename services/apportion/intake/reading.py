"""Bytes that an agent sent to an event of its node, or to the name of what is wrong with them.

Invariant: what comes out is of a type that an agent may write, about the node that asked, and is
written anew by this build: nothing of the sender's spelling reaches the ledger.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from apportion.core.intake.answers import WHY_MAX, Cause
from apportion.core.intake.judging import AGENTS_EVENTS, Refusal
from apportion_schemas import Event, InvalidEvent, UnknownEvent, UnreadableEvent, decode
from apportion_schemas.catalogue import BY_TYPE, SUBJECTS, token
from apportion_schemas.decoding import from_outside
from apportion_schemas.envelope import EventError

BYTES_MAX: Final = 512 << 10
"""A node of 64 cards, each linked to all others, has half of it."""
AHEAD_MAX: Final = timedelta(days=1)
"""An agent's clock may be wrong; what it writes should not be of another year."""


_CAUSES: Final[dict[type[EventError], Cause]] = {
    UnknownEvent: "unknown-format",
    UnreadableEvent: "unreadable",
    InvalidEvent: "invalid",
}


class _Of(msgspec.Struct):
    node: str


class _Head(msgspec.Struct):
    type: str
    data: _Of


_decode_head = from_outside(msgspec.json.Decoder(_Head).decode)


def read(node: str, payload: bytes, now: datetime) -> Event | Refusal:
    """The event in these bytes, which the agent of this node sent."""
    if len(payload) > BYTES_MAX:
        return Refusal("too-large", f"{len(payload):,} bytes; at most {BYTES_MAX:,}")
    try:
        head = _decode_head(payload)
    except msgspec.DecodeError as error:
        return Refusal("unreadable", _short(error))
    row = BY_TYPE.get(head.type)
    if row is None:
        return Refusal("unknown-format", f"type {head.type[:64]!r} is not known to this intake")
    if row.payload not in AGENTS_EVENTS:
        return Refusal("not-an-agents", f"{row.name} is written by the {row.writer}")
    if head.data.node != node:
        return Refusal("foreign-node", f"{row.name} of node {head.data.node[:253]!r}")
    try:
        event = decode(payload, subject=f"{SUBJECTS}.{row.channel}.{token(node)}")
    except EventError as error:
        return Refusal(_CAUSES[type(error)], _short(error))
    return _timely(event, now)


def _timely(event: Event, now: datetime) -> Event | Refusal:
    try:
        time = datetime.fromisoformat(event.time)
        early = time <= now + AHEAD_MAX
    except (ValueError, TypeError, OverflowError):
        return Refusal("implausible-time", f"{event.time!r} is no time in RFC 3339")
    return event if early else Refusal("implausible-time", f"{event.time} is yet to come")


def _short(error: Exception) -> str:
    return str(error)[:WHY_MAX]
