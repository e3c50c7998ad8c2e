"""Finds the live replicas of a service by heartbeats: plain messages, never stored.

    new replica: ask "who is there?" ──► hear the others ──► fold up to now ──► "here" … "gone"

Replicas use this list only to share work. The list may be wrong for a while; the ledger's fences
prevent harm. Invariant: a replica hears the others before it joins, so its first list is complete.
A paused process does not assume it is alone, because it counts silence in its own rounds."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from apportion.runtime.ledger.port import Ledger, LedgerUnavailable
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.metrics import Metrics
from apportion_schemas.catalogue import token
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import Name

BEAT_S: Final = 0.6  # the longest time between two beats; the shortest is half of it
SILENT_ROUNDS: Final = 4  # rounds without a beat until a member counts as gone: 1.2 to 2.4 s
LISTEN_S: Final = 0.3
MEMBERS_MAX: Final = 64
MEMBER_CHARS_MAX: Final = 256

_log = get_logger(__name__)
MembersChanged = Callable[[tuple[str, ...]], None]


class Beat(msgspec.Struct, frozen=True):
    """A heartbeat that a replica sends to the other replicas of its service."""

    member: Annotated[str, msgspec.Meta(min_length=1, max_length=MEMBER_CHARS_MAX)]
    here: bool  # the replica does its part of the work
    frozen: str = ""  # a key of `FREEZES` while it cannot work


_encode = msgspec.json.Encoder().encode
_decode = from_outside(msgspec.json.Decoder(Beat).decode)


async def beat(ledger: Ledger, service: str, *, clock: Clock) -> None:
    """Send heartbeats of this service until cancelled."""
    subject, payload = f"apportion.beat.{service}.any", _encode(Beat(member=service, here=True))
    while True:
        with contextlib.suppress(LedgerUnavailable):
            await ledger.publish(subject, payload)
        await clock.pause(BEAT_S)


class _Heard(msgspec.Struct):
    here: bool
    silent: int = 0  # rounds since its last beat


class Membership:
    """One replica's list of the live replicas of its service, including itself."""

    def __init__(
        self,
        ledger: Ledger,
        service: str,
        member: str,  # unique to this run of the process
        *,
        clock: Clock,
        metrics: Metrics,
        on_change: MembersChanged,  # gets the sorted list on joining and after each change
        frozen: Callable[[], str] = str,  # fills that field of each beat
    ) -> None:
        self._ledger = ledger
        self._subjects = f"apportion.beat.{service}."
        self._clock = clock
        self._on_change = on_change
        self._frozen = frozen
        self._heard: dict[str, _Heard] = {}
        self._here = False
        self._joined = asyncio.Event()
        self._ignoring = False
        self.member = member
        self.members: tuple[str, ...] = ()
        metrics.gauge(
            "apportion_members",
            "Number of running schedulers that this scheduler knows, including itself.",
        ).set_function(lambda: len(self.members))

    def not_ready(self) -> list[str]:
        """Return why this replica does not share the work yet; empty once it does."""
        return [] if self._joined.is_set() else ["waiting for the other replicas to report"]

    async def joined(self) -> None:
        """Wait until this replica shares the work."""
        await self._joined.wait()

    async def run(self, reader: Reader[Any]) -> None:
        """Send and receive heartbeats until cancelled. Join once folded; leave if `reader` halts.

        Raises LedgerUnavailable, NotPermitted."""
        await self._ledger.serve(f"{self._subjects}>", self._note_beat)
        try:
            await self._beat()
            await self._clock.pause(LISTEN_S)
            await reader.caught_up()
            while True:
                self._here = not reader.halted
                self._count_silence()
                self._tell()
                await self._beat()
                await self._clock.pause(BEAT_S)
        finally:
            self._here = False
            await self._beat()

    async def _beat(self) -> None:
        beat = Beat(member=self.member, here=self._here, frozen=self._frozen())
        with contextlib.suppress(LedgerUnavailable):  # unheard, we are simply not counted
            await self._ledger.publish(self._subjects + token(self.member), _encode(beat))

    async def _note_beat(self, subject: str, payload: bytes) -> None:
        try:
            beat = _decode(payload)
        except msgspec.DecodeError as error:
            self._ignore(f"unreadable heartbeat on {subject}: {error}")
            return
        if beat.member == self.member:
            return
        heard = self._heard.get(beat.member)
        if heard is None:
            if len(self._heard) >= MEMBERS_MAX:
                self._ignore(
                    f"heartbeat on {subject}: the limit of {MEMBERS_MAX} members is reached"
                )
                return
            self._heard[beat.member] = _Heard(here=beat.here)
            await self._beat()
        else:
            heard.here, heard.silent = beat.here, 0
        self._tell()

    def _ignore(self, what: str) -> None:
        if not self._ignoring:  # log only the first: beats come every half second
            _log.warning("ignored", what=what)
        self._ignoring = True

    def _count_silence(self) -> None:
        for heard in self._heard.values():
            heard.silent += 1
        self._heard = {
            name: heard for name, heard in self._heard.items() if heard.silent <= SILENT_ROUNDS
        }

    def _tell(self) -> None:
        if not (self._here or self._joined.is_set()):
            return
        here = {name for name, heard in self._heard.items() if heard.here} | {self.member}
        members = tuple(sorted(here))
        if members != self.members:
            self.members = members
            _log.info("members", here=list(members))
            self._on_change(members)
        self._joined.set()


