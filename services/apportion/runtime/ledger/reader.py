"""Reading the ledger: bytes to events to a fold, in revision order, for every service.

One bad event must neither stop the cluster nor pass unseen. What every build refuses (broken bytes,
a broken payload, another's subject, a format that no operator has enabled, what one has set aside)
is refused by the fold, counted, and logged with its revision. What a newer build would understand
halts this one: nothing at or above that revision is folded, the process stays alive and not ready,
and says what to do; once an operator sets something aside it begins anew. Invariant: no event ends
a service, and an event is folded once, whole, or not at all."""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Generic, Protocol, TypeVar

from apportion.core.ledger import fold
from apportion.core.ledger.fold import PLACEMENT_SUBJECTS, Change
from apportion.core.ledger.rules import RULES, Rules, SetAsideEvent, Superseded, missing, said_at
from apportion.core.ledger.state import State
from apportion.runtime.ledger.port import ALL_SUBJECTS, Readable, Record, Subscription
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    CATALOGUE,
    Event,
    InvalidEvent,
    NotEnabledEvent,
    RevisionSetAside,
    UnknownEvent,
    UnreadableEvent,
)

_log = logging.getLogger(__name__)
_NAMES = {row.payload: row.name for row in CATALOGUE}
_REFUSED: dict[type, str] = {NotEnabledEvent: "not enabled", SetAsideEvent: "set aside"}
"""Under which name that is counted which changes nothing; all else is `refused`."""
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)


class Fold(Protocol[C_co]):
    """What a reader folds into, and what it hands to `on_change`."""

    @property
    def refused_count(self) -> int:
        """How many events changed nothing because they may not be."""

    @property
    def rules(self) -> Rules:
        """By which rules the ledger is read."""

    def apply(self, record: Record, event: Event) -> C_co:
        """Take the event at `record.revision`."""

    def refuse(self, record: Record, reason: str) -> C_co:
        """Pass over a record that no build reads as an event."""


class StateFold:
    """The whole cluster: core's fold over one `State`.

    `quiet` does not say aloud what changes nothing: whoever read it before has."""

    def __init__(self, state: State | None = None, *, quiet: bool = False) -> None:
        self.state = state or State()
        self._quiet = quiet

    @property
    def refused_count(self) -> int:
        """See `Fold`."""
        return self.state.refused_count

    @property
    def rules(self) -> Rules:
        """See `Fold`."""
        return self.state.rules

    def apply(self, record: Record, event: Event) -> Change:
        """See `Fold`. An event that contradicts the state changes nothing and is said aloud."""
        change = fold.apply(self.state, record.revision, event, digest=_chain_digest(record))
        if change.refused and not self._quiet:
            _log.warning(
                "revision %d on %s changes nothing: %s",
                record.revision,
                record.subject,
                change.refused,
            )
        return change

    def take(self, record: Record) -> None:
        """The next record, whatever it is.

        Raises UnknownEvent: a newer build wrote it. Superseded: the rules are others by now."""
        try:
            event = self.rules.read(record.revision, record.subject, record.payload)
        except (UnreadableEvent, InvalidEvent) as error:
            self.refuse(record, str(error))
        else:
            self.apply(record, event)

    def refuse(self, record: Record, reason: str) -> Change:
        """See `Fold`."""
        digest = _chain_digest(record)
        return fold.refuse(self.state, record.revision, record.subject, reason, digest=digest)


def _chain_digest(record: Record) -> str:
    """What the next placement on the node must name; other subjects have no chain."""
    if not record.subject.startswith(PLACEMENT_SUBJECTS):
        return ""
    return sha256(record.payload).hexdigest()


class _Halted(Exception):
    """The fold met an event of a newer build."""


