"""Whether the ledger is set up as it must be, and takes what this process appends.

A stream that is changed under a running service would go on taking events, and drop others for
each: so nothing is appended and nothing decided until it is put back. A ledger without room refuses
every append, and one whose disk is full may not answer at all: then nothing is placed, and nothing
is lost, but somebody has to make room. Invariants: a service is not ready from the look that finds
a wrong setting to the one that finds none, and says once what is wrong; that nobody could look says
nothing, for others say that the ledger is away; nor is it ready from the first append that was not
taken until one is answered again, or nobody tries more."""

import asyncio
import contextlib
from typing import Final, Protocol

from apportion.runtime.jetstream.stream import Look
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.logs import Logger
from apportion.runtime.process.metrics import Metrics

LOOK_S: Final = 40.0
"""A pause is half of it to all of it: every 30 s, and all services at different times."""
LOOK_AGAIN_S: Final = 4.0
STEP: Final = 0.0025
"""Of the ledger's room: once a service has appended so much it looks again at once. What others
append until then is not known to it.
"""
FULL: Final = (
    "the ledger is full, so nothing is placed: archive and trim it, or raise the stream's "
    "max_bytes (apportion ledger resize)"
)
FORGOTTEN_S: Final = 60.0
"""Whoever has something to append tries again long before."""
TROUBLES: Final = {
    "full": (
        "the ledger is full, so nothing is placed: give its server more disk, or raise its "
        "max_file_store, or the stream's max_bytes (apportion ledger resize)"
    ),
    "unknown": (
        "the ledger acknowledges nothing: look at the log and the disk of nats-server; one whose "
        "disk was full must be started again"
    ),
}


class Examined(Protocol):
    """What looks at the ledger's set-up, and holds what is appended while it is wrong."""

    async def look(self) -> Look:
        """What is not as it must be. Raises LedgerUnavailable."""

    def hold(self, why: str) -> None:
        """Append nothing, for this reason; the empty one ends it."""


class Soundness:
    """What the last look at the ledger's set-up found, and what came of the newest appends, through
    all lives of a service. Hand `note` to `jetstream.connect` as `watch`."""

    def __init__(self, metrics: Metrics, clock: Clock, log: Logger) -> None:
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._outcome = ""
        self._at_s = 0.0
        self._drifted: tuple[str, ...] = ()
        self._lost = 0
        self._free = 1.0
        self._room_bytes = 0
        self._spent_bytes = self._spent_before_bytes = 0
        self._due = asyncio.Event()
        self._sound = asyncio.Event()
        self._sound.set()
        metrics.gauge(
            "apportion_ledger_full", "1 while the ledger refuses appends for want of room."
        ).set_function(lambda: float(self.trouble() == "full"))
        metrics.gauge(
            "apportion_ledger_drifted",
            "Settings of the stream, or of a consumer of this process, that are not as they must "
            "be; /readyz names them.",
        ).set_function(lambda: len(self._drifted))
        metrics.gauge(
            "apportion_ledger_free_ratio",
            "The part of the stream's max_bytes that is free; 1 where it has none.",
        ).set_function(self.free)
        metrics.gauge(
            "apportion_ledger_lost_records",
            "Records that are gone between the first and the last of the ledger.",
        ).set_function(lambda: self._lost)

    def not_ready(self) -> list[str]:
        """What is wrong, each with its fix; empty where nothing is."""
        trouble = self.trouble()
        return [
            *([TROUBLES[trouble]] if trouble else ()),
            *self._drifted,
            *([FULL] if self._free <= 0 else ()),
        ]

    def note(self, outcome: str, drafts: int, seconds: float) -> None:
        """Count one append that has ended, by its outcome."""
        self._metrics.appended(outcome, drafts, seconds)
        if outcome != "unavailable":  # whether we are connected says nothing about room
            self._outcome, self._at_s = outcome, self._clock.monotonic()

    def trouble(self) -> str:
        """`full` or `unknown` if the newest append of the last minute failed so, else empty."""
        recent = self._clock.monotonic() - self._at_s < FORGOTTEN_S
        return self._outcome if recent and self._outcome in TROUBLES else ""

    def drifted(self) -> bool:
        """Whether the last look found a setting that is not as it must be."""
        return bool(self._drifted)

    def free(self, after_bytes: int = 0) -> float:
        """The part of the stream's `max_bytes` that is free; 1 without one.

        As of the last look, less what this service was about to append since the one before: that
        was perhaps under way still. `after_bytes` is what is to be appended as well."""
        if not self._room_bytes:
            return 1.0
        spent_bytes = self._spent_before_bytes + self._spent_bytes + after_bytes
        return self._free - spent_bytes / self._room_bytes

    def spend(self, size_bytes: int) -> None:
        """Note what this service is about to append, so that what is free is not long out of date.

        Only writers need it whose appends end at a part of the room: see `intake`."""
        self._spent_bytes += size_bytes
        if self._spent_bytes > STEP * self._room_bytes > 0:
            self._due.set()

    async def sound(self) -> None:
        """Return once nothing is known to be wrong: at once, as a rule."""
        await self._sound.wait()

    async def watch(self, ledger: Examined) -> None:
        """Look now and then, until cancelled. What is opened was looked at, so it begins sound."""
        self._note((), ledger)
        while True:
            self._due.clear()
            before_bytes = self._spent_bytes
            with contextlib.suppress(LedgerUnavailable):
                look = await ledger.look()
                self._free, self._room_bytes = look.free, look.room_bytes
                self._spent_before_bytes = before_bytes
                self._spent_bytes -= before_bytes
                self._note(look.drifted, ledger)
                if look.lost > self._lost:
                    self._log.critical(
                        "the ledger lost events: who begins anew may have to stop; see recovery",
                        records=look.lost,
                    )
                self._lost = look.lost
            # Rest until it is time for the next look, or so much was appended that it is due.
            wrong = self._drifted or self._free <= 0
            pause = self._clock.pause(LOOK_AGAIN_S if wrong else LOOK_S)
            waits = [asyncio.ensure_future(each) for each in (pause, self._due.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()

    def _note(self, drifted: tuple[str, ...], ledger: Examined) -> None:
        if drifted and drifted != self._drifted:
            self._log.error("nothing is appended while the ledger is not sound", found=drifted)
        if self._drifted and not drifted:
            self._log.warning(
                "the ledger's settings are as they must be again; `apportion verify` tells whether "
                "events were lost meanwhile"
            )
        self._drifted = drifted
        ledger.hold("; ".join(drifted))
        if drifted:
            self._sound.clear()
        else:
            self._sound.set()
