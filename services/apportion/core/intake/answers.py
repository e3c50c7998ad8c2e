"""How an agent and an intake talk: a core NATS request for each event, and its answer in JSON.

    apportion.intake.<node>   the event as it would stand on the ledger   ──►   Answer

The server lets an agent ask on its own node's subject alone, so that subject is who asks.
Invariant: the id under which an event is appended is made of the node and of the agent's id, so it
can be no other writer's, nor another node's."""

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
GROUP: Final = "intake"
"""The queue group in which intakes share what is asked of them."""
_NODE_CHARS_MAX: Final = 253
_ID_CHARS_MAX: Final = 240
WHY_MAX: Final = 1_024

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
"""Why an event is not appended. `ReportRefused` takes any name, so one more is no new version."""
EXPECTED: Final = frozenset(("late", "stale"))
"""What honest agents meet as well: the world moved on while they wrote. Nobody is told of these."""

_back = re.compile(r"(_R_|_INBOX_agent[A-Za-z0-9_~%-]*)(\.[A-Za-z0-9_~%-]+)+").fullmatch
"""An agent's inbox; or the way back into the account of the agents, which the server alone can
write: there the answer goes wherever the agent likes, and the ledger is in another account.
"""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one event.

    It stands at `revision`, where that is known, and had stood there before if `duplicate`; or it
    is `refused`, with the reason in `why`; or it was not taken yet and is to be told anew after
    `again_s` seconds: `held` if it has to be so twice before it is believed."""

    revision: int | None = None
    duplicate: bool = False
    refused: Annotated[str, Meta(max_length=64)] = ""
    why: Annotated[str, Meta(max_length=2 * WHY_MAX)] = ""
    again_s: Annotated[float, Meta(ge=0, le=600)] = 0.0
    held: bool = False


encode_answer = msgspec.json.Encoder().encode
decode_answer = from_outside(msgspec.json.Decoder(Answer).decode)


def subject_of_node(node: str, of: str = SUBJECT) -> str:
    """Where the agent of this node asks; `of` is the subject that ends with the name."""
    return f"{of}.{token(node)}"


def node_of_subject(subject: str, of: str = SUBJECT) -> str:
    """The node whose agent asks there; empty for what is no node's name, or another spelling."""
    found = subject.removeprefix(f"{of}.")
    node = untoken(found)
    return node if token(node) == found and len(node) <= NAME_MAX else ""


def append_id(node: str, event_id: str) -> str:
    """Under which id an agent's event is appended: one that no other writer has, nor other node."""
    return f"intake/{_part(token(node), _NODE_CHARS_MAX)}/{_part(event_id, _ID_CHARS_MAX)}"


def refused_id(node: str, cause: str, hour: int) -> str:
    """Under which id it is told that something of this node was refused in that hour."""
    return f"intake-refused/{_part(token(node), _NODE_CHARS_MAX)}/{cause}/{hour}"


def _part(text: str, most: int) -> str:
    """The text where the ledger takes it as a part of an id; else its digest."""
    if len(text) > most or not (text.isascii() and text.isprintable()):
        return hashlib.sha256(text.encode()).hexdigest()
    return text


def may_be_answered(reply: str) -> bool:
    """Whether a reply goes to an agent, and not to the ledger, a queue or another's inbox."""
    return _back(reply) is not None
