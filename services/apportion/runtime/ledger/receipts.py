"""A folder of receipts: signed segments of the ledger, with fingerprints of their records.

    receipt-00000000000000005000.json            signed; see core.ledger.receipts
    receipt-00000000000000005000.fingerprints    eight bytes for each record
    state.snapshot                               where the next receipt continues

The number is the last revision. Invariants: a receipt is written whole, after its fingerprints.
`state.snapshot` is only a cache and is compared with the newest receipt."""

import contextlib
import fcntl
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from apportion.core.doctor.facts import ReceiptFacts
from apportion.core.ledger import snapshot
from apportion.core.ledger.digest import digest
from apportion.core.ledger.receipts import (
    FINGERPRINT_BYTES,
    FORMAT,
    SEGMENT_MAX,
    Checkpoint,
    Receipt,
    ReceiptInvalid,
    Tree,
    encoded,
    hash_of,
    heads_of,
    leaf_of,
    read_receipt,
    signed_bytes,
)
from apportion.core.ledger.snapshot import SnapshotError
from apportion.core.ledger.state import State
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.files.signing import SigningKey, VerifyingKey
from apportion.runtime.ledger.port import Record

RECEIPT_BYTES_MAX = 64 << 20  # heads of 100,000 nodes take a few MB
STATE_BYTES_MAX = 2 << 30
RECEIPTS_MAX = 1_000_000
STATE = "state.snapshot"
_LOCK = ".lock"
_NAME = re.compile(r"receipt-(\d{20})\.json")


class Found(NamedTuple):
    """A receipt that was read from the folder, with its path."""

    path: Path
    receipt: Receipt

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the receipt's checkpoint: its signed statement about the ledger."""
        return self.receipt.checkpoint


class Ledger(NamedTuple):
    """The ledger to which receipts belong: its stream, and the stream's creation time."""

    stream: str
    created: str


