"""Group commit: the appends of many writers are checked and stored in atomic batches.

While one batch is being fsynced, new drafts gather for the next; there is no timer. A few drafts
are appended singly, as a batch costs the server more. Invariants: a refused draft fails no other
draft. A group is stored whole or not at all. The queue is bounded, so a slow ledger slows its
writers."""

import asyncio
import re
from collections.abc import Sequence
from typing import Self

import msgspec

from apportion.runtime.ledger.port import (
    MAX_DRAFTS,
    MAX_ID_CHARS,
    MAX_PAYLOAD_BYTES,
    SUBJECT_PREFIX,
    Draft,
    DuplicateRefused,
    FenceRefused,
    InvalidDraft,
    Ledger,
    LedgerError,
    LedgerUnavailable,
    NotPermitted,
    OutcomeUnknown,
    PayloadTooLarge,
)
from apportion.runtime.process.clock import BackOff, Clock, SystemClock

MAX_BATCH_BYTES = 16 << 20  # the server keeps an open batch in memory
_SUBJECT = re.compile(r"[!-)+-\-/-=?-~]+(\.[!-)+-\-/-=?-~]+)*")
_ID = re.compile(r"[ -~]+")
MAX_BATCH_DRAFTS = 256
GATHERED_BYTES_MAX = 4 << 20
QUEUE_LIMIT = 4_096
UNKNOWN_RETRIES = 5
FEW_DRAFTS = 8  # as many single appends take about as long as one batch
BACK_OFF = BackOff(0.1, 1.6)


def check_draft(draft: Draft) -> None:
    """Raise InvalidDraft or PayloadTooLarge if the ledger would refuse `draft`."""
    subject = draft.subject
    if not subject.startswith(SUBJECT_PREFIX) or not _SUBJECT.fullmatch(subject):
        raise InvalidDraft(
            "subject",
            repr(subject[:120]),
            f"use {SUBJECT_PREFIX}<kind>.<name> without wildcards, blanks or empty tokens",
        )
    if len(draft.id) > MAX_ID_CHARS or not _ID.fullmatch(draft.id):
        raise InvalidDraft(
            "id", repr(draft.id[:120]), f"use 1 to {MAX_ID_CHARS} printable ASCII characters"
        )
    if draft.expect is not None and draft.expect < 0:
        raise InvalidDraft("expect", str(draft.expect), "use a revision, or 0 for an empty subject")
    if len(draft.payload) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"the event for {subject}", len(draft.payload), MAX_PAYLOAD_BYTES)


def check_batch(drafts: Sequence[Draft]) -> dict[str, int]:
    """Check a batch and each of its drafts, and return the batch's fences by subject.

    Raises InvalidDraft, PayloadTooLarge, or DuplicateRefused if two drafts have one id."""
    if len(drafts) > MAX_DRAFTS:
        raise InvalidDraft(
            "the batch", f"{len(drafts)} drafts", f"append at most {MAX_DRAFTS} at a time"
        )
    expects: dict[str, int | None] = {}
    ids: set[str] = set()
    for draft in drafts:
        check_draft(draft)
        if draft.id in ids:
            raise DuplicateRefused((draft.id,))
        ids.add(draft.id)
        first = expects.setdefault(draft.subject, draft.expect)
        if draft.expect is not None and draft.expect != first:
            raise InvalidDraft(
                "expect",
                f"{draft.expect} on {draft.subject}, but the batch's first draft on that subject "
                f"expects {first}",
                "set expect only on the first draft of a subject in the batch",
            )
    total = sum(len(draft.payload) for draft in drafts)
    if total > MAX_BATCH_BYTES:
        raise PayloadTooLarge(f"a batch of {len(drafts)} events", total, MAX_BATCH_BYTES)
    return {subject: expect for subject, expect in expects.items() if expect is not None}


class _Named(msgspec.Struct, frozen=True):
    id: str = ""
    type: str = ""


_decode_named = msgspec.json.Decoder(_Named).decode


def is_same(draft: Draft, subject: str, payload: bytes) -> bool:
    """Return True if a record is the draft's event, whichever process wrote the record.

    For example, two schedulers' placements of one pod are the same, even on different nodes."""
    if _channel(draft.subject) != _channel(subject):
        return False
    try:
        return _decode_named(draft.payload) == _decode_named(payload)
    except msgspec.DecodeError:
        return draft.payload == payload


def _channel(subject: str) -> list[str]:
    return subject.split(".", 3)[:3]


class Appended(msgspec.Struct, frozen=True):
    """The result of a successful append: its revision, and whether it was stored already."""

    revision: int | None  # None for a group that was stored already
    already_there: bool = False  # stored before this attempt, by us or by another writer


class _Unit:
    __slots__ = ("bytes", "drafts", "fenced", "result", "subjects")

    def __init__(self, drafts: tuple[Draft, ...]) -> None:
        self.drafts = drafts
        self.fenced = check_batch(drafts)
        self.subjects = {draft.subject for draft in drafts}
        self.bytes = sum(len(draft.payload) for draft in drafts)
        self.result: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: list[Appended] | Exception) -> None:
        if self.result.done():
            return  # the caller was cancelled
        if isinstance(outcome, Exception):
            self.result.set_exception(outcome)
        else:
            self.result.set_result(outcome)


