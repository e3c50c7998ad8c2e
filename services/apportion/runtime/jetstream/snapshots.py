"""Snapshots in the object store: a restart folds the tail of the ledger and not all of it.

A snapshot is a convenience and never the truth. One that is corrupt, of another format, ahead of
the ledger or of another ledger is set aside with a message, and an older one is used, or the ledger
from its first revision. So is one that holds what an operator has set aside since. That it is of
this ledger is seen from the SHA-256 of the record at its revision, which it names. Invariant: what
is restored is a state that the ledger, from its first revision to that one, folds to, by the rules
that are in force now, which come with it.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256

import msgspec

from apportion.core.ledger import snapshot
from apportion.core.ledger.rules import Rules
from apportion.core.ledger.snapshot import FORMAT, SnapshotError, Taken
from apportion.core.ledger.state import State
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.kept_configuration import KeptConfiguration
from apportion.runtime.jetstream.object_store import BadObject, Bucket, Entry
from apportion.runtime.jetstream.wire import Wire
from apportion.runtime.ledger.port import LedgerUnavailable, NotPermitted, Record
from apportion.runtime.process.logs import get_logger

BUCKET = "APPORTION_SNAPSHOTS"
KEPT = 3
SIZE_MAX_BYTES = 2 << 30
YOUNG_MAX = 100_000  # objects that the collector may find new after a restore
_REVISION, _RECORD, _FORMAT = "revision", "record", "format"
_DIGITS = 20

_log = get_logger(__name__)


class Stored(msgspec.Struct, frozen=True):
    """A snapshot in the bucket; `record` is the digest of the ledger's record at its revision."""

    revision: int
    record: str
    entry: Entry


class Snapshots:
    """The snapshots of one ledger, over one connection."""

    def __init__(self, wire: Wire, *, kept: int = KEPT) -> None:
        self._wire = wire
        self._bucket = Bucket(wire, BUCKET)
        self._kept = kept
        self.configuration = KeptConfiguration(wire, self._bucket)

    async def create(self, *, replicas: int) -> None:
        """Make the bucket where there is none; for the bootstrap user. Raises LedgerError."""
        await self._bucket.create(replicas=replicas, description="states of the ledger, to restart")

    async def stored(self) -> list[Stored]:
        """What there is, the newest first; empty where there is no bucket, too."""
        if not await self._bucket.exists():
            return []
        found = []
        for entry in await self._bucket.entries():
            revision = entry.metadata.get(_REVISION, "")
            if revision.isascii() and revision.isdecimal() and len(revision) <= _DIGITS:
                found.append(Stored(int(revision), entry.metadata.get(_RECORD, ""), entry))
        return sorted(found, key=lambda each: each.revision, reverse=True)

    async def recorded_at(self, stored: Stored) -> datetime | None:
        """When the record at the snapshot's revision was stored, None where it is not there now."""
        return await stream.read_stored_at(self._wire, stored.revision)

    async def begun_without(self) -> bool:
        """Whether the ledger has dropped its beginning, so that nobody can begin without one."""
        return (await stream.read_info(self._wire)).state.first_seq > 1

    async def rules(self) -> Rules:
        """By which rules the ledger is read, as of now. Raises LedgerUnavailable, NotPermitted."""
        return await stream.read_rules(self._wire)

    async def restore(self, *, at_most: int | None = None) -> State:
        """The newest state that can be used, not beyond `at_most`; else an empty one.

        Raises LedgerUnavailable, NotPermitted: nobody says by which rules the ledger is read.
        """
        rules = await self.rules()
        try:
            stored = await self.stored()
        except (NotPermitted, LedgerUnavailable) as trouble:
            # The ledger may well be there where its snapshots are not; whoever reads it will see.
            _log.warning("snapshots are not used", error=str(trouble))
            stored = []
        for each in stored:
            if at_most is None or each.revision <= at_most:
                state = await self.load(each, rules)
                if state is not None:
                    return state
        return State(rules=rules)

    async def load(self, stored: Stored, rules: Rules | None = None) -> State | None:
        """The state of one snapshot, or None, with a message that says why it is not used.

        `rules` are those of now where they are known; else they are looked up.
        """
        rules = rules or await self.rules()
        try:
            await self._check_place(stored)
            data = await self._bucket.get(stored.entry, size_max=SIZE_MAX_BYTES)
            state = await asyncio.to_thread(restored, data)
            if state.revision != stored.revision:
                raise BadObject(f"it is of revision {state.revision}")
            if not state.rules.go_on(rules, state.revision):
                raise BadObject("it holds what an operator has set aside since")
        except (BadObject, SnapshotError, LedgerUnavailable) as error:
            _log.warning(
                "snapshot not used; an older one is, or the whole ledger",
                snapshot=stored.entry.name,
                error=str(error),
            )
            return None
        return state

    async def save(self, taken: Taken) -> None:
        """Store a snapshot of this ledger, and forget all but the newest.

        The configuration in it is kept beside it, for those who read nothing else.

        Raises:
            LedgerFull, LedgerUnavailable, NotPermitted: the snapshots before it are still there.
        """
        record = await stream.read_record(self._wire, taken.revision)
        if record is None:
            raise LedgerUnavailable(f"the ledger has no record at {taken.revision} any more")
        name = f"{taken.revision:0{_DIGITS}}"
        nuid = f"{name}-{secrets.token_hex(8)}"
        metadata = {_REVISION: name, _RECORD: _digest(record), _FORMAT: str(FORMAT)}
        await self.configuration.keep(taken.configuration_revision)
        await self._bucket.put(name, nuid, taken.parts, metadata)
        await self._forget_old()

    async def _check_place(self, stored: Stored) -> None:
        record = await stream.read_record(self._wire, stored.revision)
        if record is None:
            raise BadObject("the ledger does not reach so far: it was restored, or made anew")
        if _digest(record) != stored.record:
            raise BadObject(f"the ledger has another record at {stored.revision}: it was made anew")

    async def _forget_old(self) -> None:
        """Keep the newest, and free pieces that a writer left behind when it died."""
        stored = await self.stored()
        for each in stored[self._kept :]:
            await self._bucket.delete(each.entry)
        kept = stored[: self._kept]
        named = {each.entry.nuid for each in kept}
        oldest = f"{kept[-1].revision:0{_DIGITS}}" if len(kept) == self._kept else ""
        for nuid in await self._bucket.pieces() - named:
            if nuid < oldest:  # a newer one may be another scheduler's that is writing now
                await self._bucket.forget_pieces(nuid)


def _digest(record: Record) -> str:
    return sha256(record.subject.encode() + b"\n" + record.payload).hexdigest()


def restored(data: bytearray) -> State:
    """The state in the bytes of a snapshot. Raises SnapshotError."""
    with _no_collection():
        return snapshot.restore(data)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of objects are made and none is garbage: looking for some triples the time.

    Where they are many, all count as old at the end, as if they had been looked through: else the
    next object that anybody makes would have the collector look through every one. What is garbage
    already is then found late, which a process that restores small states often would pay for.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > YOUNG_MAX:
            gc.freeze()
            gc.unfreeze()
        if was:
            gc.enable()
