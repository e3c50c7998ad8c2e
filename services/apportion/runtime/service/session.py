"""Connects a service to the ledger, checks the stream, and batches the service's appends.

Invariant: outside a session a service keeps no data of the ledger, so a restart begins empty."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from apportion.core.identity.roles import BY_NAME
from apportion.core.ledger.fold import Change
from apportion.core.ledger.rules import Rules
from apportion.core.ledger.state import State
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.client import Connection, JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.jetstream.through_intake import NodeConnection, NodeSnapshots
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import Ledger
from apportion.runtime.ledger.publisher import Append, Insistence
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.service.lifecycle import Service


class Session(msgspec.Struct, frozen=True):
    """The ledger with batched appends, which are retried while the ledger is unavailable."""

    ledger: Ledger
    append: Append
    snapshots: Snapshots | None = None

    async def restored(self) -> State:
        """Return the state of the newest usable snapshot, or an empty state if there is none."""
        return State() if self.snapshots is None else await self.snapshots.restore()

    async def rules(self) -> Rules:
        """Return the current reading rules: the enabled formats, and the revisions to skip."""
        return Rules() if self.snapshots is None else await self.snapshots.rules()

    async def beyond_beginning(self) -> State | None:
        """Return a snapshot's state if the ledger's oldest records were dropped, or None."""
        if self.snapshots is None or not await self.snapshots.begun_without():
            return None
        return await self.snapshots.restore()

    def reader(
        self,
        service: Service,
        cluster: StateFold,
        *observers: Callable[[Change], None],
        writes: str,
    ) -> Reader[Change]:
        """Return a reader that folds into `cluster`; the service is not ready before the reader."""

        def observe(change: Change) -> None:
            for each in observers:
                each(change)

        reader = Reader(
            self.ledger, cluster, metrics=service.metrics, after=cluster.state.revision,
            on_change=observe if observers else None, writes=writes,
        )  # fmt: skip
        service.ready_when(reader.not_ready)
        return reader


@asynccontextmanager
async def open_session(service: Service, *, node: str = "") -> AsyncIterator[Session]:
    """Connect as this service, or as the agent of `node`, and check the stream.

    Raises LedgerUnavailable, NotPermitted, ServerTooOld, LedgerDrifted."""
    ledger = await (service.connect or (lambda: _connect(service, node)))()
    # A ledger without a server may keep snapshots itself.
    snapshots: Snapshots | None = getattr(ledger, "snapshots", None)
    if isinstance(ledger, JetStreamLedger):
        service.watch(ledger)
        wire = ledger.wire
        through = isinstance(wire, NodeConnection) and wire.through_intake
        snapshots = NodeSnapshots(wire) if through else Snapshots(wire)
    try:
        async with GroupCommit(ledger, clock=service.clock) as commit:
            append = Insistence(commit.append, service.clock).append
            yield Session(ledger, append, snapshots)
    finally:
        await ledger.close()


async def _connect(service: Service, node: str) -> Ledger:
    role = BY_NAME.get(service.name)
    if role is not None and role.appends and service.config.ledger_key is None:
        service.log.warning(
            "event ids are guessable, so another user could block an append by using its id first; "
            "give all writers one key with --ledger-key or APPORTION_LEDGER_KEY"
        )
    ledger = await jetstream.connect(
        service.config.reach,
        name=service.name,
        watch=service.soundness.note,
        opened=partial(NodeConnection, node=node) if node else Connection,
    )
    try:
        await jetstream.check_stream(ledger)
    except BaseException:
        await ledger.close()
        raise
    return ledger
