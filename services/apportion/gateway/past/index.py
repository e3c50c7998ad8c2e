"""An index of the ledger in a SQLite file: events by pod, node and device, and allocations.

Tables: `facts` (the objects of each event), `changes` (what each event changed), `holds` (shares
from placement to release) and `marks` (events of the timeline). Invariant: committed data covers
exactly the events up to `revision`. The file can be deleted."""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from apportion.core.answers.past import MarkRow, WhoRow
from apportion.core.answers.reads import Part
from apportion.core.bounded import remember

FORMAT = 6
BUFFERED = 5_000
POD, NODE, DEVICE, CONFIGURATION, POLICY, LIMIT = 1, 2, 3, 4, 5, 6
NAMES_MAX = 200_000

_SCHEMA = """
CREATE TABLE things (id INTEGER PRIMARY KEY, kind INTEGER, key TEXT, name TEXT);
CREATE UNIQUE INDEX things_by_key ON things (kind, key);
CREATE INDEX things_by_name ON things (name) WHERE name IS NOT NULL;
CREATE TABLE facts (thing INTEGER, revision INTEGER, PRIMARY KEY (thing, revision)) WITHOUT ROWID;
CREATE TABLE holds (
    pod INTEGER, node INTEGER, device INTEGER, container TEXT, memory_mib INTEGER, cores INTEGER,
    decision INTEGER, time TEXT, until INTEGER, until_time TEXT
);
CREATE INDEX holds_of_pod ON holds (pod);
CREATE INDEX holds_on_node ON holds (node, decision);
CREATE INDEX holds_on_device ON holds (device, decision);
CREATE TABLE marks (revision INTEGER PRIMARY KEY, time TEXT, kind TEXT, parts BLOB, type TEXT);
CREATE TABLE changes (
    revision INTEGER, thing INTEGER, what TEXT, PRIMARY KEY (revision, thing, what)
) WITHOUT ROWID;
CREATE TABLE kept (name TEXT PRIMARY KEY, value BLOB);
"""

_PODS_NAMED = (
    "SELECT key, (SELECT min(revision) FROM facts WHERE thing = id) AS first FROM things "
    "WHERE name = ? AND kind = ? AND first <= ? ORDER BY first DESC LIMIT ?"
)
_NAME = "SELECT name FROM things WHERE kind = ? AND key = ?"
_FULL_NAMES = (
    "SELECT DISTINCT name FROM things WHERE name IS NOT NULL "
    "AND substr(name, instr(name, '/') + 1) = ? "
    "AND (SELECT min(revision) FROM facts WHERE thing = id) <= ? ORDER BY name LIMIT ?"
)
_FACTS = (
    "SELECT revision FROM facts WHERE thing = ? AND revision > ? AND revision <= ? "
    "ORDER BY revision LIMIT ?"
)
_FACTS_OF_MANY = (
    "SELECT DISTINCT revision FROM facts WHERE thing IN (SELECT value FROM json_each(?)) "
    "AND revision > ? AND revision <= ? ORDER BY revision LIMIT ?"
)
_HOLDS_OF = (
    "SELECT p.name, p.key, container, d.key, n.key, memory_mib, cores, decision, time, "
    "CASE WHEN until <= :upto THEN until ELSE 0 END, "
    "CASE WHEN until <= :upto THEN until_time ELSE '' END, decision "
    "FROM holds JOIN things p ON p.id = pod JOIN things n ON n.id = node "
    "JOIN things d ON d.id = device WHERE holds.COLUMN = :thing AND decision <= :upto "
    "AND (until = 0 OR until > :since) ORDER BY decision, holds.rowid LIMIT :limit OFFSET :skip"
)
_HOLDS = {
    kind: _HOLDS_OF.replace("COLUMN", name) for kind, name in ((NODE, "node"), (DEVICE, "device"))
}

Piece = tuple[str, str, int, int]  # a share: device, container, memory in MiB, cores

_decode_parts = msgspec.json.Decoder(tuple[str | Part, ...]).decode


def _mark(revision: int, time: str, kind: str, parts: bytes, event: str) -> MarkRow:
    return MarkRow(revision, time, kind, type=event, parts=_decode_parts(parts))


