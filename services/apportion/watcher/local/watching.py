"""The watcher's loop: read the source, compare with the fold, append, fold, repeat.

Invariants: before it compares, the watcher folds everything that it has appended. It drops a
reading that an event has outdated, so it never reverts another watcher's append."""

import asyncio
from uuid import NAMESPACE_OID, uuid5

import msgspec

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PodState, State
from apportion.core.workloads.kinds.drafts import of_folder
from apportion.runtime.ledger.port import DuplicateRefused, FenceRefused, Ledger
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.ledger.starting import is_command
from apportion.runtime.process.waiting import first_of
from apportion.watcher.local.reconcile import (
    PREEMPTED,
    Fact,
    Known,
    Observation,
    Source,
    next_facts,
)
from apportion_schemas import ConfigurationChanged, PodGone, PodSubmitted
from apportion_schemas.catalogue import SUBJECTS, token
from apportion_schemas.quantities import TEXT_MAX

UNIT_MAX = 500  # pods moved at once, each with two events in one atomic batch


class ByHand:
    """Ends evicted pods that users submitted, and submits the pods again.

    Without Kubernetes, no other service ends these pods, and the pods that preempt them would wait
    forever. Invariant: a pod, or a whole gang, ends and is submitted again in one atomic batch. A
    pod that another client has ended is not submitted again."""

    def __init__(self, source: Source, state: State, publisher: Publisher) -> None:
        self._source = source
        self._state = state
        self._publisher = publisher

    async def let_go(self, ledger: Ledger) -> None:
        """End and resubmit all evicted pods, once the fold is up to date. Raises LedgerError."""
        if self._state.of_kubernetes:
            return
        units: dict[str, list[PodState]] = {}
        for uid in self._state.evictions:
            pod = self._state.pods[uid]
            if of_folder(uid) or self._source.incarnation(pod.full_name, uid):
                continue
            units.setdefault(pod.submitted.group or uid, []).append(pod)
        moves = (
            self._move(unit[first : first + UNIT_MAX], ledger)
            for unit in units.values()
            for first in range(0, len(unit), UNIT_MAX)
        )
        await asyncio.gather(*moves)

    async def _move(self, unit: list[PodState], ledger: Ledger) -> None:
        basis = self._state.revision
        fences = [
            await ledger.last_on_subject(f"{SUBJECTS}.workload.{token(pod.uid)}") for pod in unit
        ]
        if max(fences) > basis:
            return  # a newer event is not folded yet: check again after it
        # The new ones first: a gang is forgotten with the last of its pods.
        again = [
            msgspec.structs.replace(each.submitted, uid=str(uuid5(NAMESPACE_OID, each.uid)))
            for each in unit
            if not is_command(each.submitted.owner)
        ]
        drafts = [
            self._publisher.draft(each, event_id=f"{each.uid}/submitted", basis=basis, expect=0)
            for each in again
        ]
        for each, fence in zip(unit, fences, strict=True):
            whom = self._state.evictions[each.uid].beneficiary_name
            gone = PodGone(uid=each.uid, reason=f"{PREEMPTED} {whom}"[:TEXT_MAX])
            drafts.append(
                self._publisher.draft(gone, event_id=f"{each.uid}/gone", basis=basis, expect=fence)
            )
        try:
            await ledger.append(drafts)
        except (FenceRefused, DuplicateRefused):
            return  # another client was faster, as the fold will show


class Watching:
    """The watcher of one source, such as a folder of manifests."""

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
        """Update after a change of the fold. The reader calls this method."""
        configured = isinstance(change.data, ConfigurationChanged) and not change.refused
        if self._known.observe(self._state, change) or configured:
            self._stirred.set()

    def not_ready(self) -> list[str]:
        """Return why the watcher is not ready; empty once the ledger has had all requested pods."""
        return [] if self._settled else ["not all pods of the source are in the ledger yet"]

    async def run(self, reader: Reader[Change], ledger: Ledger) -> None:
        """Keep the ledger in sync with the source until cancelled."""
        await reader.caught_up()
        while True:
            await self._settle(reader, ledger)
            self._settled = True
            await first_of(self._source.changed(), self._stirred.wait())

    async def _settle(self, reader: Reader[Change], ledger: Ledger) -> None:
        before: list[Fact] = []
        while True:
            stirred = self._stirred.is_set()
            self._stirred.clear()
            self._known.look_begins()
            wanted = await self._source.observe(self._state.configuration)
            if wanted is self._compared and not stirred:
                return
            await reader.reached(await ledger.last_revision())
            # The server would drop the next incarnation under an id that it still remembers.
            for key in self._known.forgotten(wanted) if self._forgetful else ():
                number = 0
                while await ledger.last_on_subject(
                    f"{SUBJECTS}.workload.{token(self._source.uid(key, number + 1))}"
                ):
                    number += 1
                self._known.recall(key, number)
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

    async def _append(self, facts: list[Fact]) -> list[PodSubmitted]:
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
