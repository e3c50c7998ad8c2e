"""Learns prices for the policy `price`: solves a linear program and appends the result.

The solver runs after enough pods, in a thread, and never blocks the cycle. Invariant: if several
schedulers learn at once, the ledger takes one result. Prices apply from their event on."""

import asyncio
import logging

from msgspec import structs

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.placement.pricing.program import node_types
from apportion.core.placement.pricing.shape_histogram import ShapeHistogram
from apportion.runtime.ledger.fences import Fences
from apportion.runtime.ledger.port import (
    DuplicateRefused,
    FenceRefused,
    Ledger,
    LedgerFull,
    LedgerUnavailable,
    OutcomeUnknown,
)
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.solver import NoPrices, learn
from apportion_schemas import PodSubmitted

_log = logging.getLogger(__name__)


class Learning:
    """One scheduler's loop that learns prices from the ledger."""

    def __init__(self, state: State, ledger: Ledger, publisher: Publisher) -> None:
        self._state = state
        self._ledger = ledger
        self._publisher = publisher
        self._histogram = ShapeHistogram(state)
        self._fences = Fences()
        self._due = asyncio.Event()

    def observe(self, change: Change) -> None:
        """Count the pods in a change of the fold. Register this method with the reader."""
        self._histogram.observe(change)
        if isinstance(change.data, PodSubmitted) and self._histogram.due:
            self._due.set()

    async def run(self, reader: Reader[Change]) -> None:
        """Learn prices whenever enough pods were submitted, until cancelled.

        After an error, the next submitted pod triggers another try."""
        state, histogram = self._state, self._histogram
        await reader.caught_up()
        while True:
            await self._due.wait()
            self._due.clear()
            types = node_types(state)
            if not (histogram.due and any(each.devices for each in types)):
                continue
            basis, fence, shapes = state.revision, state.prices_revision, histogram.shapes()
            try:
                prices = await asyncio.to_thread(learn, shapes, types, pods=histogram.pods)
            except NoPrices as error:
                _log.warning("no prices learned from %d pods: %s", histogram.pods, error)
                histogram.priced()
                continue
            draft = self._publisher.draft(prices, event_id=f"prices/{fence}/{basis}", basis=basis)
            try:
                expect = self._fences.expected(fence, folded=basis)
                await self._ledger.append([structs.replace(draft, expect=expect)])
            except FenceRefused as refusal:
                _log.info("another scheduler recorded new placement prices first")
                await self._fences.refused(refusal, self._ledger)
            except DuplicateRefused:
                _log.info("another scheduler recorded new placement prices first")
            except (OutcomeUnknown, LedgerUnavailable, LedgerFull) as trouble:
                _log.warning("learned prices may be missing from the ledger: %s", trouble)
