"""What an agent says over and over so that it is known to be there; nobody stores it.

One beat may be of many nodes, as a simulated fleet has one agent; those have subjects on which the
agent of one node may not send. Invariants: a beat says of a node that whoever hands out its shares
folds the ledger, and an agent that cannot does not beat; the agent of a node speaks of no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from apportion_schemas.catalogue import token
from apportion_schemas.quantities import Name

AGENT: Final = "apportion.beat.agent"
FLEET: Final = "apportion.beat.fleet"
AGENTS: Final = (f"{AGENT}.*", f"{FLEET}.*")
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
        of = AGENT if len(nodes) == 1 else FLEET
        yield f"{of}.{token(some[0])}", _encode(AgentBeat(nodes=some))


def nodes_of(subject: str, payload: bytes) -> tuple[str, ...]:
    """The nodes that a beat is of.

    Raises msgspec.DecodeError; ValueError where it is of others than its sender may speak of.
    """
    nodes = _decode(payload).nodes
    sender = subject.removeprefix(f"{AGENT}.")
    if sender != subject and [token(node) for node in nodes] != [sender]:
        raise ValueError(f"it speaks of {len(nodes)} nodes, as of {nodes[0]}")
    return nodes
