"""What an agent says over and over so that it is known to be there; nobody stores it.

Each node has a subject of its own, on which the server lets its agent alone send. Invariants: a
beat says of a node that whoever hands out its shares folds the ledger, and an agent that cannot
does not beat; a beat is believed of the node of its subject and of no other.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from apportion_schemas.catalogue import token
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import Name

AGENTS: Final = "apportion.beat.agent.*"
"""The subjects of all agents' beats."""
AGENT_BEAT_S: Final = 6.0
"""The longest between two beats of an agent; the shortest is half of it."""


class AgentBeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node whose agent is there: a list of one. `leaves`: it is about to stop."""

    nodes: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=1)]
    leaves: bool = False


_encode = msgspec.json.Encoder().encode
_decode = from_outside(msgspec.json.Decoder(AgentBeat).decode)


def beat_of(node: str, *, leaves: bool = False) -> tuple[str, bytes]:
    """The beat of a node's agent, with its subject."""
    beat = AgentBeat(nodes=(node,), leaves=leaves)
    return f"apportion.beat.agent.{token(node)}", _encode(beat)


def read_beat(subject: str, payload: bytes) -> tuple[str, bool]:
    """The node that a beat is of, and whether its agent is about to stop.

    Raises msgspec.DecodeError; ValueError where it came on the subject of another node.
    """
    beat = _decode(payload)
    (node,) = beat.nodes
    if subject != f"apportion.beat.agent.{token(node)}":
        raise ValueError(f"it speaks of node {node}")
    return node, beat.leaves
