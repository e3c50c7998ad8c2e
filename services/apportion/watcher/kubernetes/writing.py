"""Facts of the cluster into the ledger, each fenced by what this watcher knew of its subject.

Invariant: a fact that somebody else has overtaken is not written; its object is compared again upon
what the other wrote, or left alone where that is final.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress

from msgspec import structs

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.runtime.ledger.port import FenceRefused, Ledger, LedgerUnavailable
from apportion.runtime.ledger.publisher import Append, Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.watcher.kubernetes.facts import Fact, Revisions
from apportion.watcher.kubernetes.view import ClusterView
from apportion_schemas import InvalidEvent, PodChanged, PodGone, PodSubmitted, subject_of
from apportion_schemas.quantities import Payload

TOGETHER_MAX = 512
"""Facts that wait for the ledger at once, however large the cluster is."""

_log = logging.getLogger(__name__)


class FactWriting:
    """Writes for one watcher. `written` counts facts by the name of their event.

    `final` are the uids of pods of which nothing more is to be written: they had their time in the
    ledger, or cannot be told to it.
    """

    def __init__(
        self,
        state: State,
        view: ClusterView,
        revisions: Revisions,
        publisher: Publisher,
        append: Append,
    ) -> None:
        self._state = state
        self._view = view
        self._revisions = revisions
        self._publisher = publisher
        self._append_one = append
        self.final: set[str] = set()
        self.written: Counter[str] = Counter()

    async def append(self, reader: Reader[Change], ledger: Ledger, facts: list[Fact]) -> None:
        """Append facts and fold them. Raises LedgerError where trying again cures nothing."""
        for first in range(0, len(facts), TOGETHER_MAX):
            batch = facts[first : first + TOGETHER_MAX]
            basis = self._state.revision
            revisions = await asyncio.gather(*(self._write(ledger, fact, basis) for fact in batch))
            await reader.reached(max(revisions))

    async def _write(self, ledger: Ledger, fact: Fact, basis: int) -> int:
        """Append one fact; the revision up to which the fold must go, 0 where nothing is known."""
        try:
            draft = self._publisher.draft(fact.data, event_id=fact.event_id, basis=basis)
        except InvalidEvent as error:
            _log.error("cannot be told to the ledger: %s", error)
            self.final.add(getattr(fact.data, "uid", ""))
            return 0
        try:
            done = await self._append_one(structs.replace(draft, expect=fact.expect))
        except FenceRefused as refused:
            await self._overtaken(fact.data, refused, ledger)
            return 0
        if done.already_there and (done.revision or 0) <= basis:
            # Of an older event: this watcher began with a snapshot, which has no revisions.
            found = await ledger.last_on_subject(draft.subject)
            if found != fact.expect:  # else the id is free again once the server forgets it
                late = FenceRefused(draft.subject, fact.expect, found)
                await self._overtaken(fact.data, late, ledger)
            return 0
        self.written[type(fact.data).__name__] += 1
        return done.revision or 0

    async def _overtaken(self, data: Payload, refused: FenceRefused, ledger: Ledger) -> None:
        """Another watcher was there first, or the subject has an event that no fold takes."""
        uid = getattr(data, "uid", "")
        with suppress(LedgerUnavailable):  # the next refusal asks again
            await self._revisions.fences.refused(refused, ledger)
        if isinstance(data, PodSubmitted) and uid not in self._state.rejected:
            self.final.add(uid)  # it had its time in the ledger, or has it now
        elif isinstance(data, PodGone | PodChanged) and refused.found is not None:
            self._revisions.adopted.add(uid)  # its submission is not what the fence is about
            self._revisions.forget(subject_of(data))
            self._revisions.note(subject_of(data), refused.found)
            self._view.mark(data)
        elif refused.found == 0:
            self._view.mark(data)
        elif refused.found is not None and refused.found > refused.expected:
            self._revisions.note(subject_of(data), refused.found)
            self._view.mark(data)
