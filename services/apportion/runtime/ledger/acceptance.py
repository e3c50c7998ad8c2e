"""Whether the ledger takes what this process appends, for whoever asks the process how it is.

A ledger without room refuses every append, and one whose disk is full may not answer at all: then
nothing is placed, and nothing is lost, but somebody has to make room. Invariant: the process is not
ready from the first append that was not taken until one is answered again, or nobody tries more.
"""

from __future__ import annotations

from apportion.runtime.process.clock import Clock
from apportion.runtime.process.metrics import Metrics

FORGOTTEN_S = 60.0
"""Whoever has something to append tries again long before."""
TROUBLES = {
    "full": (
        "the ledger is full, so nothing is placed: give its server more disk, or raise its "
        "max_file_store, or the stream's max_bytes (apportion ledger resize)"
    ),
    "unknown": (
        "the ledger acknowledges nothing: look at the log and the disk of nats-server; one whose "
        "disk was full must be started again"
    ),
}


class Acceptance:
    """What came of the newest appends; hand `note` to `jetstream.connect` as `watch`."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._outcome = ""
        self._at_s = 0.0
        metrics.gauge(
            "apportion_ledger_full", "1 while the ledger refuses appends for want of room."
        ).set_function(lambda: float(self.trouble() == "full"))

    def note(self, outcome: str, drafts: int, seconds: float) -> None:
        """Count one append that has ended, by its outcome."""
        self._metrics.appended(outcome, drafts, seconds)
        if outcome != "unavailable":  # whether we are connected says nothing about room
            self._outcome, self._at_s = outcome, self._clock.monotonic()

    def not_ready(self) -> list[str]:
        """What stands against it, with the fix; empty when the ledger takes what it is given."""
        words = TROUBLES.get(self.trouble())
        return [words] if words else []

    def trouble(self) -> str:
        """`full` or `unknown` if the newest append of the last minute failed so, else empty."""
        recent = self._clock.monotonic() - self._at_s < FORGOTTEN_S
        return self._outcome if recent and self._outcome in TROUBLES else ""
