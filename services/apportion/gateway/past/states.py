"""The state as of any revision: the nearest state before it, and the records in between.

Where to begin is a state that is kept from another look, a checkpoint of our own, a snapshot of the
schedulers or the empty state before the first revision: whatever leaves least to fold. Invariants:
`at(r)` is what folding everything up to `r` gives; no more than a few states are held at once, and
no more than a few are folded at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from apportion.core.ledger.rules import Superseded
from apportion.core.ledger.state import State
from apportion.gateway.past.checkpoints import Checkpoints
from apportion.gateway.past.chronicle import Chronicle
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.ledger.reader import StateFold

KEPT = 3
KEPT_ITEMS = 100_000
"""Nodes, devices and pods of all that are kept, unless one alone has more: some 3 KB each."""
AT_ONCE = 1
"""They are folded by one thread: two at once would each take twice as long, and as much memory."""
FAR_EVENTS = 20_000
"""More than this to fold, and it is worth to ask which snapshots there are."""


class BeforeBeginning(Exception):
    """Nothing tells what was at this revision: `first` is the oldest one that can be looked at."""

    def __init__(self, revision: int, first: int) -> None:
        super().__init__(
            f"nothing is known of revision {revision}; what is known begins at {first}"
        )
        self.revision = revision
        self.first = first


class PastStates:
    """States of the past, the newest few of those that were asked for kept."""

    def __init__(
        self,
        chronicle: Chronicle,
        checkpoints: Checkpoints,
        snapshots: Snapshots,
        *,
        kept: int = KEPT,
        kept_items: int = KEPT_ITEMS,
        at_once: int = AT_ONCE,
    ) -> None:
        self._chronicle = chronicle
        self._checkpoints = checkpoints
        self._snapshots = snapshots
        self._kept_max = kept
        self._items_max = kept_items
        self._kept: OrderedDict[int, State] = OrderedDict()
        self._turn = asyncio.Semaphore(at_once)

    @property
    def kept(self) -> tuple[int, ...]:
        """The revisions of the states that are held at the moment."""
        return tuple(self._kept)

    async def at(self, revision: int) -> State:
        """The state after that revision, which is to be read before anything else is awaited.

        Raises BeforeBeginning, UnknownEvent, LedgerError, ArchiveError.
        """
        async with self._turn:
            state = self._kept.pop(revision, None) or await self._folded(revision)
            self._kept[revision] = state
            while len(self._kept) > self._kept_max or (  # the newest few; of large ones the newest
                len(self._kept) > 1
                and sum(
                    len(each.nodes) + len(each.node_of_device) + len(each.pods)
                    for each in self._kept.values()
                )
                > self._items_max
            ):
                self._kept.popitem(last=False)
        return state

    async def _folded(self, revision: int) -> State:
        fold = StateFold(await self._nearest(revision), quiet=True)
        if fold.state.revision < revision:
            first, _ = await self._chronicle.span()
            if fold.state.revision + 1 < first:  # what is between was dropped
                raise BeforeBeginning(revision, await self.beginning())
        try:
            await self._chronicle.read(fold.take, after=fold.state.revision, upto=revision)
        except Superseded as superseded:
            raise LedgerUnavailable(f"the past is read anew: {superseded}") from None
        return fold.state

    async def _nearest(self, revision: int) -> State:
        """A state at or before the revision, that nobody else reads."""
        near = max((kept for kept in self._kept if kept <= revision), default=0)
        first, _ = await self._chronicle.span()
        while True:
            checkpoint = self._checkpoints.newest(revision)
            best = max(near, checkpoint)
            if revision - best > FAR_EVENTS or best + 1 < first:
                for stored in await self._snapshots.stored():  # the schedulers', the newest first
                    if best < stored.revision <= revision:
                        snapshot = await self._snapshots.load(stored)
                        if snapshot is not None:
                            return snapshot
            if near and near >= checkpoint and near in self._kept:
                return self._kept.pop(near)
            if not checkpoint:
                return self._checkpoints.nothing()
            state = await asyncio.to_thread(self._checkpoints.load, checkpoint)
            if state is not None:
                return state

    async def beginning(self) -> int:
        """The oldest revision that can be looked at."""
        first, _ = await self._chronicle.span()
        if first == 1:
            return 1
        known = [stored.revision for stored in await self._snapshots.stored()]
        known += self._checkpoints.revisions[:1]
        usable = [revision for revision in known if revision >= first - 1]
        return min(usable, default=first)
