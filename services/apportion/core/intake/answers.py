"""How an agent and an intake talk: a core NATS request for each event, and its answer in JSON.

    apportion.intake.<node>   the event as it would stand on the ledger   ──►   Answer

The server lets an agent ask on its own node's subject alone, so that subject is who asks.
Invariant: the id under which an event is appended is made of the node and of the agent's id, so it
can be no other writer's, nor another node's.
"""

import hashlib
import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from apportion_schemas.catalogue import token, untoken

SUBJECT: Final = "apportion.intake"
SUBJECTS_OF_ALL: Final = f"{SUBJECT}.*"
GROUP: Final = "intake"
"""The queue group in which intakes share what is asked of them."""
ID_CHARS_MAX: Final = 400
WHY_MAX: Final = 1_024

Cause = Literal[
    "unreadable",
    "too-large",
    "too-many",
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
"""Why an event is not appended."""
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
    `again_s` seconds: `held` if it has to be so twice before it is believed.
    """

    revision: int | None = None
    duplicate: bool = False
    refused: Annotated[str, Meta(max_length=64)] = ""
    why: Annotated[str, Meta(max_length=2 * WHY_MAX)] = ""
    again_s: Annotated[float, Meta(ge=0, le=600)] = 0.0
    held: bool = False


encode_answer = msgspec.json.Encoder().encode
decode_answer = msgspec.json.Decoder(Answer).decode


def subject_of_node(node: str) -> str:
    """Where the agent of this node asks."""
    return f"{SUBJECT}.{token(node)}"


def node_of_subject(subject: str) -> str:
    """The node whose agent asks there; empty for another spelling, where no agent asks."""
    found = subject.removeprefix(f"{SUBJECT}.")
    node = untoken(found)
    return node if token(node) == found else ""


def append_id(node: str, event_id: str) -> str:
    """Under which id an agent's event is appended: one that no other writer has, nor other node."""
    if len(event_id) > ID_CHARS_MAX - len(node):
        event_id = hashlib.sha256(event_id.encode()).hexdigest()
    return f"intake/{token(node)}/{event_id}"


def may_be_answered(reply: str) -> bool:
    """Whether a reply goes to an agent, and not to the ledger, a queue or another's inbox."""
    return _back(reply) is not None
