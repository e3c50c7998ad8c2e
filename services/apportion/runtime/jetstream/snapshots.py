"""Snapshots in the object store, so that a restart folds only the ledger's newest events.

Schedulers write snapshots. A reader trusts a snapshot only after an intake has folded the ledger to
the same state and attested its digest. A trimmed ledger begins with a special snapshot, which only
the bootstrap user can write. If a snapshot cannot be used, the reader tries an older one, or starts
at the first revision. Invariant: a restored state equals the fold of the ledger by the current
rules."""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import Iterable
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
BEGINNING = "APPORTION_BEGINNING"  # bucket of the snapshot with which a trimmed ledger begins
_ATTESTED = "attested.intake"
KEPT = 3
SIZE_MAX_BYTES = 2 << 30
YOUNG_MAX = 100_000  # new objects that the garbage collector may find after a restore
_REVISION, _RECORD, _FORMAT = "revision", "record", "format"
_DIGITS = 20

_log = get_logger(__name__)


class Stored(msgspec.Struct, frozen=True):
    """The description of a stored snapshot."""

    revision: int
    record: str
    entry: Entry
    beginning: bool = False

    @property
    def key(self) -> Key:
        """Return the revision and digest by which an attestation names the snapshot."""
        return self.revision, self.entry.digest


Key = tuple[int, str]
_decode_attested = from_outside(msgspec.json.Decoder(list[Key]).decode)


class Beginning(msgspec.Struct, frozen=True):
    """The start of a trimmed ledger: a snapshot and the configuration record in force."""

    stored: Stored
    data: bytes
    configuration: Record | None