class Receipts:
    """The receipts of one ledger, stored in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Create and lock the folder for a `with` block. Raises OSError, BlockingIOError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / _LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def paths(self) -> list[Path]:
        """Return the receipt files, oldest first. Raises OSError, or ReceiptInvalid if too many."""
        found = sorted(each for each in self._folder.iterdir() if _NAME.fullmatch(each.name))
        if len(found) > RECEIPTS_MAX:
            raise ReceiptInvalid(f"{self._folder}: more than {RECEIPTS_MAX} receipts")
        return found

    def lasts(self) -> list[int]:
        """Return the last revision of each receipt. Raises OSError, ReceiptInvalid."""
        return [_last(path) for path in self.paths()]

    def newest(self) -> Found | None:
        """Return the newest receipt, or None in a new folder. Raises ReceiptInvalid, OSError."""
        paths = self.paths()
        return _read(paths[-1]) if paths else None

    def of(self, revision: int) -> Found | None:
        """Return the receipt that covers `revision`, or None. Raises ReceiptInvalid, OSError."""
        for path in self.paths():
            if _last(path) >= revision:
                found = _read(path)
                return found if found.checkpoint.first <= revision else None
        return None

    def checked(self, keys: Sequence[VerifyingKey]) -> Iterator[Found]:
        """Yield the verified receipts, oldest first. Raises ReceiptInvalid, OSError."""
        before: Found | None = None
        for path in self.paths():
            found = _read(path)
            check_signature(found.receipt, keys, where=str(path))
            if before is not None:
                old, new = before.checkpoint, found.checkpoint
                if (new.stream, new.created) != (old.stream, old.created):
                    raise ReceiptInvalid(
                        f"{found.path}: for the ledger created at {new.created}, not {old.created}"
                    )
                if new.first != old.last + 1 or new.previous != hash_of(old):
                    raise ReceiptInvalid(
                        f"{found.path}: does not follow {before.path.name}, which ends at "
                        f"{old.last}; receipts in between are missing or were replaced"
                    )
            yield found
            before = found

    def fingerprints(self, found: Found) -> bytes | None:
        """Return the fingerprints that a receipt signs, or None if missing or altered."""
        try:
            with found.path.with_suffix(".fingerprints").open("rb") as file:
                data = file.read(SEGMENT_MAX * FINGERPRINT_BYTES + 1)
        except OSError:
            return None
        return data if sha256(data).hexdigest() == found.checkpoint.fingerprints else None

    def state(self) -> State | None:
        """Return the state at the newest receipt, or None if unknown. Raises ReceiptInvalid."""
        newest = self.newest()
        if newest is None:
            return None
        try:
            with (self._folder / STATE).open("rb") as file:
                state = snapshot.restore(file.read(STATE_BYTES_MAX))
        except (OSError, SnapshotError):
            return None
        if state.revision != newest.checkpoint.last:
            return None
        if digest(state) != newest.checkpoint.state:
            raise ReceiptInvalid(
                f"{self._folder / STATE} does not match {newest.path.name}; remove "
                f"only {STATE}, which is then rebuilt from the ledger"
            )
        return state

    def write(self, key: SigningKey, ledger: Ledger, tree: Tree, state: State, time: str) -> Found:
        """Write a receipt for the records in `tree`, whose fold is `state`. Raises OSError."""
        newest = self.newest()
        fingerprints = tree.fingerprints()
        checkpoint = Checkpoint(
            apportion_receipt=FORMAT,
            stream=ledger.stream,
            created=ledger.created,
            time=time,
            first=state.revision - tree.size + 1,
            last=state.revision,
            root=tree.root(),
            record=tree.leaf.hex(),
            heads=heads_of(state),
            state=digest(state),
            state_format=snapshot.FORMAT,
            fingerprints=sha256(fingerprints).hexdigest(),
            previous=hash_of(newest.checkpoint) if newest else "",
        )
        path = self._folder / f"receipt-{checkpoint.last:020}.json"
        receipt = Receipt(checkpoint, key.id, key.sign(signed_bytes(checkpoint)))
        write_whole(path.with_suffix(".fingerprints"), fingerprints)
        write_whole(path, encoded(receipt) + b"\n")
        write_whole(self._folder / STATE, snapshot.take(state), mode=0o600)
        return Found(path, receipt)


def receipt_facts(folder: Path, *, now: datetime) -> ReceiptFacts:
    """Return the facts for `doctor` about a folder's receipts: the last revision, and its age."""
    try:
        newest = Receipts(folder).newest()
    except (OSError, ReceiptInvalid):
        newest = None
    if newest is None:
        return ReceiptFacts(folder=str(folder))
    age_s = now.timestamp() - newest.path.stat().st_mtime
    return ReceiptFacts(folder=str(folder), last=newest.checkpoint.last, newest_age_s=age_s)


def check_signature(receipt: Receipt, keys: Sequence[VerifyingKey], *, where: str) -> None:
    """Raise ReceiptInvalid unless one of the keys made the receipt's signature."""
    data = signed_bytes(receipt.checkpoint)
    if any(key.id == receipt.key and key.signed(data, receipt.signature) for key in keys):
        return
    known = ", ".join(key.id for key in keys)
    if receipt.key not in {key.id for key in keys}:
        raise ReceiptInvalid(f"{where}: signed by key {receipt.key[:32]!r}, but --key is {known}")
    raise ReceiptInvalid(f"{where}: the signature does not match key {receipt.key}")


def _read(path: Path) -> Found:
    with path.open("rb") as file:
        data = file.read(RECEIPT_BYTES_MAX + 1)
    if len(data) > RECEIPT_BYTES_MAX:
        raise ReceiptInvalid(f"{path}: larger than {RECEIPT_BYTES_MAX >> 20} MiB")
    try:
        found = Found(path, read_receipt(data))
    except ReceiptInvalid as error:
        raise ReceiptInvalid(f"{path}: {error}") from None
    last = found.checkpoint.last
    if last != _last(path):
        raise ReceiptInvalid(f"{path}: renamed; it is the receipt up to {last}")
    return found


def _last(path: Path) -> int:
    return int(path.stem.removeprefix("receipt-"))


Wrong = tuple[int, str]  # a revision and the error there


