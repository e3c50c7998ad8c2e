"""Who of a service beats, as heard by somebody who does not: see `membership`.

Invariant: what is said of a member is its last word, and not older than `SILENT_S`; a life that was
not heard again since another one of its name came is over, so a process that was killed and began
anew is one.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from apportion.runtime.ledger.membership import BEAT_S, MEMBERS_MAX, SILENT_ROUNDS, Beat
from apportion.runtime.ledger.port import Ledger
from apportion.runtime.process.clock import Clock
from apportion_schemas.catalogue import token
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import Name

SILENT_S: Final = BEAT_S * SILENT_ROUNDS

_decode = from_outside(msgspec.json.Decoder(Beat).decode)


class _Heard(msgspec.Struct):
    """When a member was heard first and last, and its last word."""

    first_s: float
    last_s: float
    here: bool
    frozen: str = ""


class Attendance:
    """One listener; `service` is whose beats it hears."""

    def __init__(self, service: str, clock: Clock) -> None:
        self._subject = f"apportion.beat.{service}.>"
        self._clock = clock
        self._heard: dict[str, _Heard] = {}
        self._since_s: float | None = None

    async def listen(self, ledger: Ledger) -> None:
        """Hear beats from now on. Raises LedgerUnavailable, NotPermitted."""
        await ledger.serve(self._subject, self._note)
        self._since_s = self._clock.monotonic()

    def absent(self) -> bool:
        """Whether no member is there; False until this listener could have heard one."""
        since_s = self._since_s
        listened = since_s is not None and self._clock.monotonic() - since_s > SILENT_S
        return listened and not self.members()

    def frozen(self) -> str:
        """Why a member that is there cannot do its work; empty where all can."""
        said = (self._heard[member].frozen for member in self.members())
        return next(filter(None, said), "")

    def members(self) -> tuple[str, ...]:
        """Those who are there, in order, each as `name/life`."""
        oldest_s = self._clock.monotonic() - SILENT_S
        self._heard = {name: said for name, said in self._heard.items() if said.last_s >= oldest_s}
        here = {name: said for name, said in self._heard.items() if said.here}
        came_s: dict[str, float] = {}
        for member, said in here.items():
            name = _name(member)
            came_s[name] = max(said.first_s, came_s.get(name, said.first_s))
        return tuple(sorted(each for each in here if here[each].last_s >= came_s[_name(each)]))

    async def _note(self, subject: str, payload: bytes) -> None:
        del subject
        try:
            beat = _decode(payload)
        except msgspec.DecodeError:
            return  # schedulers say so in their logs
        now_s = self._clock.monotonic()
        heard = self._heard.get(beat.member)
        if heard is not None:
            heard.last_s, heard.here, heard.frozen = now_s, beat.here, beat.frozen
        elif len(self._heard) < MEMBERS_MAX:
            self._heard[beat.member] = _Heard(now_s, now_s, beat.here, beat.frozen)


def _name(member: str) -> str:
    """Of a member, without which life of it this is."""
    return member.rpartition("/")[0]


AGENTS: Final = "apportion.beat.agent.*"
"""The subjects of all agents' beats."""
AGENT_BEAT_S: Final = 6.0
"""The longest between two beats of an agent; the shortest is half of it."""


class AgentBeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node whose agent is there: a list of one. `leaves`: it is about to stop.

    An agent sends it again and again, and no stream stores it. Each node has a subject of its own,
    on which the server lets its agent alone send. Invariants: a beat says of a node that the agent
    which hands out its shares folds the ledger, and an agent that cannot does not beat; a beat is
    believed about the node of its subject and about no other.
    """

    nodes: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=1)]
    leaves: bool = False


_encode = msgspec.json.Encoder().encode
_decode_agent = from_outside(msgspec.json.Decoder(AgentBeat).decode)


def beat_of(node: str, *, leaves: bool = False) -> tuple[str, bytes]:
    """The beat of a node's agent, with its subject."""
    beat = AgentBeat(nodes=(node,), leaves=leaves)
    return f"apportion.beat.agent.{token(node)}", _encode(beat)


def read_beat(subject: str, payload: bytes) -> tuple[str, bool]:
    """The node that a beat is of, and whether its agent is about to stop.

    Raises msgspec.DecodeError; ValueError where it came on the subject of another node.
    """
    beat = _decode_agent(payload)
    (node,) = beat.nodes
    if subject != f"apportion.beat.agent.{token(node)}":
        raise ValueError(f"it speaks of node {node}")
    return node, beat.leaves
