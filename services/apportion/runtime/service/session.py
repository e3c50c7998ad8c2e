"""One life of a service on the ledger: connected, checked, with appends gathered into batches.

Every service opens the ledger in the same way and leaves it in the same way: what was handed in is
appended or given up, then the connection is closed. Invariant: outside of a session a service holds
nothing of the ledger, so beginning anew begins with nothing."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, runtime_checkable

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
    """The ledger, and the append of this life: batched, and insistent while the ledger is away."""

    ledger: Ledger
    append: Append
    snapshots: Snapshots | None = None

    async def restored(self) -> State:
        """The state of the newest snapshot that can be used; empty where there is none."""
        return State() if self.snapshots is None else await self.snapshots.restore()

    async def rules(self) -> Rules:
        """By which rules the ledger is read, as of now."""
        return Rules() if self.snapshots is None else await self.snapshots.rules()

    async def beyond_beginning(self) -> State | None:
        """A snapshot's state where the ledger's beginning was dropped; None where it is there.

        For those who read a small part of the ledger, and not its snapshots as long as it is whole.
        """
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
        """What folds the ledger into `cluster`, before which the service is not ready."""

        def observe(change: Change) -> None:
            for each in observers:
                each(change)

        reader = Reader(
            self.ledger,
            cluster,
            metrics=service.metrics,
            on_change=observe if observers else None,
            after=cluster.state.revision,
            writes=writes,
        )
        service.ready_when(reader.not_ready)
        return reader


@asynccontextmanager
async def open_session(service: Service, *, node: str = "") -> AsyncIterator[Session]:
    """Connect as this service, check the stream, and close both at the end.

    `node` is that of an agent that has one.

    Raises LedgerUnavailable, NotPermitted, ServerTooOld, LedgerDrifted: see `jetstream.connect`."""
    ledger = await (service.connect or (lambda: _connect(service, node)))()
    if isinstance(ledger, JetStreamLedger):
        service.watch(ledger)
    try:
        async with GroupCommit(ledger, clock=service.clock) as commit:
            append = Insistence(commit.append, service.clock).append
            yield Session(ledger, append, _snapshots_of(ledger))
    finally:
        await ledger.close()


@runtime_checkable
class BringsSnapshots(Protocol):
    """A ledger that is not on a server, and keeps the snapshots itself."""

    snapshots: Snapshots


def _snapshots_of(ledger: Ledger) -> Snapshots | None:
    """None for a ledger that has no object store beside it."""
    if isinstance(ledger, BringsSnapshots):
        return ledger.snapshots
    if not isinstance(ledger, JetStreamLedger):
        return None
    wire = ledger.wire
    through = isinstance(wire, NodeConnection) and wire.through_intake
    return NodeSnapshots(wire) if through else Snapshots(wire)


async def _connect(service: Service, node: str) -> Ledger:
    role = BY_NAME.get(service.name)
    if role is not None and role.appends and service.config.ledger_key is None:
        service.log.warning(
            "what is appended has ids that others can guess, and take before it is: give all who "
            "append one key, --ledger-key or APPORTION_LEDGER_KEY"
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
