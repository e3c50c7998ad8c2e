"""Snapshots in the simulation: the services' own snapshot code, with a bucket in memory.

A simulated link with faults leads to the bucket. Invariant: the bucket contains exactly what was
stored there, unless the run's faults damaged or forged a snapshot."""

from __future__ import annotations

import random
from collections.abc import Iterable
from hashlib import sha256

import msgspec

from apportion.core.ledger import snapshot
from apportion.core.ledger.rules import Rules, rules_of, said_at
from apportion.core.ledger.snapshot import Taken
from apportion.runtime.jetstream.object_store import BadObject, Entry
from apportion.runtime.jetstream.snapshots import KEPT, Key, Snapshots, Stored
from apportion.runtime.jetstream.wire import LostReply
from apportion.runtime.ledger.port import LedgerUnavailable
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer

EVERY_EVENTS = 25
"""The number of events between snapshots. A run has about two hundred events."""


class Shelf:
    """The snapshots in the simulated object store, by revision."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Stored, bytes]] = {}
        self.attested: frozenset[Key] = frozenset()
        self.beginning: tuple[Stored, bytes] | None = None

    def sound(self) -> list[int]:
        """Return the revisions of the snapshots that are attested and undamaged."""
        return [
            revision
            for revision, (stored, data) in self.held.items()
            if stored.key in self.attested and sha256(data).hexdigest() == stored.entry.digest
        ]

    def begin(self) -> int:
        """Choose the oldest undamaged snapshot as the ledger's beginning, as `ledger trim` does.

        Return its revision, or 0 if there is none."""
        sound = self.sound()
        if sound:
            stored, data = self.held[min(sound)]
            self.beginning = (msgspec.structs.replace(stored, beginning=True), data)
        return min(sound, default=0)

    def forge(self, chance: random.Random) -> bool:
        """Replace the newest snapshot by one that lacks a pod. Return False if this is not
        possible."""
        for revision in sorted(self.held, reverse=True)[:1]:
            stored, data = self.held[revision]
            try:
                state = snapshot.restore(data)
            except snapshot.SnapshotError:
                return False
            if not state.pods:
                return False
            del state.pods[chance.choice(list(state.pods))]
            forged = snapshot.take(state)
            entry = msgspec.structs.replace(
                stored.entry, size=len(forged), digest=sha256(forged).hexdigest()
            )
            self.held[revision] = (msgspec.structs.replace(stored, entry=entry), forged)
            return True
        return False

    def tear(self, chance: random.Random) -> bool:
        """Damage the newest snapshot. Return False if there is none."""
        if not self.held:
            return False
        revision = max(self.held)
        stored, data = self.held[revision]
        if not data:
            return False  # already damaged, and nothing is left of it
        at = chance.randrange(len(data))
        torn = chance.choice((data[:at], data[:at] + b"\x00\xff" + data[at + 2 :], b""))
        self.held[revision] = (stored, torn)
        return True


class _MemoryBucket:
    """The methods of `object_store.Bucket` that are needed to load snapshots, in memory."""

    def __init__(self, ledger: MemoryLedger, shelf: Shelf, *, beginning: bool = False) -> None:
        self._ledger = ledger
        self._shelf = shelf
        self._of_beginning = beginning

    async def get(self, entry: Entry, *, size_max: int) -> bytes:
        """Return the object's bytes.

        Raises BadObject for a forged snapshot and for half of the damaged snapshots. The other
        damaged snapshots are returned, so that the reader must notice the damage by the snapshot's
        own digest."""
        del size_max
        try:
            held = await self._ledger.ask("snapshot", lambda: dict(self._shelf.held))
        except LostReply as lost:
            raise LedgerUnavailable(str(lost)) from lost
        _, data = held.get(int(entry.name), (None, b""))
        if self._of_beginning and self._shelf.beginning is not None:
            _, data = self._shelf.beginning
        if sha256(data).hexdigest() != entry.digest and (len(data) % 2 or not _torn(data)):
            raise BadObject(f"{entry.name} is not what was put there")
        return data


def _torn(data: bytes) -> bool:
    """Return True if the snapshot's own digest does not match its bytes."""
    try:
        snapshot.restore(data)
    except snapshot.SnapshotError:
        return True
    return False


class MemorySnapshots(Snapshots):
    """The product's real snapshot handling, on a simulated object store."""

    def __init__(self, ledger: MemoryLedger, shelf: Shelf) -> None:
        self._ledger = ledger
        self._server: MemoryServer = ledger.server
        self._shelf = shelf
        self._bucket = _MemoryBucket(ledger, shelf)  # type: ignore[assignment] # its reading half
        self._beginning = _MemoryBucket(ledger, shelf, beginning=True)  # type: ignore[assignment]

    async def rules(self) -> Rules:
        try:
            records = await self._ledger.ask("rules", lambda: list(self._server.records))
        except LostReply as lost:
            raise LedgerUnavailable(str(lost)) from lost
        said = [said_at(r.revision, r.subject, r.payload) for r in records if r is not None]
        return rules_of(each for each in said if each is not None)

    async def begun_without(self) -> bool:
        return await self._ledger.first_revision() > 1

    async def beginning(self) -> list[Stored]:
        try:
            found = await self._ledger.ask("beginning", lambda: self._shelf.beginning)
        except LostReply as lost:
            raise LedgerUnavailable(str(lost)) from lost
        return [found[0]] if found is not None else []

    async def attested(self) -> frozenset[Key]:
        try:
            return await self._ledger.ask("attested", lambda: self._shelf.attested)
        except LostReply as lost:
            raise LedgerUnavailable(str(lost)) from lost

    async def attest(self, keys: Iterable[Key]) -> None:
        said = frozenset(keys)

        def put() -> None:
            self._shelf.attested = said

        try:
            await self._ledger.ask("attest snapshots", put)
        except LostReply as lost:
            raise LedgerUnavailable(str(lost)) from lost

    async def written(self) -> list[Stored]:
        try:
            held = await self._ledger.ask("snapshots", lambda: dict(self._shelf.held))
        except LostReply as lost:
            raise LedgerUnavailable(str(lost)) from lost
        return [stored for _, (stored, _) in sorted(held.items(), reverse=True)]

    async def save(self, taken: Taken) -> None:
        record = self._server.records[taken.revision - 1]
        if record is None:
            raise LedgerUnavailable("the ledger lost a record")
        data = b"".join(taken.parts)
        name = str(taken.revision)
        digest = sha256(data).hexdigest()
        entry = Entry(
            name=name, bucket="memory", nuid=name, size=len(data), chunks=1, digest=digest
        )
        stored = Stored(taken.revision, record.digest.hex(), entry)

        def put() -> None:
            self._shelf.held[taken.revision] = (stored, data)
            held, attested = self._shelf.held, self._shelf.attested
            believed = sorted(at for at, (each, _) in held.items() if each.key in attested)
            kept = {*sorted(held)[-KEPT:], *believed[1 - KEPT :]}
            for old in set(held) - kept:
                del held[old]

        try:
            await self._ledger.ask("save snapshot", put)
        except LostReply as lost:
            raise LedgerUnavailable(str(lost)) from lost

    async def _check_place(self, stored: Stored) -> None:
        record = self._server.records[stored.revision - 1]
        if record is None or record.digest.hex() != stored.record:
            raise BadObject("the ledger has another record there")