class Index:
    """An index of the ledger's events after revision `begins` up to `revision`, in one file.

    Lookups also find entries that are not committed yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        self._db = sqlite3.connect(self._path, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
        except sqlite3.OperationalError:
            raise  # the file is locked or the disk is full, but the file is not damaged
        except sqlite3.DatabaseError:
            version = -1
        if version not in (0, FORMAT):
            self.clear()
            return
        self._db.execute("BEGIN")
        if version == 0:
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {FORMAT}")
            self._commit()
        self._ids: dict[tuple[int, str], int] = {}
        self._facts: list[tuple[int, int]] = []
        self._changes: list[tuple[int, int, str]] = []

    def clear(self) -> None:
        """Delete everything, for example because the index is of another ledger."""
        self._db.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._open()

    def restart(self) -> None:
        """Delete everything except the creation time by which the ledger is recognized."""
        created = self.kept("created")
        self.clear()
        self.keep("created", created)
        self.commit(0)

    @property
    def revision(self) -> int:
        """Return the revision up to which everything is committed; 0 if nothing is."""
        return int(self.kept("revision") or b"0")

    @property
    def begins(self) -> int:
        """Return the revision after which the index is complete; 0 if it has the whole ledger."""
        return int(self.kept("begins") or b"0")

    def kept(self, name: str) -> bytes:
        """Return the bytes that `keep` stored under this name, or b"" if there are none."""
        row = self._db.execute("SELECT value FROM kept WHERE name = ?", (name,)).fetchone()
        return bytes(row[0]) if row else b""

    def keep(self, name: str, value: bytes) -> None:
        """Store bytes under a name."""
        self._db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (name, value))

    def commit(self, revision: int) -> None:
        """Commit all entries, which cover everything up to this revision."""
        self._flush()
        self.keep("revision", str(revision).encode())
        self._commit()

    def close(self) -> None:
        """Close the file. Entries that were not committed are lost."""
        self._db.close()

    def name_pod(self, uid: str, full_name: str) -> None:
        """Store the name of the pod with this uid."""
        self._db.execute(
            "UPDATE things SET name = ? WHERE id = ?", (full_name, self._thing(POD, uid))
        )

    def knows(self, kind: int, key: str) -> bool:
        """Return True if the index has an entry about the object."""
        return self._find(kind, key) is not None

    def note(self, revision: int, things: Iterable[tuple[int, str]]) -> None:
        """Record that the event at this revision is about these objects (pairs of kind and key)."""
        self._facts += [(self._thing(kind, key), revision) for kind, key in things]
        if len(self._facts) >= BUFFERED:
            self._flush()

    def hold(self, uid: str, node: str, decision: int, time: str, shares: Iterable[Piece]) -> None:
        """Record that the decision at revision `decision` allocated these shares to the pod."""
        pod, on = self._thing(POD, uid), self._thing(NODE, node)
        rows = [
            (pod, on, self._thing(DEVICE, device), container, memory_mib, cores, decision, time)
            for device, container, memory_mib, cores in shares
        ]
        self._db.executemany("INSERT INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, '')", rows)

    def release(self, uid: str, revision: int, time: str) -> None:
        """Record that the pod has released all its shares."""
        self._db.execute(
            "UPDATE holds SET until = ?, until_time = ? WHERE pod = ? AND until = 0",
            (revision, time, self._thing(POD, uid)),
        )

    def mark(self, mark: MarkRow) -> None:
        """Store an event for the timeline."""
        row = (mark.revision, mark.time, mark.kind, msgspec.json.encode(mark.parts), mark.type)
        self._db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?)", row)

    def change(self, revision: int, kind: int, key: str, what: str) -> None:
        """Record that the event at this revision changed the aspect `what` of the object."""
        self._changes.append((revision, self._thing(kind, key), what))
        if len(self._changes) >= BUFFERED:
            self._flush()

    def forget_pod(self, uid: str) -> None:
        """Drop a pod from the cache of ids, because it has ended and few events will follow."""
        self._ids.pop((POD, uid), None)

    def pods_named(self, full_name: str, *, upto: int, limit: int) -> list[str]:
        """Return uids of pods called `full_name` up to a revision, the newest first."""
        self._flush()
        return self._column(_PODS_NAMED, full_name, POD, upto, limit)

    def full_names(self, name: str, *, upto: int, limit: int) -> list[str]:
        """Return the `namespace/name` of all pods called `name`; takes 50 ms for a million pods."""
        self._flush()
        return self._column(_FULL_NAMES, name, upto, limit)

    def keys_like(self, kind: int, key: str, *, limit: int) -> list[str]:
        """Return `[key]` if an object has this key, else the sorted keys that begin with it."""
        if self.knows(kind, key):
            return [key]
        return self._column(
            "SELECT key FROM things WHERE kind = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?",
            kind, key, key + chr(0x10FFFF), limit,
        )  # fmt: skip

    def name_of(self, uid: str) -> str:
        """Return the name of the pod with this uid, or "" if it is unknown."""
        row = self._db.execute(_NAME, (POD, uid)).fetchone()
        return str(row[0]) if row and row[0] else ""

    def facts(
        self, kind: int, keys: Sequence[str], *, after: int, upto: int, limit: int
    ) -> list[int]:
        """Return revisions of events about any of these objects, ascending, at most `limit`."""
        self._flush()
        ids = [found for key in keys if (found := self._find(kind, key)) is not None]
        if len(ids) == 1:
            return self._column(_FACTS, ids[0], after, upto, limit)
        many = msgspec.json.encode(ids).decode()
        return self._column(_FACTS_OF_MANY, many, after, upto, limit)

    def newest_facts(self, kind: int, key: str, *, after: int, upto: int, limit: int) -> list[int]:
        """Return the newest revisions of events about the object, descending."""
        self._flush()
        return self._column(
            "SELECT revision FROM facts WHERE thing = ? AND revision > ? AND revision <= ? "
            "ORDER BY revision DESC LIMIT ?",
            self._find(kind, key) or 0, after, upto, limit,
        )  # fmt: skip

    def newest_mark(
        self, kind: int, key: str, marks: Sequence[str], *, after: int, upto: int
    ) -> MarkRow | None:
        """Return the newest timeline event of the object, of the kinds in `marks`, or None."""
        self._flush()
        row = self._db.execute(
            "SELECT m.* FROM marks m JOIN facts f ON f.revision = m.revision AND f.thing = ? "
            "WHERE m.kind IN (SELECT value FROM json_each(?)) "
            "AND m.revision > ? AND m.revision <= ? ORDER BY m.revision DESC LIMIT 1",
            (self._find(kind, key) or 0, msgspec.json.encode(marks).decode(), after, upto),
        ).fetchone()
        return _mark(*row) if row else None

    def failures_under(self, uids: Sequence[str], *, after: int, upto: int) -> list[int]:
        """Return revisions of failures and recoveries of these pods' devices and nodes."""
        self._flush()
        return self._column(
            "SELECT DISTINCT m.revision FROM things p JOIN holds h ON h.pod = p.id "
            "JOIN marks m ON m.revision > h.decision AND (h.until = 0 OR m.revision < h.until) "
            "JOIN changes c ON c.revision = m.revision AND "
            "(c.thing = h.device AND c.what = 'health' OR c.thing = h.node AND c.what = 'state') "
            "WHERE p.kind = ? AND p.key IN (SELECT value FROM json_each(?)) "
            "AND m.kind IN ('failure', 'recovery') AND m.revision > ? AND m.revision <= ? "
            "ORDER BY m.revision",
            POD, msgspec.json.encode(uids).decode(), after, upto,
        )  # fmt: skip

    def changed(self, *, after: int, upto: int) -> dict[int, list[str]]:
        """Return the keys of all objects that changed after `after` up to `upto`, by kind."""
        self._flush()
        rows = self._db.execute(
            "SELECT kind, key FROM things WHERE id IN "
            "(SELECT thing FROM changes WHERE revision > ? AND revision <= ?) ORDER BY id",
            (after, upto),
        )
        found: dict[int, list[str]] = {}
        for kind, key in rows:
            found.setdefault(kind, []).append(key)
        return found

    def changed_by(
        self, kind: int, keys: Iterable[str], *, after: int, upto: int, oldest: bool = False
    ) -> dict[tuple[str, str], int]:
        """Return the revision of the newest (or `oldest`) change, by object and changed aspect."""
        self._flush()
        ids = {found: key for key in keys if (found := self._find(kind, key)) is not None}
        rows = self._db.execute(
            "SELECT thing, what, min(revision), max(revision) FROM changes "
            "WHERE revision > ? AND revision <= ? AND thing IN (SELECT value FROM json_each(?)) "
            "GROUP BY thing, what",
            (after, upto, msgspec.json.encode(list(ids)).decode()),
        )
        return {(ids[thing], what): first if oldest else last for thing, what, first, last in rows}

    def holds(
        self, kind: int, key: str, *, since: int, upto: int, skip: int, limit: int
    ) -> list[WhoRow]:
        """Return the shares of a node or device that were allocated at any time in this span."""
        thing = self._find(kind, key) or 0
        given = {"thing": thing, "since": since, "upto": upto, "skip": skip, "limit": limit}
        found = []
        for name, *rest in self._db.execute(_HOLDS[kind], given):
            namespace, _, pod = (name or "").partition("/")
            found.append(WhoRow(namespace, pod, *rest))
        return found

    def marks(self, *, since: int, upto: int, limit: int) -> list[MarkRow]:
        """Return the newest timeline events in this span, oldest first."""
        rows = self._db.execute(
            "SELECT * FROM marks WHERE revision >= ? AND revision <= ? "
            "ORDER BY revision DESC LIMIT ?",
            (since, upto, limit),
        )
        return [_mark(*row) for row in rows][::-1]

    def _column(self, sql: str, *given: str | int) -> list[Any]:
        return [found for (found, *_) in self._db.execute(sql, given)]

    def _thing(self, kind: int, key: str) -> int:
        found = self._ids.get((kind, key)) or self._find(kind, key)
        if found is None:
            cursor = self._db.execute("INSERT INTO things (kind, key) VALUES (?, ?)", (kind, key))
            found = int(cursor.lastrowid or 0)
        remember(self._ids, (kind, key), found, most=NAMES_MAX)
        return found

    def _find(self, kind: int, key: str) -> int | None:
        row = self._db.execute(
            "SELECT id FROM things WHERE kind = ? AND key = ?", (kind, key)
        ).fetchone()
        return int(row[0]) if row else None

    def _flush(self) -> None:
        self._db.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", self._facts)
        self._facts.clear()
        self._db.executemany("INSERT OR IGNORE INTO changes VALUES (?, ?, ?)", self._changes)
        self._changes.clear()

    def _commit(self) -> None:
        self._db.execute("COMMIT")
        self._db.execute("BEGIN")