class GroupCommit:
    """Gathers concurrent appends into atomic batches. Use it with `async with`."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        max_drafts: int = MAX_BATCH_DRAFTS,
        max_bytes: int = GATHERED_BYTES_MAX,
        queue_limit: int = QUEUE_LIMIT,
        clock: Clock | None = None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock or SystemClock()
        self._max_drafts = max_drafts
        self._max_bytes = max_bytes
        self._queue: asyncio.Queue[_Unit | None] = asyncio.Queue(queue_limit)
        self._held: _Unit | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="group commit")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        if self._task is not None:
            if not self._task.done():
                await self._queue.put(None)
            await self._task

    @property
    def queued(self) -> int:
        """Return the number of appends that wait while a batch is being stored."""
        return self._queue.qsize()

    async def append(self, draft: Draft) -> Appended:
        """Append one draft and return the result; see append_group."""
        return (await self.append_group((draft,)))[0]

    async def append_group(self, drafts: Sequence[Draft]) -> list[Appended]:
        """Append `drafts` all or none. An event that is already stored counts as a success.

        Raises as `Ledger.append` does; DuplicateRefused if a different event has the id."""
        if not drafts:
            return []
        unit = _Unit(tuple(drafts))
        if self._closed:
            raise _closing()
        await self._queue.put(unit)
        if self._task is None or self._task.done():
            self._queue.get_nowait()  # make room for the next caller that waits in `put`
            raise _closing()
        return await unit.result

    async def _run(self) -> None:
        units: list[_Unit] = []
        failure: Exception = _closing()
        try:
            while True:
                unit = self._held or await self._queue.get()
                self._held = None
                if unit is None:
                    return
                units = [unit]
                await asyncio.sleep(0)  # let the callers of the last batch enqueue their next
                units = self._gather(unit)
                await self._commit(units)
        except Exception as unexpected:
            failure = unexpected
            raise
        finally:
            self._closed = True
            while not self._queue.empty():
                left = self._queue.get_nowait()
                units += [] if left is None else [left]
            for unit in units:
                unit.settle(failure)

    def _gather(self, first: _Unit) -> list[_Unit]:
        units = [first]
        subjects = set(first.subjects)
        drafts, size = len(first.drafts), first.bytes
        while not self._queue.empty():
            unit = self._queue.get_nowait()
            if unit is None:
                self._queue.put_nowait(None)
                break
            drafts, size = drafts + len(unit.drafts), size + unit.bytes
            fits = drafts <= self._max_drafts and size <= self._max_bytes
            if not fits or not subjects.isdisjoint(unit.fenced):
                self._held = unit  # a second fence on a subject can only pass after the first
                break
            subjects |= unit.subjects
            units.append(unit)
        return units

    async def _commit(self, units: list[_Unit]) -> None:
        batch = units
        while batch := [unit for unit in batch if not unit.result.done()]:
            if 1 < len(batch) == sum(len(unit.drafts) for unit in batch) <= FEW_DRAFTS:
                await asyncio.gather(*(self._commit([unit]) for unit in batch))
                return
            try:
                revisions = await self._append(batch)
            except (FenceRefused, DuplicateRefused, NotPermitted) as refused:
                if len(batch) == 1:
                    batch[0].settle(await self._verdict(batch[0], refused))
                    continue
                blamed = batch
                if isinstance(refused, FenceRefused):
                    at, expected = refused.subject, refused.expected
                    blamed = [each for each in batch if each.fenced.get(at) == expected] or batch
                await asyncio.gather(*(self._commit([unit]) for unit in blamed))
            except LedgerError as failure:
                for unit in batch:
                    unit.settle(failure)
            else:
                places = iter(revisions)
                for unit in batch:
                    unit.settle([Appended(next(places)) for _ in unit.drafts])

    async def _append(self, batch: Sequence[_Unit]) -> list[int]:
        drafts = [draft for unit in batch for draft in unit.drafts]
        unknown: OutcomeUnknown | None = None
        for attempt in range(UNKNOWN_RETRIES):
            try:
                return await self._ledger.append(drafts)
            except OutcomeUnknown as failure:
                unknown = failure
            except LedgerUnavailable:
                if unknown is None:
                    raise
            await self._clock.pause(BACK_OFF.after(attempt + 1))
        raise unknown or _closing()

    async def _verdict(self, unit: _Unit, refused: LedgerError) -> list[Appended] | Exception:
        if not isinstance(refused, DuplicateRefused):
            return refused
        # Another writer's event with one of a group's ids must not pass for the group.
        try:
            there = refused.same or (len(unit.drafts) > 1 and await self._ledger.holds(unit.drafts))
        except LedgerError as failure:
            return failure
        if not there:
            return refused
        return [Appended(refused.revision, already_there=True) for _ in unit.drafts]


def _closing() -> LedgerUnavailable:
    return LedgerUnavailable("this writer is closing and accepts no more appends")
