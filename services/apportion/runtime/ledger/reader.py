"""Reads the ledger in revision order and folds it, the same way in every service.

An event that every build refuses is skipped, counted and logged. An event that only a newer build
can read halts the fold: the process stays alive, is not ready and reports the fix. Invariants: no
event ends a service; an event is folded once, completely, or not at all."""

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
from apportion.runtime.ledger.reading import following
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
# metric label of events that change nothing; all others are `refused`
_REFUSED: dict[type, str] = {NotEnabledEvent: "not enabled", SetAsideEvent: "set aside"}
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)


class Fold(Protocol[C_co]):
    """Folds the records that a reader passes to it. The reader's `on_change` gets each change."""

    @property
    def refused_count(self) -> int:
        """Return the number of events that the fold refused, and so did not apply."""

    @property
    def rules(self) -> Rules:
        """Return the rules by which the fold reads the ledger."""

    def apply(self, record: Record, event: Event) -> C_co:
        """Apply the event of `record` and return the change."""

    def refuse(self, record: Record, reason: str) -> C_co:
        """Skip a record that no build can read as an event, and return the change."""


class StateFold:
    """Folds the ledger into a `State` of the whole cluster."""

    def __init__(self, state: State | None = None, *, quiet: bool = False) -> None:
        self.state = state or State()
        self._quiet = quiet

    @property
    def refused_count(self) -> int:
        """Return the number of events that the fold refused."""
        return self.state.refused_count

    @property
    def rules(self) -> Rules:
        """Return the rules by which the fold reads the ledger."""
        return self.state.rules

    def apply(self, record: Record, event: Event) -> Change:
        """Apply the event. If it contradicts the state, log it and change nothing."""
        change = fold.apply(self.state, record.revision, event, digest=_chain_digest(record))
        if change.refused and not self._quiet:
            _log.warning(
                "revision %d on %s ignored: %s", record.revision, record.subject, change.refused
            )
        return change

    def take(self, record: Record) -> None:
        """Fold the next record, or skip it if it is invalid. Raises UnknownEvent, Superseded."""
        try:
            event = self.rules.read(record.revision, record.subject, record.payload)
        except (UnreadableEvent, InvalidEvent) as error:
            self.refuse(record, str(error))
        else:
            self.apply(record, event)

    def refuse(self, record: Record, reason: str) -> Change:
        """Skip a record that no build can read as an event, and return the change."""
        digest = _chain_digest(record)
        return fold.refuse(self.state, record.revision, record.subject, reason, digest=digest)


def _chain_digest(record: Record) -> str:
    """Return the digest that the node's next placement must name; "" for other events."""
    if not record.subject.startswith(PLACEMENT_SUBJECTS):
        return ""
    return sha256(record.payload).hexdigest()


class _Halted(Exception): ...


class Reader(Generic[C]):
    """Folds the ledger in order, starting after revision `after`, and then follows it."""

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
        self._writes = writes  # a role, ready only once all formats that it writes are enabled
        self._caught_up = asyncio.Event()
        self._may_write = asyncio.Event()
        self._waiting: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._order = itertools.count()
        self.revision = after  # the newest event folded, of this reader's subjects
        self.halted = ""  # why nothing more is folded
        metrics.fold_revision.set_function(lambda: self.revision)
        metrics.fold_halted.set_function(lambda: float(bool(self.halted)))
        metrics.fold_lag.set_function(lambda: self.lag)
        self._counts = metrics.events_folded.counts
        self._counts.update(dict.fromkeys([*_NAMES.values(), "refused", *_REFUSED.values()], 0))

    @property
    def lag(self) -> int:
        """Return how many events were still to come when the server sent the last one."""
        return self._subscription.lag if self._subscription else 0

    @property
    def stored_ns(self) -> int:
        """Return when the server stored the event being folded, in ns since 1970."""
        return self._subscription.stored_ns if self._subscription else 0

    def not_ready(self) -> list[str]:
        """Return why a service with this reader is not ready; empty once the fold is current."""
        if self.halted:
            return [self.halted]
        if self._subscription and self._subscription.stalled:
            return [
                f"no events arrive after revision {self.revision}, but the ledger has newer ones"
            ]
        if not self._caught_up.is_set():
            return [f"reading the ledger, at revision {self.revision}"]
        wanted = [] if self._may_write.is_set() else self._not_enabled()
        return [
            f"this build writes {each}, which is not enabled on this ledger; upgrade every reader, "
            f"then run apportion ledger enable {each}"
            for each in wanted
        ]

    async def run(self) -> None:
        """Follow the ledger until cancelled. A halted fold waits, because a restart would halt too.

        Raises LedgerError, or Superseded if an operator set a folded or halting event aside."""
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
        """Wait until an operator sets the halting event aside, then raise Superseded."""

        def look(record: Record) -> None:
            said = said_at(record.revision, record.subject, record.payload)
            if said is not None and isinstance(said.data, RevisionSetAside):
                self._fold.rules.heed(said.revision, said.data)

        async with following(self._ledger, look, subjects=(RULES,)) as subscription:
            await subscription.join()

    async def caught_up(self) -> None:
        """Wait until all events from before `run` are folded and our event formats are enabled."""
        await self._caught_up.wait()
        await self._may_write.wait()

    def _not_enabled(self) -> list[str]:
        return missing(self._fold.rules, self._writes, self.revision + 1)

    def _check_formats(self) -> None:
        if self._caught_up.is_set() and not self._not_enabled():
            self._may_write.set()

    async def reached(self, revision: int) -> None:
        """Wait until `revision` is folded; waits for ever if the fold has halted before it."""
        if not await self.folds(revision):
            await asyncio.Event().wait()

    async def folds(self, revision: int) -> bool:
        """Wait until `revision` is folded. Return False if the fold halts before it."""
        if self.revision >= revision or self.halted:
            return self.revision >= revision
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (revision, next(self._order), waiting))
        return await waiting

    def take(self, record: Record) -> None:
        """Fold the next record. Before `run`, the caller may pass records that it read itself."""
        try:
            event = self._fold.rules.read(record.revision, record.subject, record.payload)
        except UnknownEvent as error:
            raise self._halt(
                f"halted before revision {record.revision} on {record.subject}: {error}; no "
                "later event is read until this is resolved"
            ) from None
        except (UnreadableEvent, InvalidEvent) as error:
            _log.error("revision %d on %s rejected: %s", record.revision, record.subject, error)
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
            # The fold is pure, so after a restart it would fail at the same event. The state may
            # have half of a change, so no more decisions are based on it.
            halt = self._halt(
                f"halted at revision {record.revision} on {record.subject}: handling "
                f"{type(event.data).__name__} failed, which is a bug in this build; upgrade "
                "Apportion, and report it with this event"
            )
            _log.exception("%s", self.halted)
            raise halt from None
