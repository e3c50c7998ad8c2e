"""What an agent says over and over so that it is known to be there; nobody stores it.

One beat may be of many nodes, as a simulated fleet has one agent. Invariant: a beat says of a node
that whoever hands out its shares folds the ledger; an agent that cannot does not beat.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from apportion_schemas.catalogue import token
from apportion_schemas.quantities import Name

AGENTS: Final = "apportion.beat.agent.>"
"""The subjects of all agents' beats."""
AGENT_BEAT_S: Final = 6.0
"""The longest between two beats of an agent; the shortest is half of it."""
NODES_MAX: Final = 500
"""In one beat."""


class AgentBeat(msgspec.Struct, frozen=True):
    """The nodes whose agent is there."""

    nodes: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=NODES_MAX)]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AgentBeat).decode


def beats_of(nodes: Sequence[str]) -> Iterable[tuple[str, bytes]]:
    """The beats of an agent of these nodes, each with its subject."""
    for first in range(0, len(nodes), NODES_MAX):
        some = tuple(nodes[first : first + NODES_MAX])
        yield f"apportion.beat.agent.{token(some[0])}", _encode(AgentBeat(nodes=some))


def nodes_of(payload: bytes) -> tuple[str, ...]:
    """The nodes that a beat is of. Raises msgspec.DecodeError."""
    return _decode(payload).nodes
