"""Property: signed receipts reveal the first record of a recorded ledger that was changed, added or
removed."""

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from apportion.core.ledger import snapshot
from apportion.core.ledger.digest import digest
from apportion.core.ledger.receipts import (
    FORMAT,
    Proof,
    ReceiptInvalid,
    Tree,
    check_proof,
    encoded,
    leaf_of,
    path_of,
    read_proof,
    read_receipt,
    root_by,
)
from apportion.runtime.files.signing import (
    SigningKey,
    VerifyingKey,
    make_key,
    read_signing_key,
    read_verifying_key,
)
from apportion.runtime.ledger.archive import read_archive
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.ledger.receipts import STATE, Ledger, ReceiptCheck, Receipts, check_signature

RECORDED = Path(__file__).parents[1] / "golden" / "ledgers" / "v1-evictions.jsonl"
RECORDS = list(read_archive(RECORDED))
ENDS = (1, 9, 10, 20, len(RECORDS))
"""The last revision of each receipt. The receipts cover one, several, or 2^n records."""
TIME = "2026-11-25T00:00:00.000000Z"


class Signed(NamedTuple):
    """Signed receipts of the constant RECORDS in a folder, and the key to verify them."""

    folder: Path
    key: VerifyingKey

    def check(self) -> ReceiptCheck:
        """Return a check that compares records of the ledger with these receipts."""
        return ReceiptCheck(Receipts(self.folder), [self.key])


