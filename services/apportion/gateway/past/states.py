"""States as of any revision: the nearest earlier state, and the records after it.

The nearest state is a cached one, one of our checkpoints, a scheduler's snapshot, or the empty
state. Invariants: `at(r)` equals the fold of everything up to `r`; cached states are bounded."""

import asyncio
import bisect
import copy
import zlib
from collections import OrderedDict
from pathlib import Path

from apportion.core.ledger import snapshot
from apportion.core.ledger.rules import Rules, Superseded
from apportion.core.ledger.snapshot import SnapshotError
from apportion.core.ledger.state import State
from apportion.gateway.past.chronicle import Chronicle
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.jetstream.snapshots import Snapshots, restored
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.logs import get_logger

EVERY_EVENTS = 10_000
NUMBER_MAX = 512
BYTES_MAX = 1 << 30
_FAST = 1  # zlib's level: a sixth of the bytes at ten times the speed of the default
_SUFFIX = ".state"

_log = get_logger(__name__)


class Checkpoints:
    """Compressed states in an existing folder, one file per revision.

    Some states are dropped to limit the folder's size. Invariant: a loaded state is the one that
    was added, and agrees with the ledger's current rules."""

    def __init__(
        self, folder: Path, *, every_events: int = EVERY_EVENTS, number_max: int = NUMBER_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._number_max = number_max
        self._bytes_max = bytes_max
        self._bytes: dict[int, int] = {
            int(path.stem): path.stat().st_size
            for path in sorted(folder.glob(f"*{_SUFFIX}"))
            if path.stem.isdecimal()
        }
        self.revisions = sorted(self._bytes)
        self.every_events = every_events
        self.rules = Rules()

    def newest(self, at_most: int) -> int:
        """Return the newest checkpoint at or before `at_most`, or 0 if there is none."""
        place = bisect.bisect_right(self.revisions, at_most)
        return self.revisions[place - 1] if place else 0

    def add(self, state: State) -> None:
        """Write a checkpoint of the state. Raises OSError."""
        data = zlib.compress(snapshot.take(state), _FAST)
        write_whole(self._path(state.revision), data)
        if state.revision not in self._bytes:
            bisect.insort(self.revisions, state.revision)
        self._bytes[state.revision] = len(data)
        while len(self.revisions) > self._number_max or self.bytes > self._bytes_max:
            self.every_events *= 2  # forget the checkpoints in between
            newest, kept, before = self.revisions[-1], 0, len(self.revisions)
            for revision in list(self.revisions):
                if revision != newest and revision - kept < self.every_events:
                    self.forget(revision)
                else:
                    kept = revision
            if len(self.revisions) == before and self.every_events >= newest:
                return

    @property
    def bytes(self) -> int:
        """Return the size of all checkpoints on disk."""
        return sum(self._bytes.values())

    def load(self, revision: int) -> State | None:
        """Load a checkpoint. Return None and remove it if it cannot be used."""
        try:
            state = restored(bytearray(zlib.decompress(self._path(revision).read_bytes())))
            if state.revision != revision:
                raise SnapshotError(f"the state has revision {state.revision}")
            if not state.rules.go_on(self.rules, revision):
                raise SnapshotError("an operator has set aside events in this state")
        except (OSError, zlib.error, SnapshotError) as error:
            _log.warning("checkpoint not used", revision=revision, error=str(error))
            self.forget(revision)
            return None
        return state

    def nothing(self) -> State:
        """Return the state before the first revision."""
        return State(rules=copy.deepcopy(self.rules))

    def clear(self) -> None:
        """Remove all checkpoints, because they are of another ledger."""
        for revision in list(self.revisions):
            self.forget(revision)

    def forget(self, revision: int) -> None:
        """Remove the checkpoint of that revision, if it exists."""
        self._path(revision).unlink(missing_ok=True)
        if self._bytes.pop(revision, None) is not None:
            self.revisions.remove(revision)

    def _path(self, revision: int) -> Path:
        return self._folder / f"{revision:020}{_SUFFIX}"


KEPT = 3
# Nodes, devices and pods of all cached states, at some 3 KB each; one state may exceed it.
KEPT_ITEMS = 100_000
AT_ONCE = 1  # concurrent folds would only take longer and more memory
FAR_EVENTS = 20_000  # with more events to fold, it pays to look for snapshots


class BeforeBeginning(Exception):
    """Error: the revision is older than `first`, the oldest available one."""

    def __init__(self, revision: int, first: int) -> None:
        super().__init__(
            f"revision {revision} is not available; the oldest available revision is {first}"
        )
        self.revision = revision
        self.first = first


class PastStates:
    """States of past revisions, with a cache of recently used ones."""

    def __init__(
        self,
        chronicle: Chronicle,
        checkpoints: Checkpoints,
        snapshots: Snapshots,
        *,
        kept: int = KEPT,
        kept_items: int = KEPT_ITEMS,
    ) -> None:
        self._chronicle = chronicle
        self._checkpoints = checkpoints
        self._snapshots = snapshots
        self._kept_max = kept
        self._items_max = kept_items
        self._kept: OrderedDict[int, State] = OrderedDict()
        self._turn = asyncio.Semaphore(AT_ONCE)

    @property
    def kept(self) -> tuple[int, ...]:
        """Return the revisions of the cached states."""
        return tuple(self._kept)

    async def at(self, revision: int) -> State:
        """Return the state as of `revision`. The caller must not await while it uses the state.

        Raises BeforeBeginning, UnknownEvent, LedgerError, ArchiveError."""
        async with self._turn:
            state = self._kept.pop(revision, None)
            if state is None:
                fold = StateFold(await self._nearest(revision), quiet=True)
                state = fold.state
                if state.revision < revision:
                    first, _ = await self._chronicle.span()
                    if state.revision + 1 < first:  # the records in between were dropped
                        raise BeforeBeginning(revision, await self.beginning())
                try:
                    await self._chronicle.read(fold.take, after=state.revision, upto=revision)
                except Superseded as superseded:
                    raise LedgerUnavailable(f"the past is reloading: {superseded}") from None
            self._kept[revision] = state
            while len(self._kept) > self._kept_max or (  # always keep the newest
                len(self._kept) > 1
                and sum(
                    len(each.nodes) + len(each.node_of_device) + len(each.pods)
                    for each in self._kept.values()
                )
                > self._items_max
            ):
                self._kept.popitem(last=False)
        return state

    async def _nearest(self, revision: int) -> State:
        """Return a state as of `revision` or earlier. The caller may change the state."""
        near = max((kept for kept in self._kept if kept <= revision), default=0)
        first, _ = await self._chronicle.span()
        while True:
            checkpoint = self._checkpoints.newest(revision)
            best = max(near, checkpoint)
            if revision - best > FAR_EVENTS or best + 1 < first:
                for stored in await self._snapshots.stored():  # newest first
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
        """Return the oldest revision whose state is available."""
        first, _ = await self._chronicle.span()
        if first == 1:
            return 1
        known = [stored.revision for stored in await self._snapshots.stored()]
        known += self._checkpoints.revisions[:1]
        usable = [revision for revision in known if revision >= first - 1]
        return min(usable, default=first)
