"""The past of one ledger: its chronicle, index and states.

Invariant: an answer from the index covers everything that the ledger had when the request came, or
the request is refused. States of past revisions are available before the index is."""

import asyncio
from pathlib import Path

from apportion.core.ledger.state import State
from apportion.gateway.past.chronicle import Chronicle, open_archives
from apportion.gateway.past.index import Index
from apportion.gateway.past.indexing import Indexer, open_index
from apportion.gateway.past.states import PastStates
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.metrics import Metrics

READ_S = 20.0  # how long a request waits for the index to catch up


class Past:
    """The records, index and states with which queries about the past are answered."""

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
        """Read the archives and then the ledger until cancelled. Raises LedgerError."""
        first = await self._looks.first_revision()
        if self.indexer.state.revision + 1 < first:
            try:
                await self.chronicle.read(
                    self.reader.take, after=self.indexer.state.revision, upto=first - 1
                )
            except Exception:
                if not self.reader.halted:
                    raise
                await self.reader.superseded()  # a restart would halt at the same event
        await self.reader.run()

    async def caught_up(self) -> int:
        """Wait until the newest revision is indexed, and return it. Raises LedgerUnavailable."""
        last = await self._looks.last_revision()
        try:
            async with asyncio.timeout(READ_S):
                if await self.reader.folds(last) and not self.indexer.failed:
                    return last
        except TimeoutError:
            raise LedgerUnavailable(
                f"the index of the past is loading: revision {self.reader.revision:,} of {last:,}"
            ) from None
        raise LedgerUnavailable(self.reader.halted or self.indexer.failed)


async def open_past(
    ledger: JetStreamLedger,
    looks: JetStreamLedger,  # the connection for queries
    *,
    kept: Path,
    archives: Path | None,
    metrics: Metrics,
) -> Past:
    """Open the past of `ledger` for queries. Raises LedgerError, OSError."""
    info = await stream.check(looks.wire)
    snapshots = Snapshots(looks.wire)
    index, checkpoints = open_index(kept, info.created)
    dropped = info.state.first_seq > 1  # then the rules may be known only by a snapshot
    checkpoints.rules = (await snapshots.restore()).rules if dropped else await snapshots.rules()
    chronicle = Chronicle(looks, open_archives(archives, info.created))
    # Start from the kept state, else from the first revision, else from a snapshot.
    first, last = await chronicle.span()
    state: State | None = None
    if (revision := index.revision) and first - 1 <= revision <= last:
        # If the index's newest event differs from the ledger's, the ledger was restored or
        # recreated. If the ledger has dropped that event, the stream's identity is enough.
        records = await chronicle.records([revision])
        is_of = all(each.digest == index.kept("record") for each in records)
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
