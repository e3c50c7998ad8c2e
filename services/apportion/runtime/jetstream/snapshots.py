"""Snapshots in the object store: a restart folds the tail of the ledger and not all of it.

A snapshot is a convenience and never the truth. Schedulers write it, and a reader believes it only
once an intake has folded the ledger to the same state and attested its digest. A ledger whose
beginning was dropped has one more, which bootstrap alone can write and purge. One that is corrupt,
of another format, ahead of the ledger or of another ledger is set aside with a message, and an
older one is used, or the ledger from its first revision. So is one that holds what an operator has
set aside since. That it is of this ledger is seen from the SHA-256 of the record at its revision,
which it names. Invariant: what is restored is a state that the ledger, from its first revision to
that one, folds to, by the rules that are in force now, which come with it."""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

from apportion.core.ledger import snapshot
from apportion.core.ledger.rules import Rules
from apportion.core.ledger.snapshot import FORMAT, SnapshotError, Taken
from apportion.core.ledger.state import State
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.object_store import BadObject, Bucket, Entry
from apportion.runtime.jetstream.wire import Wire
from apportion.runtime.ledger.port import LedgerUnavailable, NotPermitted, Record
from apportion.runtime.process.logs import get_logger
from apportion_schemas.catalogue import SUBJECTS
from apportion_schemas.decoding import from_outside

BUCKET = "APPORTION_SNAPSHOTS"
BEGINNING = "APPORTION_BEGINNING"
"""The bucket of the snapshot with which a trimmed ledger begins."""
_ATTESTED = "attested.intake"
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
    beginning: bool = False

    @property
    def key(self) -> Key:
        """What an attestation names: the revision, and the digest of the bytes."""
        return self.revision, self.entry.digest


Key = tuple[int, str]
_decode_attested = from_outside(msgspec.json.Decoder(list[Key]).decode)


class Beginning(msgspec.Struct, frozen=True):
    """What a trimmed ledger begins with: a snapshot's bytes, and the configuration in force."""

    stored: Stored
    data: bytes
    configuration: Record | None


class Snapshots:
    """The snapshots of one ledger, over one connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._bucket = Bucket(wire, BUCKET)
        self._beginning = Bucket(wire, BEGINNING)

    async def create(self, *, replicas: int) -> None:
        """Make the buckets where there are none; for the bootstrap user. Raises LedgerError."""
        await self._bucket.create(replicas=replicas, description="states of the ledger, to restart")
        await self._beginning.create(replicas=replicas, description="where a trimmed ledger begins")

    async def stored(self) -> list[Stored]:
        """The snapshots that a reader may believe, the newest first."""
        written = await self.written()
        attested = await self.attested() if written else frozenset()
        found = [each for each in written if each.key in attested] + await self.beginning()
        return sorted(found, key=lambda each: each.revision, reverse=True)

    async def written(self) -> list[Stored]:
        """All that schedulers have written, the newest first, attested or not."""
        return await _entries(self._bucket)

    async def beginning(self) -> list[Stored]:
        """The snapshot with which a trimmed ledger begins, in a list; empty without one."""
        return [
            msgspec.structs.replace(each, beginning=True)
            for each in (await _entries(self._beginning))[:1]
        ]

    async def attested(self) -> frozenset[Key]:
        """What intakes have attested of the snapshots that schedulers wrote."""
        data = await self._bucket.get_last(_ATTESTED)
        try:
            return frozenset(_decode_attested(data)) if data is not None else frozenset()
        except msgspec.MsgspecError:
            return frozenset()

    async def attest(self, keys: Iterable[Key]) -> None:
        """Say which snapshots are what the ledger folds to; for intakes, which alone may.

        Raises LedgerFull, LedgerUnavailable, NotPermitted."""
        await self._bucket.put_alone(_ATTESTED, msgspec.json.encode(sorted(keys)), {})

    async def oldest(self, first: int) -> State | None:
        """The oldest state from which a ledger that begins at `first` can be read on.

        Raises LedgerUnavailable, NotPermitted."""
        for stored in reversed(await self.stored()):
            state = await self.load(stored) if stored.revision + 1 >= first else None
            if state is not None:
                return state
        return None

    async def beginning_behind(self, last: int) -> Beginning | None:
        """What the ledger begins with once it is dropped up to `last`; None if that is there.

        Raises BadObject, LedgerUnavailable, NotPermitted."""
        for stored in reversed(await self.stored()):
            state = await self.load(stored) if stored.revision > last else None
            if state is None:
                continue
            if stored.beginning:
                return None
            at = state.configuration_revision
            record = await stream.read_record(self._wire, at) if 0 < at <= last else None
            data = await self._bucket.get(stored.entry, size_max=SIZE_MAX_BYTES)
            return Beginning(stored, bytes(data), record)
        raise BadObject(f"no snapshot behind {last} can be used any more")

    async def begin_with(self, beginning: Beginning) -> None:
        """Put it where only bootstrap writes, in place of the one before; for that user.

        Raises LedgerFull, LedgerUnavailable, NotPermitted: the one before is still there."""
        entry, before = beginning.stored.entry, await _entries(self._beginning)
        if beginning.configuration is not None:
            await keep_configuration(self._beginning, beginning.configuration)
        nuid = f"{beginning.stored.revision:0{_DIGITS}}-{secrets.token_hex(8)}"
        await self._beginning.put(nuid, nuid, [beginning.data], entry.metadata)
        for each in before:
            await self._beginning.delete(each.entry)

    async def begun_without(self) -> bool:
        """Whether the ledger has dropped its beginning, so that nobody can begin without one."""
        return (await stream.read_info(self._wire)).state.first_seq > 1

    async def rules(self) -> Rules:
        """By which rules the ledger is read, as of now. Raises LedgerUnavailable, NotPermitted."""
        return await stream.read_rules(self._wire)

    async def restore(self, *, at_most: int | None = None) -> State:
        """The newest state that can be used, not beyond `at_most`; else an empty one.

        Raises LedgerUnavailable, NotPermitted: nobody says by which rules the ledger is read."""
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

        `rules` are those of now where they are known; else they are looked up."""
        rules = rules or await self.rules()
        try:
            await self._check_place(stored)
            bucket = self._beginning if stored.beginning else self._bucket
            data = await bucket.get(stored.entry, size_max=SIZE_MAX_BYTES)
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

    async def _check_place(self, stored: Stored) -> None:
        record = await stream.read_record(self._wire, stored.revision)
        if record is None:
            raise BadObject("the ledger does not reach so far: it was restored, or made anew")
        if _digest(record) != stored.record:
            raise BadObject(f"the ledger has another record at {stored.revision}: it was made anew")

    async def save(self, taken: Taken) -> None:
        """Store a snapshot of this ledger, and forget all but the newest.

        Raises LedgerFull, LedgerUnavailable, NotPermitted: the snapshots before it are still
        there."""
        record = await stream.read_record(self._wire, taken.revision)
        if record is None:
            raise LedgerUnavailable(f"the ledger has no record at {taken.revision} any more")
        name = f"{taken.revision:0{_DIGITS}}"
        nuid = f"{name}-{secrets.token_hex(8)}"
        metadata = {_REVISION: name, _RECORD: _digest(record), _FORMAT: str(FORMAT)}
        await self._bucket.put(name, nuid, taken.parts, metadata)
        # Keep the newest, the newest attested and our own; free what a dead writer left.
        written, attested = await self.written(), await self.attested()
        believed = [each for each in written if each.key in attested]
        named = {each.entry.nuid for each in (*written[:KEPT], *believed[: KEPT - 1])}
        named.add(nuid)
        kept = [each for each in written if each.entry.nuid in named]
        for each in written:
            if each not in kept:
                await self._bucket.delete(each.entry)
        oldest = f"{kept[-1].revision:0{_DIGITS}}" if len(kept) >= KEPT else ""
        for unnamed in await self._bucket.pieces() - named:
            if unnamed < oldest:  # a newer one may be another scheduler's that is writing now
                await self._bucket.forget_pieces(unnamed)


