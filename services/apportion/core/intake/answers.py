"""The protocol between agent and intake: one NATS request per event.

    apportion.intake.<node>   the event as it would be on the ledger   ──►   Answer

The server lets an agent publish only on its own node's subject, so the subject identifies the
agent. Invariant: an event's message id contains the node, so it cannot equal another node's id."""

import hashlib
import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from apportion_schemas.catalogue import token, untoken
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import NAME_MAX

SUBJECT: Final = "apportion.intake"
SUBJECTS_OF_ALL: Final = f"{SUBJECT}.*"
GROUP: Final = "intake"  # the queue group in which intakes share requests
_NODE_CHARS_MAX: Final = 253
_ID_CHARS_MAX: Final = 240
WHY_MAX: Final = 1_024

# Why an event is not appended; `ReportRefused` takes any name, so new causes need no new version
Cause = Literal[
    "unreadable",
    "too-large",
    "too-many",
    "flapping",
    "unknown-format",
    "invalid",
    "not-an-agents",
    "foreign-node",
    "foreign-source",
    "foreign-reply",
    "future-basis",
    "implausible-time",
    "implausible-device",
    "device-of-another-node",
    "unknown-device",
    "pod-of-another-node",
    "implausible-use",
    "late",
    "stale",
]
# Causes that honest agents meet too, when the state changes in the meantime; not reported
EXPECTED: Final = frozenset(("late", "stale"))

# An agent's inbox, or the server's reply subject in the agents' account, outside the ledger's
_back = re.compile(r"(_R_|_INBOX_agent[A-Za-z0-9_~%-]*)(\.[A-Za-z0-9_~%-]+)+").fullmatch


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The intake's answer to an agent's event: appended, refused, or to be sent again.

    If `again_s` is set, the agent sends the event again after that many seconds."""

    revision: int | None = None  # of the appended event, if known
    duplicate: bool = False  # appended before
    refused: Annotated[str, Meta(max_length=64)] = ""
    why: Annotated[str, Meta(max_length=2 * WHY_MAX)] = ""
    again_s: Annotated[float, Meta(ge=0, le=600)] = 0.0
    held: bool = False  # must be reported twice


encode_answer = msgspec.json.Encoder().encode
decode_answer = from_outside(msgspec.json.Decoder(Answer).decode)


def subject_of_node(node: str, of: str = SUBJECT) -> str:
    """Return the subject on which this node's agent sends; `of` is its prefix."""
    return f"{of}.{token(node)}"


def node_of_subject(subject: str, of: str = SUBJECT) -> str:
    """Return the node whose agent sends on this subject; empty for any other subject."""
    found = subject.removeprefix(f"{of}.")
    node = untoken(found)
    return node if token(node) == found and len(node) <= NAME_MAX else ""


def append_id(node: str, event_id: str) -> str:
    """Return the message id under which to append an agent's event; it includes the node."""
    return f"intake/{_part(token(node), _NODE_CHARS_MAX)}/{_part(event_id, _ID_CHARS_MAX)}"


def refused_id(node: str, cause: str, hour: int) -> str:
    """Return the message id of a ReportRefused event: one id per node, cause and hour."""
    return f"intake-refused/{_part(token(node), _NODE_CHARS_MAX)}/{cause}/{hour}"


def _part(text: str, most: int) -> str:
    """Return the text, or its SHA-256 if the text cannot be part of a message id."""
    if len(text) > most or not (text.isascii() and text.isprintable()):
        return hashlib.sha256(text.encode()).hexdigest()
    return text


def may_be_answered(reply: str) -> bool:
    """Return True if this reply subject is one that agents may use."""
    return _back(reply) is not None
