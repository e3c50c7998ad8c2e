"""Evicted pods that were submitted by hand: they end, and wait for another place.

Without Kubernetes nobody else would let them go, and whoever they go for would wait for ever. Those
of a folder are that folder's (`reconcile`). Invariant: a pod ends and is submitted anew in one
atomic batch, a gang as a whole, fenced by what the ledger says last of each of its pods; so none is
lost, and none comes back that somebody else has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import NAMESPACE_OID, uuid5

import msgspec

from apportion.core.ledger.state import PodState, State
from apportion.core.workloads.kinds.drafts import of_folder
from apportion.runtime.ledger.port import Draft, DuplicateRefused, FenceRefused, Ledger
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.starting import is_command
from apportion.watcher.source import Source
from apportion_schemas import PodGone
from apportion_schemas.catalogue import SUBJECTS, token
from apportion_schemas.quantities import TEXT_MAX

PREEMPTED = "evicted for"
UNIT_MAX = 500
"""Pods that are moved together: each is an end and a beginning in one atomic batch."""


class ByHand:
    """Lets evicted pods go that are none of the source's, nor of another folder."""

    def __init__(self, source: Source, state: State, publisher: Publisher) -> None:
        self._source = source
        self._state = state
        self._publisher = publisher

    async def let_go(self, ledger: Ledger) -> None:
        """End all that are evicted now. The fold has passed what the ledger had a moment ago.

        Raises:
            LedgerError: of the kinds that looking anew cannot cure.
        """
        await asyncio.gather(*(self._move(unit, ledger) for unit in self._units()))

    def _units(self) -> Iterator[list[PodState]]:
        """The pods that go, those of one gang together, in the order of their evictions."""
        if self._state.of_kubernetes:
            return
        units: dict[str, list[PodState]] = {}
        for uid in self._state.evictions:
            pod = self._state.pods[uid]
            if of_folder(uid) or self._source.incarnation(pod.full_name, uid):
                continue
            units.setdefault(pod.submitted.group or uid, []).append(pod)
        for unit in units.values():
            for first in range(0, len(unit), UNIT_MAX):
                yield unit[first : first + UNIT_MAX]

    async def _move(self, unit: list[PodState], ledger: Ledger) -> None:
        basis = self._state.revision
        fences = [
            await ledger.last_on_subject(f"{SUBJECTS}.workload.{token(pod.uid)}") for pod in unit
        ]
        if max(fences) > basis:
            return  # something was said of one meanwhile: when the fold has passed it, we look anew
        try:
            await ledger.append(self._drafts(unit, fences, basis))
        except (FenceRefused, DuplicateRefused):
            return  # somebody was quicker, which the fold will tell

    def _drafts(self, unit: list[PodState], fences: list[int], basis: int) -> list[Draft]:
        """The new ones first: a gang is forgotten with the last of its pods."""
        again = [
            msgspec.structs.replace(pod.submitted, uid=str(uuid5(NAMESPACE_OID, pod.uid)))
            for pod in unit
            if not is_command(pod.submitted.owner)
        ]
        drafts = [
            self._publisher.draft(each, event_id=f"{each.uid}/submitted", basis=basis, expect=0)
            for each in again
        ]
        for pod, fence in zip(unit, fences, strict=True):
            whom = self._state.evictions[pod.uid].beneficiary_name
            gone = PodGone(uid=pod.uid, reason=f"{PREEMPTED} {whom}"[:TEXT_MAX])
            drafts.append(
                self._publisher.draft(gone, event_id=f"{pod.uid}/gone", basis=basis, expect=fence)
            )
        return drafts