def write_receipts(folder: Path, key: SigningKey, records: Sequence[Record] = RECORDS) -> None:
    """Write a signed receipt at each revision in the constant ENDS, for the records since the
    previous receipt."""
    fold, tree = StateFold(quiet=True), Tree()
    for record in records:
        fold.take(record)
        tree.add(leaf_of(record.revision, record.subject, record.payload))
        if record.revision in ENDS:
            Receipts(folder).write(key, Ledger("S", "c"), tree, fold.state, TIME)
            tree = Tree()


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    """Return signed receipts that include a fingerprint of each record."""
    folder = tmp_path_factory.mktemp("receipts")
    public = make_key(folder / "key")
    write_receipts(folder, read_signing_key(folder / "key"))
    return Signed(folder, read_verifying_key(public))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, signed: Signed) -> Signed:
    """Return the same receipts as `signed`, but without the fingerprints of records."""
    folder = tmp_path_factory.mktemp("bare")
    for path in signed.folder.glob("receipt-*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    return signed._replace(folder=folder)


def held(signed: Signed, records: Sequence[Record], *, start: int = 1) -> Iterator[tuple[int, str]]:
    """Compare these records, from revision `start` on, with the receipts.

    Yield (revision, problem) pairs."""
    check = signed.check()
    for record in records:
        if record.revision >= start:
            yield from check.take(record)
    yield from check.finish(1)


def numbered(records: Sequence[Record]) -> list[Record]:
    """Return the records, numbered from 1 as in a new stream."""
    return [Record(n, each.subject, each.payload) for n, each in enumerate(records, 1)]


KINDS = ("changed", "on another subject", "deleted", "dropped", "added", "moved", "cut off")


def tampered(kind: str, at: int, seed: int) -> list[Record]:
    """Return the constant RECORDS with the change `kind` at index `at`."""
    random_ = random.Random(seed)
    records, record = list(RECORDS), RECORDS[at]
    if kind == "changed":
        payload = bytearray(record.payload)
        payload[random_.randrange(len(payload))] ^= 1 << random_.randrange(8)
        records[at] = Record(record.revision, record.subject, bytes(payload))
    elif kind == "on another subject":
        records[at] = Record(record.revision, f"{record.subject}x", record.payload)
    elif kind == "deleted":
        return [*records[:at], *records[at + 1 :]]
    elif kind == "dropped":
        del records[at]
    elif kind == "added":
        records.insert(at, RECORDS[random_.randrange(len(RECORDS))])
    elif kind == "moved":
        records.insert(random_.randrange(len(records)), records.pop(at))
    else:
        del records[at:]
    return numbered(records)


def first_difference(records: Sequence[Record]) -> int:
    """Return the first revision at which these records differ from the constant RECORDS, or 0."""
    pairs = zip(records, RECORDS, strict=False)
    different = [theirs.revision for ours, theirs in pairs if ours != theirs]
    if different:
        return different[0]
    return 0 if len(records) >= len(RECORDS) else len(records) + 1


@given(
    kind=st.sampled_from(KINDS), at=st.integers(0, len(RECORDS) - 1), seed=st.integers(0, 1 << 32)
)
def test_the_first_record_that_differs_is_named(
    signed: Signed, bare: Signed, kind: str, at: int, seed: int
) -> None:
    """With fingerprints of records, the check names the first record that was tampered with.

    Without them, the check names the first record of the receipt that covers this record. If only
    the end is missing, it may name the first missing record."""
    assume(kind != "deleted" or at)  # a ledger may begin later: see `ledger trim`
    records = tampered(kind, at, seed)
    first = first_difference(records)
    found = [revision for revision, _ in held(signed, records)]
    assert found[:1] == ([first] if first else [])
    begins = {end + 1 for end in (0, *ENDS[:-1])}
    segment = max((each for each in begins if each <= first), default=0)
    without = sorted(revision for revision, _ in held(bare, records))
    assert without[:1] in ([segment], [first]) if first else without == []


def test_a_state_that_does_not_follow_is_named(signed: Signed) -> None:
    """The check reports a receipt whose signed state differs from the state folded from the
    records."""
    check, fold = signed.check(), StateFold(quiet=True)
    fold.state.released_count += 1
    found: list[tuple[int, str]] = []
    for record in RECORDS:
        fold.take(record)
        found += [*check.take(record), *check.folded(fold.state)]
    assert [revision for revision, _ in found] == [ENDS[-1]]


def test_the_next_receipt_goes_on_from_the_stored_state(signed: Signed, tmp_path: Path) -> None:
    """The next receipt continues from the stored state if it is the state at the newest receipt.

    An older or unreadable state counts as missing. A state that differs from the receipt's is an
    error."""
    stored, folder = signed.folder / STATE, tmp_path / "receipts"
    shutil.copytree(signed.folder, folder)
    receipts, fold = Receipts(folder), StateFold(quiet=True)
    for record in RECORDS[: ENDS[-2]]:
        fold.take(record)
    (folder / STATE).write_bytes(snapshot.take(fold.state))
    assert receipts.state() is None
    for record in RECORDS[ENDS[-2] :]:
        fold.take(record)
    (folder / STATE).write_bytes(stored.read_bytes())
    found = receipts.state()
    assert found is not None
    assert digest(found) == digest(fold.state)
    (folder / STATE).write_bytes(b"{")
    assert receipts.state() is None
    fold.state.released_count += 1
    (folder / STATE).write_bytes(snapshot.take(fold.state))
    with pytest.raises(ReceiptInvalid, match=STATE):
        receipts.state()


def test_unchanged_records_are_proven(signed: Signed) -> None:
    """The check confirms unchanged records, also if it starts between two receipts. It reports a
    problem if the ledger is empty."""
    check, fold = signed.check(), StateFold(quiet=True)
    for record in RECORDS:
        fold.take(record)
        assert [*check.take(record), *check.folded(fold.state)] == []
    assert (check.held, check.proven, check.last) == (len(ENDS), len(RECORDS), ENDS[-1])
    assert list(held(signed, RECORDS, start=5)) == []
    assert list(held(signed, [])) != []


@given(
    size=st.integers(1, 70), index=st.integers(0, 69), other=st.integers(0, 69), seed=st.integers(0)
)
def test_a_path_leads_to_the_root_from_its_own_place_alone(
    size: int, index: int, other: int, seed: int
) -> None:
    """An audit path (RFC 6962) proves only the record for which it was made.

    A path of the wrong length is refused."""
    index, other = index % size, other % size
    leaves = [leaf_of(each + 1, "s", str(seed).encode()) for each in range(size)]
    tree = Tree()
    for leaf in leaves:
        tree.add(leaf)
    path = path_of(leaves, index)
    assert root_by(leaves[index], index, size, path) == tree.root()
    if other != index:
        assert root_by(leaves[other], index, size, path) != tree.root()
    with pytest.raises(ReceiptInvalid):
        root_by(leaves[index], index, size, [*path, "00" * 32])


@given(index=st.integers(9, 18), what=st.sampled_from(["payload", "subject", "revision"]))
def test_a_proof_of_another_record_proves_nothing(signed: Signed, index: int, what: str) -> None:
    """The proof of one record is not valid for another record."""
    found = Receipts(signed.folder).of(index + 1)
    assert found is not None
    first = found.checkpoint.first
    records = RECORDS[first - 1 : found.checkpoint.last]
    leaves = [leaf_of(each.revision, each.subject, each.payload) for each in records]
    path = tuple(path_of(leaves, index + 1 - first))
    record = RECORDS[index]
    proof = Proof(
        FORMAT, record.revision, record.subject, path, found.receipt, record.payload.decode()
    )
    assert check_proof(read_proof(encoded(proof))) == found.checkpoint
    other = RECORDS[index + 1]
    forged = {
        "payload": Proof(
            FORMAT, record.revision, record.subject, path, found.receipt, other.payload.decode()
        ),
        "subject": Proof(FORMAT, record.revision, "x", path, found.receipt, proof.payload),
        "revision": Proof(FORMAT, index + 2, record.subject, path, found.receipt, proof.payload),
    }[what]
    with pytest.raises(ReceiptInvalid):
        check_proof(forged)


@given(at=st.integers(0, 5_000), bit=st.integers(0, 7))
def test_a_receipt_that_was_touched_is_refused(signed: Signed, at: int, bit: int) -> None:
    """A receipt with a flipped bit is refused, unless the bit has no meaning, as in white space."""
    whole = (signed.folder / f"receipt-{ENDS[1]:020}.json").read_bytes()
    data = bytearray(whole)
    data[at % len(data)] ^= 1 << bit
    try:
        receipt = read_receipt(bytes(data))
        check_signature(receipt, [signed.key], where="it")
    except ReceiptInvalid:
        return
    said = read_receipt(whole)  # the changed bit has no meaning, as in white space, or `E` for `e`
    assert receipt.checkpoint == said.checkpoint
    assert bytes.fromhex(receipt.signature) == bytes.fromhex(said.signature)
