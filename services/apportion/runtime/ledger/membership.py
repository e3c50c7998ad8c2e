"""Who else of one service is there: beats over plain messages, which nobody stores.

    "who is there?" ──► those who hear it answer ──► folded up to now: "here" ──► "here" … "gone"

Several replicas share their work by this list, and nothing else hangs on it: it may be wrong for a
while, and differ between members, and the ledger's fences see to it that no harm is done.

Invariants: a member counts others before it counts itself, so whoever joins takes over at once and
makes nobody wait; silence is counted in rounds of one's own, so a process that was stopped, or had
no processor, does not take itself for the only one left; what cannot be folded any more by a member
is done by the others.
"""

from __future__ import annotations

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

BEAT_S: Final = 0.6
"""The longest between two beats; the shortest is half of it."""
SILENT_ROUNDS: Final = 4
"""After so many rounds without a beat a member is taken to be gone: 1.2 to 2.4 s."""
LISTEN_S: Final = 0.3
MEMBERS_MAX: Final = 64
MEMBER_CHARS_MAX: Final = 256

_log = get_logger(__name__)
MembersChanged = Callable[[tuple[str, ...]], None]


class Beat(msgspec.Struct, frozen=True):
    """What a member says of itself; `here` is whether it takes its part of the work.

    `frozen` is why it cannot do that work at the moment, a key of `FREEZES`; empty where it can.
    """

    member: Annotated[str, msgspec.Meta(min_length=1, max_length=MEMBER_CHARS_MAX)]
    here: bool
    frozen: str = ""


_encode = msgspec.json.Encoder().encode
_decode = from_outside(msgspec.json.Decoder(Beat).decode)


async def beat(ledger: Ledger, service: str, *, clock: Clock) -> None:
    """Let others hear until cancelled that a process of this service runs."""
    subject, payload = f"apportion.beat.{service}.any", _encode(Beat(member=service, here=True))
    while True:
        with contextlib.suppress(LedgerUnavailable):
            await ledger.publish(subject, payload)
        await clock.pause(BEAT_S)


class _Heard:
    """Another member: its last word, and for how many rounds it has been silent."""

    __slots__ = ("here", "silent")

    def __init__(self, *, here: bool) -> None:
        self.here = here
        self.silent = 0


class Membership:
    """One member's list of the members of its service, itself among them.

    `member` must be of this life of this process alone. `on_change` is called with the list, in
    order, when this member joins and whenever it has changed since. `frozen` fills that field of
    each beat.
    """

    def __init__(
        self,
        ledger: Ledger,
        service: str,
        member: str,
        *,
        clock: Clock,
        metrics: Metrics,
        on_change: MembersChanged,
        frozen: Callable[[], str] = str,
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
            "apportion_members", "Replicas of this service that are there, as heard here."
        ).set_function(lambda: len(self.members))

    def not_ready(self) -> list[str]:
        """Why this member takes no part of the work; empty once it does."""
        return [] if self._joined.is_set() else ["listening for the other members"]

    async def joined(self) -> None:
        """Return once this member takes its part of the work."""
        await self._joined.wait()

    async def run(self, reader: Reader[Any]) -> None:
        """Beat and listen until cancelled; join once the ledger is folded up to now.

        A member whose fold has halted leaves, and is heard no more as one that is here.

        Raises:
            LedgerUnavailable, NotPermitted: nobody can be heard.
        """
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
        with contextlib.suppress(LedgerUnavailable):  # nobody hears us, and we are not counted
            await self._ledger.publish(self._subjects + token(self.member), _encode(beat))

    async def _note_beat(self, subject: str, payload: bytes) -> None:
        """One beat; who has not been heard before learns that we are there."""
        try:
            beat = _decode(payload)
        except msgspec.DecodeError as error:
            self._ignore(f"a beat on {subject} that cannot be read: {error}")
            return
        if beat.member == self.member:
            return
        heard = self._heard.get(beat.member)
        if heard is None:
            if len(self._heard) >= MEMBERS_MAX:
                self._ignore(f"a beat on {subject}: there are {MEMBERS_MAX} members already")
                return
            self._heard[beat.member] = _Heard(here=beat.here)
            await self._beat()
        else:
            heard.here, heard.silent = beat.here, 0
        self._tell()

    def _ignore(self, what: str) -> None:
        """Say it once; what comes every half second is not worth a line each."""
        if not self._ignoring:
            _log.warning("ignored", what=what)
        self._ignoring = True

    def _count_silence(self) -> None:
        """One more round: who has been silent for too many is gone."""
        for heard in self._heard.values():
            heard.silent += 1
        self._heard = {
            name: heard for name, heard in self._heard.items() if heard.silent <= SILENT_ROUNDS
        }

    def _tell(self) -> None:
        """Tell of the list if it is another than before; nobody is told who has not joined."""
        if not (self._here or self._joined.is_set()):
            return
        here = {name for name, heard in self._heard.items() if heard.here} | {self.member}
        members = tuple(sorted(here))
        if members != self.members:
            self.members = members
            _log.info("members", here=list(members))
            self._on_change(members)
        self._joined.set()