class ReceiptCheck:
    """Checks records against receipts during reading. Raises ReceiptInvalid, OSError.

    Invariant: records count as proven once their whole segment was read and matches its root."""

    def __init__(self, receipts: Receipts, keys: Sequence[VerifyingKey]) -> None:
        self._receipts = receipts
        self._coming = receipts.checked(keys)  # without receipts signed from now on
        self._lasts = receipts.lasts()
        self.goal = 0  # where the reading ends, 0 if open
        self._found: Found | None = None
        self._tree: Tree | None = None
        self._fingerprints: bytes | None = None
        self._signed: Checkpoint | None = None
        self._named = False
        self._next = 0
        self.proven = self.held = self.last = 0  # records, their receipts, the newest one's end
        self.time = ""  # of the newest receipt

    def take(self, record: Record) -> Iterator[Wrong]:
        """Check the next record and yield the discrepancies found."""
        if record.revision != self._next:
            found = self._found
            if self._next and found is not None and found.checkpoint.first <= self._next:
                yield self._next, f"missing, although {found.path.name} signed it"
            self._tree = None
            yield from self._advance(record.revision)
        self._next = record.revision + 1
        if self._found is None or self._tree is None:
            yield from self._advance(self._next)
            return
        leaf = leaf_of(record.revision, record.subject, record.payload)
        begins = self._tree.size * FINGERPRINT_BYTES
        self._tree.add(leaf)
        known = self._fingerprints
        here = known[begins : begins + FINGERPRINT_BYTES] if known is not None else leaf
        if not self._named and not leaf.startswith(here):
            self._named = True
            yield record.revision, f"differs from the record that {self._found.path.name} signed"
        if record.revision == self._found.checkpoint.last:
            signed = self._found.checkpoint
            if self._tree.root() == signed.root:
                self.proven += self._tree.size
                self.held += 1
                self.last, self.time = signed.last, signed.time
                self._signed = signed
            elif not self._named:
                text = (
                    f"a record from here to revision {signed.last} was changed; to find it, compare"
                )
                yield (
                    signed.first,
                    f"{text} with another copy of the ledger, as the receipt has no fingerprints",
                )
            yield from self._advance(self._next)

    def finish(self, start: int) -> Iterator[Wrong]:
        """Yield the discrepancies found at the end of a reading that began at revision `start`."""
        revision = self._next or start
        yield from self._advance(revision)
        if self._found is not None and self._found.checkpoint.last >= revision:
            signed = self._found.checkpoint
            # Without fingerprints, records already read of the segment may be wrong.
            blind = self._tree is not None and self._tree.size > 0 and self._fingerprints is None
            text = f"the ledger ends before {revision}, but {self._found.path.name} signed more"
            yield signed.first if blind else revision, text

    def _advance(self, revision: int) -> Iterator[Wrong]:
        try:
            while self._found is None or self._found.checkpoint.last < revision:
                self._found = next(self._coming, None)
                self._tree = None
                if self._found is None:
                    return
        except (ReceiptInvalid, OSError) as error:
            self._found, self._coming = None, iter(())
            yield revision, str(error)
            return
        if self._found.checkpoint.first == revision:
            self._tree, self._named = Tree(), False
            self._fingerprints = self._receipts.fingerprints(self._found)

    def folded(self, state: State) -> Iterator[Wrong]:
        """Compare the state after the last record with the receipts."""
        signed = self._signed
        if signed is None or signed.last != state.revision:
            return
        self._signed = None
        # A digest is slow, and that of the last receipt covers all. It cannot be compared if a
        # build with other rules made it, or if an operator has set an earlier event aside.
        place = bisect_right(self._lasts, signed.last)
        final = place == len(self._lasts) or 0 < self.goal < self._lasts[place]
        comparable = signed.state_format == snapshot.FORMAT
        comparable = comparable and not state.rules.changed_since(signed.last)
        wrong = {name for name, head in heads_of(state).items() if signed.heads.get(name) != head}
        wrong |= signed.heads.keys() - state.nodes.keys()
        if wrong:
            yield (signed.last, f"the newest placement on {min(wrong)} differs from the signed one")
        elif final and comparable and digest(state) != signed.state:
            yield signed.last, "the state at this revision differs from the signed one"