class Reader(Generic[C]):
    """One fold that follows the ledger, from behind the revision `after`, which it holds already.

    `revision` is that of the newest event folded, of this reader's subjects. `halted` is empty, or
    why nothing more is folded. A service that `writes` as a role is not let to work before all that
    this build writes so is enabled on the ledger."""

    def __init__(
        self,
        ledger: Readable,
        into: Fold[C],
        *,
        metrics: Metrics,
        subjects: Sequence[str] = (ALL_SUBJECTS,),
        on_change: Callable[[C], None] | None = None,
        after: int = 0,
        writes: str = "",
    ) -> None:
        self._ledger = ledger
        self._fold = into
        self._subjects = subjects
        self._on_change = on_change
        self._subscription: Subscription | None = None
        self._writes = writes
        self._caught_up = asyncio.Event()
        self._may_write = asyncio.Event()
        self._waiting: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._order = itertools.count()
        self.revision = after
        self.halted = ""
        metrics.fold_revision.set_function(lambda: self.revision)
        metrics.fold_halted.set_function(lambda: float(bool(self.halted)))
        metrics.fold_lag.set_function(lambda: self.lag)
        self._counts = metrics.events_folded.counts
        self._counts.update(dict.fromkeys([*_NAMES.values(), "refused", *_REFUSED.values()], 0))

    @property
    def lag(self) -> int:
        """How many events the ledger still held when it sent the last one."""
        return self._subscription.lag if self._subscription else 0

    @property
    def stored_ns(self) -> int:
        """When the server stored the event that is folded now; see ledger.Subscription."""
        return self._subscription.stored_ns if self._subscription else 0

    def not_ready(self) -> list[str]:
        """Why a service that reads by this is not ready; empty once folded up to now."""
        if self.halted:
            return [self.halted]
        if self._subscription and self._subscription.stalled:
            return [f"nothing comes since revision {self.revision}, though the ledger goes on"]
        if not self._caught_up.is_set():
            return [f"folding the ledger, at {self.revision}"]
        wanted = [] if self._may_write.is_set() else self._not_enabled()
        return [
            f"this build writes {each}, which is not enabled on this ledger; once every reader is "
            f"upgraded: apportion ledger enable {each}"
            for each in wanted
        ]

    async def run(self) -> None:
        """Follow until cancelled.

        A halt does not return: started again, the fold would halt at the same revision.

        Raises LedgerHole, LedgerDrifted, NotPermitted, LedgerUnavailable: the ledger cannot be
        read. Raises Superseded: something was set aside that is folded here, or before which it had
        halted."""
        self._subscription = await self._ledger.follow(
            self.take, start=self.revision + 1, subjects=self._subjects
        )
        try:
            await self._subscription.caught_up()
            self._caught_up.set()
            self._check_formats()
            await self._subscription.join()
        except _Halted:
            _log.critical("%s", self.halted)
            await self._subscription.stop()
            await self.superseded()
        finally:
            await self._subscription.stop()

    async def superseded(self) -> None:
        """Look out for what takes away the reason of a halt, until cancelled.

        Raises Superseded: something was set aside since. And what `run` raises of the ledger."""

        def look(record: Record) -> None:
            said = said_at(record.revision, record.subject, record.payload)
            if said is not None and isinstance(said.data, RevisionSetAside):
                self._fold.rules.heed(said.revision, said.data)

        subscription = await self._ledger.follow(look, subjects=(RULES,))
        try:
            await subscription.join()
        finally:
            await subscription.stop()

    async def caught_up(self) -> None:
        """Return once all that the ledger held when `run` began is folded.

        For whoever writes, once it may write all that it would, besides."""
        await self._caught_up.wait()
        await self._may_write.wait()

    def _not_enabled(self) -> list[str]:
        return missing(self._fold.rules, self._writes, self.revision + 1)

    def _check_formats(self) -> None:
        if self._caught_up.is_set() and not self._not_enabled():
            self._may_write.set()

    async def reached(self, revision: int) -> None:
        """Return once the event at `revision`, which is of this reader's subjects, is folded.

        Where the fold has halted before it, that is never."""
        if not await self.folds(revision):
            await asyncio.Event().wait()

    async def folds(self, revision: int) -> bool:
        """Whether the event at `revision` is folded here: once it is, or once the fold has halted.

        It is of this reader's subjects, and the ledger holds it or will."""
        if self.revision >= revision or self.halted:
            return self.revision >= revision
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (revision, next(self._order), waiting))
        return await waiting

    def take(self, record: Record) -> None:
        """Fold the next record, also one that comes from elsewhere before `run`."""
        try:
            event = self._fold.rules.read(record.revision, record.subject, record.payload)
        except UnknownEvent as error:
            raise self._halt(
                f"halted before revision {record.revision} on {record.subject}: {error}; until "
                "then nothing more is folded here"
            ) from None
        except (UnreadableEvent, InvalidEvent) as error:
            _log.error("revision %d on %s refused: %s", record.revision, record.subject, error)
            self._counts[_REFUSED.get(type(error), "refused")] += 1
            change = self._fold.refuse(record, str(error))
        else:
            self._counts[_NAMES[type(event.data)]] += 1
            change = self._apply(record, event)
        self.revision = record.revision
        if not self._may_write.is_set():
            self._check_formats()
        if self._on_change is not None:
            self._on_change(change)
        while self._waiting and self._waiting[0][0] <= record.revision:
            waiting = heapq.heappop(self._waiting)[2]
            if not waiting.done():
                waiting.set_result(True)

    def _halt(self, why: str) -> _Halted:
        """Fold nothing more, and let go of those who wait for what would have been folded."""
        self.halted = why
        for _, _, waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(False)
        self._waiting.clear()
        return _Halted()

    def _apply(self, record: Record, event: Event) -> C:
        try:
            return self._fold.apply(record, event)
        except Superseded:
            raise
        except Exception:  # noqa: BLE001 - any fault of the fold is the same to its readers
            # The fold is pure: begun anew, it would fail at the same event. What it holds may be
            # half of a change, so nothing is decided upon it any more.
            halt = self._halt(
                f"halted at revision {record.revision} on {record.subject}: the fold of "
                f"{type(event.data).__name__} failed, which is a fault of this build; upgrade "
                "Apportion, and report it with this event"
            )
            _log.exception("%s", self.halted)
            raise halt from None