SILENT_S: Final = BEAT_S * SILENT_ROUNDS


class _Attendant(msgspec.Struct):
    first_s: float
    last_s: float
    here: bool
    frozen: str = ""


class Attendance:
    """Tracks the live replicas of `service` from a process of another service."""

    def __init__(self, service: str, clock: Clock) -> None:
        self._subject = f"apportion.beat.{service}.>"
        self._clock = clock
        self._heard: dict[str, _Attendant] = {}
        self._since_s: float | None = None

    async def listen(self, ledger: Ledger) -> None:
        """Receive heartbeats from now on. Raises LedgerUnavailable, NotPermitted."""
        await ledger.serve(self._subject, self._note)
        self._since_s = self._clock.monotonic()

    def absent(self) -> bool:
        """Return True if no replica is alive; False while it is too early to know."""
        since_s = self._since_s
        listened = since_s is not None and self._clock.monotonic() - since_s > SILENT_S
        return listened and not self.members()

    def frozen(self) -> str:
        """Return why a live replica cannot work; empty if all replicas can."""
        said = (self._heard[member].frozen for member in self.members())
        return next(filter(None, said), "")

    def members(self) -> tuple[str, ...]:
        """Return the sorted live replicas as `name/life`; `life` differs after a restart."""
        oldest_s = self._clock.monotonic() - SILENT_S
        self._heard = {name: said for name, said in self._heard.items() if said.last_s >= oldest_s}
        here = {name: said for name, said in self._heard.items() if said.here}
        came_s: dict[str, float] = {}
        for member, said in here.items():
            name = _name(member)
            came_s[name] = max(said.first_s, came_s.get(name, said.first_s))
        # An earlier process of the same name counts only if its beat is newer than the later one's.
        return tuple(sorted(each for each in here if here[each].last_s >= came_s[_name(each)]))

    async def _note(self, subject: str, payload: bytes) -> None:
        del subject
        try:
            beat = _decode(payload)
        except msgspec.DecodeError:
            return  # schedulers log it
        now_s = self._clock.monotonic()
        heard = self._heard.get(beat.member)
        if heard is not None:
            heard.last_s, heard.here, heard.frozen = now_s, beat.here, beat.frozen
        elif len(self._heard) < MEMBERS_MAX:
            self._heard[beat.member] = _Attendant(now_s, now_s, beat.here, beat.frozen)


def _name(member: str) -> str:
    return member.rpartition("/")[0]


AGENTS: Final = "apportion.beat.agent.*"  # subjects of all agents' beats
# the longest time between two beats of an agent; the shortest is half of it
AGENT_BEAT_S: Final = 6.0


class AgentBeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Heartbeat of the agent of one node, on a subject to which only this agent can publish.

    Invariant: only an agent that folds the ledger sends heartbeats."""

    nodes: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=1)]
    leaves: bool = False  # it is about to stop


_decode_agent = from_outside(msgspec.json.Decoder(AgentBeat).decode)


def beat_of(node: str, *, leaves: bool = False) -> tuple[str, bytes]:
    """Return subject and payload of a heartbeat of `node`'s agent; `leaves` means it stops."""
    beat = AgentBeat(nodes=(node,), leaves=leaves)
    return f"apportion.beat.agent.{token(node)}", _encode(beat)


def read_beat(subject: str, payload: bytes) -> tuple[str, bool]:
    """Return a heartbeat's node, and True if its agent stops. Raises DecodeError, ValueError."""
    beat = _decode_agent(payload)
    (node,) = beat.nodes
    if subject != f"apportion.beat.agent.{token(node)}":
        raise ValueError(f"the heartbeat is for node {node}")
    return node, beat.leaves
