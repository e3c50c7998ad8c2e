"""The past of one ledger, put together: what reads it, what is kept of it, and how far it is.

Invariant: what is asked of the index is answered from all that the ledger held when the question
came, or refused; the states of past moments need no index and are there before it is."""

import asyncio
from pathlib import Path

from apportion.core.ledger.state import State
from apportion.gateway.past.chronicle import Chronicle, open_archives
from apportion.gateway.past.index import Index
from apportion.gateway.past.indexing import Indexer, open_index, record_digest
from apportion.gateway.past.states import PastStates
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.metrics import Metrics

READ_S = 20.0
"""How long a question waits for the index to read what the ledger holds."""


class Past:
    """Everything that a question about the past may need. See `open_past`."""

    def __init__(
        self,
        ledger: JetStreamLedger,
        looks: JetStreamLedger,
        *,
        chronicle: Chronicle,
        states: PastStates,
        indexer: Indexer,
        index: Index,
        metrics: Metrics,
    ) -> None:
        self.chronicle = chronicle
        self.states = states
        self.index = index
        self.indexer = indexer
        self._looks = looks
        self.reader: Reader[object] = Reader(
            ledger, indexer, metrics=metrics, after=indexer.state.revision
        )
        indexer.stored_ns = lambda: self.reader.stored_ns

    async def run(self) -> None:
        """Read the archives, and then the ledger, until cancelled. Raises LedgerError."""
        first = await self._looks.first_revision()
        if self.indexer.state.revision + 1 < first:
            try:
                await self.chronicle.read(
                    self.reader.take, after=self.indexer.state.revision, upto=first - 1
                )
            except Exception:
                if not self.reader.halted:
                    raise
                await self.reader.superseded()  # begun anew, it would halt at the same event
        await self.reader.run()

    async def caught_up(self) -> int:
        """The newest revision of the ledger, once the index has read it.

        Raises LedgerUnavailable where that takes too long, or never will be."""
        last = await self._looks.last_revision()
        try:
            async with asyncio.timeout(READ_S):
                if await self.reader.folds(last) and not self.indexer.failed:
                    return last
        except TimeoutError:
            raise LedgerUnavailable(
                f"the ledger's past is being read: at revision {self.reader.revision:,} of {last:,}"
            ) from None
        raise LedgerUnavailable(self.reader.halted or self.indexer.failed)


async def open_past(
    ledger: JetStreamLedger,
    looks: JetStreamLedger,
    *,
    kept: Path,
    archives: Path | None,
    metrics: Metrics,
) -> Past:
    """The past of this ledger, with what was kept of it; `looks` is a connection for looks alone.

    Raises LedgerError, OSError."""
    info = await stream.check(looks.wire)
    snapshots = Snapshots(looks.wire)
    index, checkpoints = open_index(kept, info.created)
    dropped = info.state.first_seq > 1  # and with it, perhaps, what a snapshot knows of the rules
    checkpoints.rules = (await snapshots.restore()).rules if dropped else await snapshots.rules()
    chronicle = Chronicle(looks, open_archives(archives, info.created))
    # Reading goes on, or begins, with what was kept, else the first revision, else a snapshot.
    first, last = await chronicle.span()
    state: State | None = None
    if (revision := index.revision) and first - 1 <= revision <= last:
        # If the index's newest event is not the ledger's, the ledger was restored or made again.
        # A ledger that has dropped that event is taken for the same: its stream is.
        records = await chronicle.records([revision])
        is_of = all(record_digest(r) == index.kept("record") for r in records)
        state = checkpoints.load(revision) if is_of else None
    if state is None:
        if revision:
            index.restart()
            checkpoints.clear()
        oldest = await snapshots.oldest(first) if first > 1 else None
        state = oldest or checkpoints.nothing()
    indexer = Indexer(state, index, checkpoints)
    return Past(
        ledger,
        looks,
        chronicle=chronicle,
        states=PastStates(chronicle, checkpoints, snapshots),
        indexer=indexer,
        index=index,
        metrics=metrics,
    )