class Snapshots:
    """Reads and writes the snapshots of one ledger in the object store."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._bucket = Bucket(wire, BUCKET)
        self._beginning = Bucket(wire, BEGINNING)

    async def create(self, *, replicas: int) -> None:
        """Create missing buckets, as the bootstrap user. Raises LedgerError."""
        await self._bucket.create(
            replicas=replicas, description="snapshots of the state, for restarts"
        )
        await self._beginning.create(
            replicas=replicas, description="state at the beginning of a trimmed ledger"
        )

    async def stored(self) -> list[Stored]:
        """Return the trusted snapshots (attested, or a trimmed ledger's own), newest first."""
        written = await self.written()
        attested = await self.attested() if written else frozenset()
        found = [each for each in written if each.key in attested] + await self.beginning()
        return sorted(found, key=lambda each: each.revision, reverse=True)

    async def written(self) -> list[Stored]:
        """Return all snapshots that schedulers wrote, attested or not, newest first."""
        return await _entries(self._bucket)

    async def beginning(self) -> list[Stored]:
        """Return the snapshot that begins a trimmed ledger, in a list; [] without a trim."""
        return [
            msgspec.structs.replace(each, beginning=True)
            for each in (await _entries(self._beginning))[:1]
        ]

    async def attested(self) -> frozenset[Key]:
        """Return the keys of snapshots that intakes have attested."""
        data = await self._bucket.get_last(_ATTESTED)
        try:
            return frozenset(_decode_attested(data)) if data is not None else frozenset()
        except msgspec.MsgspecError:
            return frozenset()

    async def attest(self, keys: Iterable[Key]) -> None:
        """Store the keys of snapshots that this intake has verified. Raises LedgerError."""
        await self._bucket.put_alone(_ATTESTED, msgspec.json.encode(sorted(keys)), {})

    async def oldest(self, first: int) -> State | None:
        """Return the oldest usable state of a ledger that begins at `first`, or None.

        Raises LedgerError."""
        for stored in reversed(await self.stored()):
            state = await self.load(stored) if stored.revision + 1 >= first else None
            if state is not None:
                return state
        return None

    async def beginning_behind(self, last: int) -> Beginning | None:
        """Return the Beginning to store before revisions up to `last` are dropped.

        Return None if it is stored already. Raises LedgerError."""
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
        raise BadObject(f"no snapshot after {last} is usable")

    async def begin_with(self, beginning: Beginning) -> None:
        """Replace the snapshot with which the trimmed ledger begins. Raises LedgerError."""
        entry, before = beginning.stored.entry, await _entries(self._beginning)
        if beginning.configuration is not None:
            await keep_configuration(self._beginning, beginning.configuration)
        nuid = f"{beginning.stored.revision:0{_DIGITS}}-{secrets.token_hex(8)}"
        await self._beginning.put(nuid, nuid, [beginning.data], entry.metadata)
        for each in before:
            await self._beginning.delete(each.entry)

    async def begun_without(self) -> bool:
        """Return True if readers need a snapshot, because the ledger's beginning was dropped."""
        return (await stream.read_info(self._wire)).state.first_seq > 1

    async def rules(self) -> Rules:
        """Return the ledger's current reading rules. Raises LedgerUnavailable, NotPermitted."""
        return await stream.read_rules(self._wire)

    async def restore(self, *, at_most: int | None = None) -> State:
        """Return the newest usable state up to revision `at_most`, or an empty state.

        Raises LedgerUnavailable, NotPermitted."""
        rules = await self.rules()
        try:
            stored = await self.stored()
        except (NotPermitted, LedgerUnavailable) as trouble:
            # The ledger may be available without its snapshots; if not, its reader raises.
            _log.warning("snapshots ignored", error=str(trouble))
            stored = []
        for each in stored:
            if at_most is None or each.revision <= at_most:
                state = await self.load(each, rules)
                if state is not None:
                    return state
        return State(rules=rules)

    async def load(self, stored: Stored, rules: Rules | None = None) -> State | None:
        """Return the state of one snapshot; if unusable, log the reason and return None."""
        rules = rules or await self.rules()
        try:
            await self._check_place(stored)
            bucket = self._beginning if stored.beginning else self._bucket
            data = await bucket.get(stored.entry, size_max=SIZE_MAX_BYTES)
            state = await asyncio.to_thread(restored, data)
            if state.revision != stored.revision:
                raise BadObject(f"the state has revision {state.revision}")
            if not state.rules.go_on(rules, state.revision):
                raise BadObject("an operator has set aside events in this snapshot")
        except (BadObject, SnapshotError, LedgerUnavailable) as error:
            _log.warning(
                "snapshot ignored; using an older one or the whole ledger",
                snapshot=stored.entry.name,
                error=str(error),
            )
            return None
        return state

    async def _check_place(self, stored: Stored) -> None:
        record = await stream.read_record(self._wire, stored.revision)
        if record is None:
            raise BadObject(
                f"the ledger ends before revision {stored.revision} of the snapshot, because it was"
                " restored or recreated"
            )
        if record.digest.hex() != stored.record:
            raise BadObject(f"the ledger was recreated and has another record at {stored.revision}")

    async def save(self, taken: Taken) -> None:
        """Store a snapshot of this ledger and delete old snapshots. Raises LedgerError."""
        record = await stream.read_record(self._wire, taken.revision)
        if record is None:
            raise LedgerUnavailable(f"the ledger no longer has a record at {taken.revision}")
        name = f"{taken.revision:0{_DIGITS}}"
        nuid = f"{name}-{secrets.token_hex(8)}"
        metadata = {_REVISION: name, _RECORD: record.digest.hex(), _FORMAT: str(FORMAT)}
        await self._bucket.put(name, nuid, taken.parts, metadata)
        # Keep the newest, the newest attested and our own; delete chunks of dead writers.
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
            if unnamed < oldest:  # another scheduler may be writing a newer one now
                await self._bucket.forget_pieces(unnamed)


async def _entries(bucket: Bucket) -> list[Stored]:
    if not await bucket.exists():
        return []
    found = []
    for entry in await bucket.entries():
        revision = entry.metadata.get(_REVISION, "")
        if revision.isascii() and revision.isdecimal() and len(revision) <= _DIGITS:
            found.append(Stored(int(revision), entry.metadata.get(_RECORD, ""), entry))
    return sorted(found, key=lambda each: each.revision, reverse=True)


def restored(data: bytearray) -> State:
    """Decode the bytes of a snapshot into a state. Raises SnapshotError."""
    # Decoding creates millions of objects without garbage; collection would triple the time.
    was = gc.isenabled()
    gc.disable()
    try:
        return snapshot.restore(data)
    finally:
        # Move many objects to the oldest generation, or the next allocation would scan them all.
        # Existing garbage is then found late, which would cost a process with many small restores.
        if gc.get_count()[0] > YOUNG_MAX:
            gc.freeze()
            gc.unfreeze()
        if was:
            gc.enable()


CONFIGURATION: Final = f"{SUBJECTS}.operator.configuration"
NAME: Final = "configuration"
_KEPT_REVISION: Final = "Apportion-Revision"


async def keep_configuration(bucket: Bucket, record: Record) -> None:
    """Store the configuration in force with a trimmed ledger. Raises LedgerError.

    The webhook folds only this record, because its user may not read snapshots, which contain all
    pods."""
    await bucket.put_alone(NAME, record.payload, {_KEPT_REVISION: str(record.revision)})


async def kept_configuration(bucket: Bucket) -> Record | None:
    """Return the stored configuration, or None if none is stored. Raises LedgerError."""
    found = await bucket.get_alone(NAME)
    if found is None:
        return None
    payload, headers = found
    revision = headers.get(_KEPT_REVISION, "")
    if not (revision.isascii() and revision.isdecimal()):
        raise BadObject(f"the stored configuration has revision {revision!r}")
    return Record(int(revision), CONFIGURATION, payload)
