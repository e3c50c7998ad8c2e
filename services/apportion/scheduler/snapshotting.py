"""Writes snapshots at intervals, in parallel to the cycle.

A scheduler writes a snapshot, in parts, if the newest one is old. Two schedulers may do so at once.
Invariant: a decision waits for at most one part. A failed snapshot only slows the next restart."""

import asyncio
from typing import Final

from apportion.core.ledger.fold import Change
from apportion.core.ledger.snapshot import Taken, Taking
from apportion.core.ledger.state import State
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.port import LedgerFull, LedgerUnavailable, NotPermitted
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.metrics import Metrics

EVERY_EVENTS: Final = 50_000
EVERY_S: Final = 900.0
FEW_EVENTS: Final = 1_000  # fewer are folded faster than a snapshot is fetched
LOOK_S: Final = 5.0
SLICE_ITEMS: Final = 250
ROUNDS_MAX: Final = 4  # each item is taken about so often at most, however fast it changes

_log = get_logger(__name__)


class Snapshotting:
    """One scheduler's loop that writes snapshots of its folded state."""

    def __init__(
        self,
        state: State,
        snapshots: Snapshots,
        *,
        clock: Clock,
        metrics: Metrics,
        every_events: int = EVERY_EVENTS,
    ) -> None:
        self._state = state
        self._snapshots = snapshots
        self._clock = clock
        self._every_events = every_events
        self._taking: Taking | None = None
        self._last = state.revision
        self._last_at = clock.monotonic()
        self._slices = metrics.histogram(
            "apportion_snapshot_pause_seconds",
            "Time for which writing one part of a snapshot blocked the scheduler.",
        )
        self._written = metrics.counter(
            "apportion_snapshots_total", "Snapshots by outcome: written or failed.", ("outcome",)
        )
        metrics.gauge(
            "apportion_snapshot_revision",
            "Revision of the newest snapshot that this scheduler knows.",
        ).set_function(lambda: self._last)

    def observe(self, change: Change) -> None:
        """Update after a change of the fold. Register this method with the reader."""
        if self._taking is not None:
            self._taking.observe(change)

    async def run(self, reader: Reader[Change]) -> None:
        """Write a snapshot whenever one is due, until cancelled."""
        await reader.caught_up()
        while True:
            await self._clock.pause(LOOK_S)
            if self._due() and not reader.halted:
                try:
                    await self.write()
                except (LedgerFull, LedgerUnavailable, NotPermitted) as trouble:
                    self._written.labels("failed").inc()
                    self._last_at = self._clock.monotonic()
                    _log.warning("no snapshot written", error=str(trouble))

    def _due(self) -> bool:
        new = self._state.revision - self._last
        late = self._clock.monotonic() - self._last_at >= EVERY_S
        return new >= self._every_events or (late and new >= min(FEW_EVENTS, self._every_events))

    async def write(self) -> None:
        """Write a snapshot unless another scheduler has just written one.

        Raises LedgerFull, LedgerUnavailable or NotPermitted if the snapshot was not stored."""
        stored = await self._snapshots.written()
        newest = stored[0].revision if stored else 0
        if newest <= self._state.revision:  # a newer one is of another ledger
            self._last = max(self._last, newest)
        if self._due():
            taken = await self.take()
            await self._snapshots.save(taken)
            self._last = taken.revision
            self._written.labels("written").inc()
            _log.info("snapshot written", revision=taken.revision, bytes=taken.size_bytes)
        self._last_at = self._clock.monotonic()

    async def take(self) -> Taken:
        """Take a snapshot in parts, so that other tasks run in between."""
        taking = self._taking = Taking(self._state)
        try:
            slices = ROUNDS_MAX * (taking.due // SLICE_ITEMS + 1)
            while taking.due > SLICE_ITEMS and slices > 0:
                began = self._clock.monotonic()
                taking.step(SLICE_ITEMS)
                self._slices.observe(self._clock.monotonic() - began)
                slices -= 1
                await asyncio.sleep(0)
            began = self._clock.monotonic()
            taken = taking.finish()
            self._slices.observe(self._clock.monotonic() - began)
            return taken
        finally:
            self._taking = None
