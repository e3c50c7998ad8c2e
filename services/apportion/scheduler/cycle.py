"""The scheduling cycle: wait, decide, append, fold, again.

    wake ──► decide ──► seal ──► append ──┬─ taken ──────────► fold up to it ──► decide …
                                          └─ refused, unknown ► fold up to now ─► retry …

Invariants: one decision is under way at a time; after an append, whatever became of it, nothing is
decided before the fold has passed everything that the ledger held when its outcome was known.
"""

from __future__ import annotations

import asyncio
import logging

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.placement.engine import RELIEFS, Decision, Engine
from apportion.runtime.clock import Clock
from apportion.runtime.ledger import (
    DuplicateRefused,
    FenceRefused,
    Ledger,
    LedgerFull,
    LedgerUnavailable,
    OutcomeUnknown,
)
from apportion.runtime.metrics import Metrics
from apportion.runtime.publisher import Publisher
from apportion.runtime.reader import Reader
from apportion.scheduler.sealing import seal
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodSubmitted,
)

RETRY_FIRST_S = 0.02
RETRY_MAX_S = 5.0
_STIRS = (*RELIEFS, PodSubmitted, PodGroupObserved, BindFailed, AllocationFailed)
"""Events after which there may be something to decide."""

_log = logging.getLogger(__name__)


class DecisionMetrics:
    """What the scheduler tells about its decisions."""

    def __init__(self, metrics: Metrics, engine: Engine) -> None:
        metrics.gauge("apportion_pending_pods", "Pods that wait for a place.").set_function(
            lambda: engine.pending
        )
        self.decision_seconds = metrics.histogram(
            "apportion_decision_seconds", "Time to decide for one batch of pods."
        )
        self.placements = metrics.counter("apportion_placements_total", "Pods placed.")
        self.refusals = metrics.counter(
            "apportion_refusals_total", "Pods told why they fit nowhere, by each code.", ("code",)
        )

    def note(self, decision: Decision, seconds: float) -> None:
        """Count what the ledger has taken."""
        self.decision_seconds.observe(seconds)
        for event in decision.events:
            if isinstance(event, PodPlaced):
                self.placements.inc()
            elif isinstance(event, PodRefused):
                for code in event.reasons:
                    self.refusals.labels(code.value).inc()


class Cycle:
    """One scheduler's loop over one state."""

    def __init__(self, state: State, ledger: Ledger, *, clock: Clock, publisher: Publisher) -> None:
        self._state = state
        self._ledger = ledger
        self._clock = clock
        self._publisher = publisher
        self._stirred = asyncio.Event()
        self._failures = 0
        self.engine = Engine(state)

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed; give this to the reader."""
        self.engine.observe(change)
        if change.refused or isinstance(change.data, _STIRS):
            self._stirred.set()

    async def run(self, reader: Reader[Change], metrics: DecisionMetrics) -> None:
        """Decide whenever there is something to decide, until cancelled."""
        await reader.caught_up()
        while True:
            self._stirred.clear()
            started = self._clock.monotonic()
            decision = self.engine.decide()
            if not decision.events:
                await self._stirred.wait()
                continue
            seconds = self._clock.monotonic() - started
            if await self._append(decision, reader):
                metrics.note(decision, seconds)

    async def _append(self, decision: Decision, reader: Reader[Change]) -> bool:
        """Append and fold up to the outcome; whether the ledger took the decision."""
        try:
            revisions = await self._ledger.append(
                seal(decision.events, self._state, self._publisher)
            )
        except (FenceRefused, DuplicateRefused) as refusal:
            _log.info("decision refused, deciding again: %s", refusal)
        except (OutcomeUnknown, LedgerUnavailable, LedgerFull) as trouble:
            _log.warning("decision of unknown outcome, reading on: %s", trouble)
            await self._pause()
        else:
            self._failures = 0
            await reader.reached(revisions[-1])
            return True
        await reader.reached(await self._newest())
        self.engine.retry(decision)
        if self._failures:
            await self._pause()
        self._failures += 1
        return False

    async def _newest(self) -> int:
        """The ledger's newest revision; waits for a ledger that is away."""
        while True:
            try:
                return await self._ledger.last_revision()
            except LedgerUnavailable:
                await self._pause()

    async def _pause(self) -> None:
        """Wait, longer each time that an append failed in a row; the first retry is at once."""
        await self._clock.pause(min(RETRY_FIRST_S * 2.0**self._failures, RETRY_MAX_S))
