"""Attests those snapshots of schedulers that are what the ledger folds to.

A scheduler alone could write a snapshot in which a pod is missing, and the next restart would place
another pod on its devices. So readers believe a snapshot only if an intake attests it. The intake
folds from the newest snapshot that was attested before, so each is proven by the ledger alone.
Invariant: what is attested is what the ledger folds to; an intake that cannot tell attests nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, Final

from apportion.core.ledger import snapshot
from apportion.core.ledger.state import State
from apportion.runtime.jetstream.snapshots import KEPT, Key, Snapshots, Stored
from apportion.runtime.ledger.port import Ledger, LedgerError, Record
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.metrics import Metrics

LOOK_S: Final = 5.0
TRIES_MAX: Final = 3
"""A snapshot that cannot be read is looked at so often."""

_log = get_logger(__name__)


class _Done(Exception):
    """The goal is reached."""


class Attesting:
    """One life of an intake's look at the snapshots."""

    def __init__(
        self,
        ledger: Ledger,
        snapshots: Snapshots,
        reader: Reader[Any],
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._ledger = ledger
        self._snapshots = snapshots
        self._reader = reader
        self._clock = clock
        self._verdicts: dict[Key, bool] = {}
        self._tries: Counter[Key] = Counter()
        self._forged: list[int] = []
        self._gone = False
        self._newest = 0
        metrics.gauge(
            "apportion_snapshots_forged", "Snapshots that are not what the ledger folds to."
        ).set_function(lambda: len(self._forged))
        metrics.gauge(
            "apportion_snapshots_missing", "1 if snapshots that were attested are gone, else 0."
        ).set_function(lambda: int(self._gone))
        metrics.gauge(
            "apportion_snapshot_attested_revision", "Revision of the newest attested snapshot."
        ).set_function(lambda: self._newest)

    def not_ready(self) -> list[str]:
        """Snapshots that are forged or gone; empty as a rule."""
        reasons = [
            f"the snapshot at revision {revision} is not what the ledger folds to: replace the "
            "schedulers' key, then delete it from the bucket APPORTION_SNAPSHOTS"
            for revision in self._forged
        ]
        if self._gone:
            reasons.append("the snapshots that were attested are gone; the next one ends this")
        return reasons

    async def run(self) -> None:
        """Look at what schedulers wrote until cancelled."""
        await self._reader.caught_up()
        while True:
            if not self._reader.halted:
                try:
                    await self.look()
                except LedgerError as trouble:
                    _log.warning("snapshots are not attested now", error=str(trouble))
            await self._clock.pause(LOOK_S)

    async def look(self) -> None:
        """Judge what is new, and attest what is sound. Raises LedgerError."""
        written, attested = await self._snapshots.written(), await self._snapshots.attested()
        last = await self._ledger.last_revision()
        forged = [each for each in written if each.revision > last]
        reached = [each for each in written if each.revision <= self._reader.revision]
        sound: set[Key] = set()
        judged = reached[: 2 * KEPT]  # so many are kept
        # Drop what is known of snapshots that are no longer judged.
        keys = {each.key for each in judged}
        for key in self._verdicts.keys() - keys:
            del self._verdicts[key]
        for key in self._tries.keys() - keys:
            del self._tries[key]
        for each in reversed(judged):
            good = each.key in attested or await self._verdict(each)
            if good:
                sound.add(each.key)
            elif good is False:
                forged.append(each)
        if not sound <= attested:
            await self._snapshots.attest(sound)
        self._note(forged, sound)

    def _note(self, forged: list[Stored], sound: set[Key]) -> None:
        revisions = [each.revision for each in forged]
        if new := sorted(set(revisions) - set(self._forged)):
            _log.critical("a snapshot is forged; it is not used", revisions=new)
        self._forged = revisions
        self._gone = not sound and self._newest > 0
        self._newest = max((revision for revision, _ in sound), default=self._newest)

    async def _verdict(self, stored: Stored) -> bool | None:
        """Whether it is what the ledger folds to; None where that cannot be told."""
        if stored.key not in self._verdicts and self._tries[stored.key] < TRIES_MAX:
            found = await self._snapshots.load(stored)
            if found is None:
                self._tries[stored.key] += 1
                return None
            honest = await self._folded(stored.revision)
            self._verdicts[stored.key] = await asyncio.to_thread(_same, found, honest)
        return self._verdicts.get(stored.key)

    async def _folded(self, upto: int) -> State:
        """The state at that revision, from an earlier attested snapshot and the ledger."""
        cluster = StateFold(await self._snapshots.restore(at_most=upto), quiet=True)

        def take(record: Record) -> None:
            cluster.take(record)
            if record.revision >= upto:
                raise _Done

        if cluster.state.revision < upto:
            following = await self._ledger.follow(take, start=cluster.state.revision + 1)
            try:
                with contextlib.suppress(_Done):
                    await following.join()
            finally:
                await following.stop()
        return cluster.state


def _same(left: State, right: State) -> bool:
    """Whether a service that begins with either holds the same."""
    return _bytes(left) == _bytes(right)


def _bytes(state: State) -> bytes:
    """The state's snapshot in the order in which a restored one has it."""
    return snapshot.take(snapshot.restore(snapshot.take(state)))
