"""The watcher's loop: look at the source, compare with the fold, append, fold, again.

Invariants: a comparison is made only upon a fold that has passed all that this watcher wrote, so
nothing is written twice for want of having read it; and nothing that is folded of the source's own
is newer than the look at it, so what another watcher wrote upon a later look is never taken back.
"""

from __future__ import annotations

import asyncio

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.runtime.ledger.port import Ledger
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.watcher.local.by_hand import ByHand
from apportion.watcher.local.reconcile import Fact, Known, next_facts
from apportion.watcher.source import Observation, Source
from apportion_schemas import ConfigurationChanged, PodSubmitted
from apportion_schemas.catalogue import SUBJECTS, token


class Watching:
    """One watcher of one source."""

    def __init__(self, source: Source, state: State, publisher: Publisher) -> None:
        self._source = source
        self._state = state
        self._publisher = publisher
        self._by_hand = ByHand(source, state, publisher)
        self._known = Known(source)
        self._known.begin(state)
        self._forgetful = state.revision > 0
        self._stirred = asyncio.Event()
        self._compared: Observation | None = None
        self._settled = False

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed; give this to the reader."""
        configured = isinstance(change.data, ConfigurationChanged) and not change.refused
        if self._known.observe(self._state, change) or configured:
            self._stirred.set()

    def not_ready(self) -> list[str]:
        """Why the watcher is not ready; empty once the ledger has had all that the source wants."""
        return [] if self._settled else ["the source is not in the ledger yet"]

    async def run(self, reader: Reader[Change], ledger: Ledger) -> None:
        """Keep the ledger as the source wants it, until cancelled."""
        await reader.caught_up()
        while True:
            await self._settle(reader, ledger)
            self._settled = True
            await self._moved()

    async def _settle(self, reader: Reader[Change], ledger: Ledger) -> None:
        """Append until nothing differs, or what differs will not change by appending."""
        before: list[Fact] = []
        while True:
            stirred = self._stirred.is_set()
            self._stirred.clear()
            self._known.look_begins()
            wanted = await self._source.observe(self._state.configuration)
            if wanted is self._compared and not stirred:
                return
            await reader.reached(await ledger.last_revision())
            await self._recall(wanted, ledger)
            await self._by_hand.let_go(ledger)
            if self._known.outdates(wanted):
                continue
            self._compared = wanted
            facts = next_facts(self._source, self._known, self._state, wanted)
            if not facts or facts == before:
                return
            spent = await self._append(facts)
            await reader.reached(await ledger.last_revision())
            for pod in spent:
                self._known.spend(pod)
            self._stirred.set()
            before = facts

    async def _recall(self, wanted: Observation, ledger: Ledger) -> None:
        """Ask the ledger how often a pod was there that ended before our snapshot.

        Its next incarnation under an id that the server still remembers would not be stored.
        """
        if not self._forgetful:
            return
        for key in self._known.forgotten(wanted):
            number = 0
            while await ledger.last_on_subject(self._subject(key, number + 1)):
                number += 1
            self._known.recall(key, number)

    def _subject(self, key: str, incarnation: int) -> str:
        return f"{SUBJECTS}.workload.{token(self._source.uid(key, incarnation))}"

    async def _append(self, facts: list[Fact]) -> list[PodSubmitted]:
        """Append, and return the pods whose id the ledger had already."""
        basis = self._state.revision
        done = await asyncio.gather(
            *(
                self._publisher.publish(fact.data, event_id=fact.event_id, basis=basis)
                for fact in facts
            )
        )
        return [
            fact.data
            for fact, appended in zip(facts, done, strict=True)
            if appended.already_there and isinstance(fact.data, PodSubmitted)
        ]

    async def _moved(self) -> None:
        """Return when the source, or what the ledger has of it, may have changed."""
        waits = {
            asyncio.create_task(self._source.changed()),
            asyncio.create_task(self._stirred.wait()),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
