"""Checks that the ledger has the required settings and accepts our appends.

With changed settings a stream could drop events, so nothing is appended until they are restored.
Invariant: a service is not ready while the last check found a wrong setting, or found no server
that serves the stream. After another failed append, the service is not ready until an append
succeeds or none was tried for a minute."""

import asyncio
from typing import Final, Protocol

from apportion.runtime.jetstream.stream import Look
from apportion.runtime.ledger.port import LedgerUnavailable, NotServed
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.logs import Logger
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.process.waiting import first_of

LOOK_S: Final = 40.0  # a pause takes 50 to 100 % of it, so services check at different times
LOOK_AGAIN_S: Final = 4.0
# Part of the ledger's room: after appending so much a service checks at once, because it does not
# know what others append.
STEP: Final = 0.0025
FULL: Final = (
    "the ledger is full, so no pod is placed; archive and trim it, or raise the stream's "
    "max_bytes (apportion ledger resize)"
)
FORGOTTEN_S: Final = 60.0  # a writer that still has something to append retries much sooner
TROUBLES: Final = {
    "full": (
        "the ledger is full, so no pod is placed; give its server more disk, or raise its "
        "max_file_store, or the stream's max_bytes (apportion ledger resize)"
    ),
    "unknown": (
        "the ledger does not acknowledge appends; check the log and the disk of nats-server, and "
        "restart it if its disk was full"
    ),
    "unserved": (
        "nats-server does not serve the ledger; check its log and its disk, and restart it if the "
        "disk was full, because it then disables JetStream"
    ),
}


class Examined(Protocol):
    """A ledger that can check its settings, and that blocks appends while a setting is wrong."""

    async def look(self) -> Look:
        """Return the wrong settings and the free space. Raises LedgerUnavailable."""

    def hold(self, why: str) -> None:
        """Block appends for the reason `why`; an empty reason resumes appends."""


class Soundness:
    """The known problems of the ledger, kept across restarts of the service."""

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
            "apportion_ledger_full", "1 while the ledger rejects appends because it is full."
        ).set_function(lambda: float(self.trouble() == "full"))
        metrics.gauge(
            "apportion_ledger_drifted",
            "Number of wrong settings of the ledger's stream or of this process's consumers; "
            "/readyz lists them.",
        ).set_function(lambda: len(self._drifted))
        metrics.gauge(
            "apportion_ledger_free_ratio",
            "Free fraction of the ledger's size limit, from 0 to 1; 1 if there is no limit.",
        ).set_function(self.free)
        metrics.gauge(
            "apportion_ledger_lost_records",
            "Number of events missing between the first and the last event of the ledger.",
        ).set_function(lambda: self._lost)

    def not_ready(self) -> list[str]:
        """Return the problems, each with its fix; empty if there are none."""
        trouble = self.trouble()
        return [
            *([TROUBLES[trouble]] if trouble else ()),
            *self._drifted,
            *([FULL] if self._free <= 0 else ()),
        ]

    def note(self, outcome: str, drafts: int, seconds: float) -> None:
        """Record the outcome of one append that has ended."""
        self._metrics.appended(outcome, drafts, seconds)
        if outcome == "unserved" and outcome != self._outcome:
            self._due.set()
        if outcome != "unavailable":  # a lost connection is no sign of missing room
            self._outcome, self._at_s = outcome, self._clock.monotonic()

    def trouble(self) -> str:
        """Return why appends fail or just failed, as a key of `TROUBLES`; empty if they succeed."""
        recent = self._clock.monotonic() - self._at_s < FORGOTTEN_S or self._outcome == "unserved"
        return self._outcome if recent and self._outcome in TROUBLES else ""

    def drifted(self) -> bool:
        """Return True if the last check found a wrong setting."""
        return bool(self._drifted)

    def free(self, after_bytes: int = 0) -> float:
        """Return the free part of the stream's `max_bytes`, or 1 if there is no limit."""
        if not self._room_bytes:
            return 1.0
        # Appends since the check before the last one may not have been stored by the last.
        spent_bytes = self._spent_before_bytes + self._spent_bytes + after_bytes
        return self._free - spent_bytes / self._room_bytes

    def spend(self, size_bytes: int) -> None:
        """Count bytes that an intake is about to append, so that `free` stays current."""
        self._spent_bytes += size_bytes
        if self._spent_bytes > STEP * self._room_bytes > 0:
            self._due.set()

    async def sound(self) -> None:
        """Wait until all settings of the ledger are correct, as far as they were checked."""
        await self._sound.wait()

    async def watch(self, ledger: Examined) -> None:
        """Check the ledger at intervals, until cancelled. The first check was done on opening."""
        self._note((), ledger)
        while True:
            self._due.clear()
            before_bytes = self._spent_bytes
            try:
                look = await ledger.look()
            except NotServed:
                self._outcome = "unserved"
            except LedgerUnavailable:
                pass
            else:
                self._outcome = "" if self._outcome == "unserved" else self._outcome
                self._free, self._room_bytes = look.free, look.room_bytes
                self._spent_before_bytes = before_bytes
                self._spent_bytes -= before_bytes
                self._note(look.drifted, ledger)
                if look.lost > self._lost:
                    self._log.critical(
                        "the ledger lost events, so a restarted service may halt; see "
                        "docs/tasks/ledger-problems.md#the-ledger-lost-events",
                        records=look.lost,
                    )
                self._lost = look.lost
            # Wait for the next check, or until enough was appended to make it due.
            wrong = self._drifted or self._outcome == "unserved" or self._free <= 0
            pause = self._clock.pause(LOOK_AGAIN_S if wrong else LOOK_S)
            await first_of(pause, self._due.wait())

    def _note(self, drifted: tuple[str, ...], ledger: Examined) -> None:
        if drifted and drifted != self._drifted:
            self._log.error("appends paused, because the ledger has wrong settings", found=drifted)
        if self._drifted and not drifted:
            self._log.warning(
                "the ledger's settings are correct again; run `apportion verify` to check for lost "
                "events"
            )
        self._drifted = drifted
        ledger.hold("; ".join(drifted))
        if drifted:
            self._sound.clear()
        else:
            self._sound.set()
