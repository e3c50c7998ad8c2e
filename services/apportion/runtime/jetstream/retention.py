"""Decides how much of the ledger's beginning may be dropped, and reports what limits it.

A revision may be dropped once a valid archive of this ledger has it, and the server no longer needs
its message id for deduplication. The revision must also precede every kept snapshot and every
placement that the binders' queue may still deliver. Invariant: every dropped revision is archived.
Before a drop, bootstrap stores state and configuration for new readers."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from apportion.core.ledger.state import Phase
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.archive import ArchiveError, read_archive, read_opening
from apportion.runtime.ledger.port import LedgerError, Record
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.process.waiting import first_of


class CannotDrop(LedgerError):
    """Error: no revision may be dropped. The message says why, such as an incomplete archive."""


class Droppable(NamedTuple):
    """The revisions `first` to `last`, which may be dropped, and what keeps the next revision.

    If `last` is before `first`, no revision may be dropped."""

    first: int
    last: int
    because: str  # why no more


async def droppable(
    ledger: JetStreamLedger, archive: Path, *, at_most: int, older_than_s: float
) -> Droppable:
    """Return the revisions that may be dropped, within the limits that the operator set.

    Any role that may read can call this. Raises CannotDrop, ArchiveError, OSError, LedgerError."""
    info = await stream.check(ledger.wire)
    opening = await asyncio.to_thread(read_opening, archive)
    if opening.created != info.created:
        raise CannotDrop(
            f"{archive} belongs to the ledger created at {opening.created}, but this ledger was "
            f"created at {info.created}; archive this one: apportion ledger archive FILE"
        )
    first = info.state.first_seq
    last, because = await _needed(ledger)
    if at_most < last:
        last, because = at_most, "--to ends there"
    young = datetime.fromisoformat(info.ts) - timedelta(seconds=older_than_s)
    old = max(await stream.newest_stored_by(ledger.wire, young), first - 1)
    if old < last:
        last, because = old, f"later events are less than {older_than_s:g} s old"
    begins, ends, record = await asyncio.to_thread(_span, archive, last)
    if ends < last:
        last, because = ends, f"the archive ends at {ends}"
    if last >= first:
        # The archive must continue what was dropped before, byte for byte.
        if begins > first:
            raise CannotDrop(
                f"{archive} begins at {begins}, but the ledger at {first}; the events in between "
                f"would be lost, so write an archive that begins at {first}"
            )
        if record is None or await stream.read_record(ledger.wire, record.revision) != record:
            raise CannotDrop(f"{archive} is intact but differs from the ledger")
    return Droppable(first, last, because)


async def _needed(ledger: JetStreamLedger) -> tuple[int, str]:
    """Return the last revision that no service needs, and why the next one is needed."""
    snapshots = Snapshots(ledger.wire)
    sound = [each for each in await snapshots.stored() if await snapshots.load(each) is not None]
    if not sound:
        raise CannotDrop(
            "no usable snapshot exists, so every service still needs the first revision; a "
            "scheduler writes one after --snapshot-every events, or after 1,000 events in "
            "15 minutes, and an intake attests it"
        )
    # The snapshot that bootstrap keeps is replaced by the schedulers' oldest.
    oldest = next((each.revision for each in reversed(sound) if not each.beginning), 0)
    oldest = oldest or sound[-1].revision
    last, because = oldest - 1, f"the oldest snapshot is of revision {oldest}"
    cluster = StateFold(await snapshots.restore())
    reader = Reader(ledger, cluster, metrics=Metrics(), after=cluster.state.revision)
    await first_of(reader.run(), reader.folds(await ledger.last_revision()))
    if reader.halted:
        raise CannotDrop(reader.halted)
    pods = cluster.state.pods.values()
    waiting = [pod.placed_revision for pod in pods if pod.phase is Phase.PLACED]
    if waiting and min(waiting) <= last:
        last, because = (
            min(waiting) - 1,
            f"the placement at revision {min(waiting)} is not bound yet",
        )
    return last, because


def _span(archive: Path, wanted: int) -> tuple[int, int, Record | None]:
    """Verify the archive. Return its first and last revision, and its newest record <= `wanted`."""
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
    return first, last, record