async def _entries(bucket: Bucket) -> list[Stored]:
    """Its snapshots, the newest first; empty where there is no bucket, too."""
    if not await bucket.exists():
        return []
    found = []
    for entry in await bucket.entries():
        revision = entry.metadata.get(_REVISION, "")
        if revision.isascii() and revision.isdecimal() and len(revision) <= _DIGITS:
            found.append(Stored(int(revision), entry.metadata.get(_RECORD, ""), entry))
    return sorted(found, key=lambda each: each.revision, reverse=True)


def _digest(record: Record) -> str:
    return sha256(record.subject.encode() + b"\n" + record.payload).hexdigest()


def restored(data: bytearray) -> State:
    """The state in the bytes of a snapshot. Raises SnapshotError."""
    # Millions of objects are made and none is garbage: looking for some triples the time.
    was = gc.isenabled()
    gc.disable()
    try:
        return snapshot.restore(data)
    finally:
        # Many count as old from now on, as if they had been looked through: else the next object
        # that is made would have the collector look through every one. What is garbage already is
        # then found late, which a process that restores small states often would pay for.
        if gc.get_count()[0] > YOUNG_MAX:
            gc.freeze()
            gc.unfreeze()
        if was:
            gc.enable()


CONFIGURATION: Final = f"{SUBJECTS}.operator.configuration"
NAME: Final = "configuration"
_KEPT_REVISION: Final = "Apportion-Revision"


async def keep_configuration(bucket: Bucket, record: Record) -> None:
    """Keep the configuration in force where a trimmed ledger no longer has it; for bootstrap.

    A reader of everything begins beyond the dropped beginning with a snapshot. The webhook folds
    the configuration alone, and its user may not read a snapshot, which holds every pod. So
    `apportion ledger trim` puts the record beside the snapshot that bootstrap keeps, as one
    message, which one permission names. Invariant: what is kept is a record of this ledger, word
    for word.

    Raises LedgerFull, LedgerUnavailable, NotPermitted: what was kept before is still there."""
    await bucket.put_alone(NAME, record.payload, {_KEPT_REVISION: str(record.revision)})


async def kept_configuration(bucket: Bucket) -> Record | None:
    """What is kept; None where nothing is.

    Raises BadObject: it has no revision, so that we did not write it. Raises LedgerUnavailable,
    NotPermitted."""
    found = await bucket.get_alone(NAME)
    if found is None:
        return None
    payload, headers = found
    revision = headers.get(_KEPT_REVISION, "")
    if not (revision.isascii() and revision.isdecimal()):
        raise BadObject(f"the configuration that is kept is of revision {revision!r}")
    return Record(int(revision), CONFIGURATION, payload)
