"""Which of the events that changed nothing are words of agents and binders that came late.

What was handed out while the pod ended is said all the same: it contradicts the ledger, and is no
fault. The ledger itself tells: on what the word was said, and where the pod ended. Invariant: an
event is looked at once, and one that cannot be read did not come late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from apportion.core.doctor.cluster import WORDS_OF_PLACES, came_late
from apportion.core.ledger.state import RefusedEvent
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.wire import Wire
from apportion_schemas import EventError, PodGone, decode
from apportion_schemas.catalogue import SUBJECTS, token

AT_ONCE = 32
_TYPES = frozenset(each.__name__ for each in WORDS_OF_PLACES)


class LateWords:
    """What was found of one ledger so far."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._late: dict[int, bool] = {}

    async def among(self, refused: Sequence[RefusedEvent]) -> frozenset[int]:
        """The revisions of those of them that came late. Raises LedgerUnavailable."""
        asked = [each.revision for each in refused if each.subject in _TYPES]
        self._late = {each: self._late[each] for each in asked if each in self._late}
        new = [each for each in asked if each not in self._late]
        for start in range(0, len(new), AT_ONCE):
            some = new[start : start + AT_ONCE]
            found = await asyncio.gather(*(self._came_late(each) for each in some))
            self._late.update(zip(some, found, strict=True))
        return frozenset(each for each, late in self._late.items() if late)

    async def _came_late(self, revision: int) -> bool:
        record = await stream.read_record(self._wire, revision)
        if record is None:
            return False
        try:
            said = decode(record.payload, subject=record.subject)
            subject = f"{SUBJECTS}.workload.{token(getattr(said.data, 'pod', ''))}"
            newest = await stream.newest_stored(self._wire, subject)
            if newest is None:
                return False
            last = decode(newest[1].payload, subject=subject)
        except EventError:
            return False
        gone = newest[1].revision if isinstance(last.data, PodGone) else 0
        return came_late(said, revision, gone)
