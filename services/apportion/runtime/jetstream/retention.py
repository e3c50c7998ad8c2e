"""Dropping the ledger's beginning: what may go, and why not more.

A revision may go when it is in an archive that proves itself and is of this very ledger, when every
snapshot that is kept is beyond it, when no placement that still waits to be bound is at or before
it, for the binders' queue hands out that record, and when the server has forgotten its id, so that
nobody looks in vain for why an id is taken. Before anything goes, bootstrap keeps the state with
which the rest begins, and the configuration in force, where no service can write. Invariant: what
is dropped is in the archive, and every service can begin with what is left."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from apportion.core.ledger.state import Phase, State
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.archive import ArchiveError, read_archive, read_opening
from apportion.runtime.ledger.port import LedgerError, Record
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics


class CannotDrop(LedgerError):
    """Nothing may be dropped; the message says what is missing."""


class Droppable(NamedTuple):
    """The revisions `first` to `last` may go; none where last is before first. `because` of this it
    is not more."""

    first: int
    last: int
    because: str


class _Archived(NamedTuple):
    """An archive's span, and its record at the revision asked for, or else its last one."""

    first: int
    last: int
    record: Record | None


async def droppable(
    ledger: JetStreamLedger, archive: Path, *, at_most: int, older_than_s: float
) -> Droppable:
    """How much of the ledger's beginning this archive lets go.

    `at_most` and `older_than_s` are the person's wishes.

    Reads as any role that may read. Raises CannotDrop, ArchiveError, OSError, LedgerError."""
    info = await stream.check(ledger.wire)
    opening = await asyncio.to_thread(read_opening, archive)
    if opening.created != info.created:
        raise CannotDrop(
            f"{archive} is of the ledger made at {opening.created}, and this one was made at "
            f"{info.created}; write an archive of this one: apportion ledger archive FILE"
        )
    first = info.state.first_seq
    last, because = await _needed(ledger)
    if at_most < last:
        last, because = at_most, "--to says so"
    young = datetime.fromisoformat(info.ts) - timedelta(seconds=older_than_s)
    old = max(await stream.newest_stored_by(ledger.wire, young), first - 1)
    if old < last:
        last, because = old, f"what comes then is not older than {older_than_s:g} s"
    archived = await asyncio.to_thread(_span, archive, last)
    if archived.last < last:
        last, because = archived.last, f"the archive ends at {archived.last}"
    if last >= first:
        # It goes on from what was dropped before, word for word.
        if archived.first > first:
            raise CannotDrop(
                f"{archive} begins at {archived.first} and the ledger at {first}; what is between "
                "would be lost: write an archive that begins there"
            )
        record = archived.record
        if record is None or await stream.read_record(ledger.wire, record.revision) != record:
            raise CannotDrop(f"{archive} and the ledger differ, though the archive proves itself")
    return Droppable(first, last, because)


async def _needed(ledger: JetStreamLedger) -> tuple[int, str]:
    """The last revision that nobody needs any more to begin, and who needs the next one."""
    snapshots = Snapshots(ledger.wire)
    sound = [each for each in await snapshots.stored() if await snapshots.load(each) is not None]
    if not sound:
        raise CannotDrop(
            "there is no snapshot that can be used, so every service begins at the first revision; "
            "a scheduler writes one after --snapshot-every events, or 1,000 in 15 minutes, and an "
            "intake attests it"
        )
    # What bootstrap keeps is replaced by the oldest of the schedulers'.
    oldest = next((each.revision for each in reversed(sound) if not each.beginning), 0)
    oldest = oldest or sound[-1].revision
    last, because = oldest - 1, f"the oldest snapshot is of {oldest}"
    state = await _folded(ledger, await snapshots.restore())
    waiting = [pod.placed_revision for pod in state.pods.values() if pod.phase is Phase.PLACED]
    if waiting and min(waiting) <= last:
        last, because = min(waiting) - 1, f"the placement at {min(waiting)} is not bound yet"
    return last, because


async def _folded(ledger: JetStreamLedger, state: State) -> State:
    cluster = StateFold(state)
    reader = Reader(ledger, cluster, metrics=Metrics(), after=state.revision)
    last = await ledger.last_revision()
    following = asyncio.create_task(reader.run())
    caught_up = asyncio.create_task(reader.folds(last))
    try:
        await asyncio.wait({following, caught_up}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        if reader.halted:
            raise CannotDrop(reader.halted)
    finally:
        for task in (following, caught_up):
            task.cancel()
        await asyncio.gather(following, caught_up, return_exceptions=True)
    return cluster.state


def _span(archive: Path, wanted: int) -> _Archived:
    """Read the whole archive, which proves itself on the way."""
    first = last = 0
    record = None
    for each in read_archive(archive):
        if not first:
            first = each.revision
        elif each.revision != last + 1:
            raise ArchiveError(f"{archive}: revision {last + 1} is missing")
        last = each.revision
        if last <= wanted:
            record = each
    return _Archived(first, last, record)
