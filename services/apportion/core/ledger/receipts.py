"""Receipts: what somebody signs of the ledger, so that it can be held to it later, and offline.

A receipt is of a segment, the revisions `first` to `last`. It names the root of a Merkle tree over
their records, the newest placement on every node, the digest of the state behind the last one, and
the receipt before it. So the newest receipt stands for the whole ledger, one record is shown to be
in it by a few hashes, and making a receipt costs what has happened since the one before.

The tree is that of RFC 6962: a leaf is the SHA-256 of 0x00 and the record, a node that of 0x01 and
its two children. Of each leaf the first eight bytes are kept beside the receipt as fingerprints:
they prove nothing, the root does, and they tell which record is the first that is not what it was.

Invariant: a record that is changed, dropped, added or moved within a segment changes its root."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from apportion.core.ledger.state import State
from apportion_schemas.decoding import from_outside

FORMAT = 1
FINGERPRINT_BYTES = 8
SEGMENT_MAX = 1 << 20
"""Records of one receipt at most: what is longer gets several."""
_SIGNED = b"apportion receipt\n"


class Checkpoint(Struct, frozen=True):
    """What is signed. Hashes are SHA-256 in hexadecimal digits.

    `created` is when the ledger's stream was made; `record` is the leaf of the last record, `heads`
    the digest of the newest placement message on each node, `state` the digest of the state, as a
    build makes it whose snapshots are of `state_format`. `previous` is the hash of the checkpoint
    before, empty in the first one; `fingerprints` that of the file beside it."""

    apportion_receipt: int
    stream: str
    created: str
    time: str
    first: int
    last: int
    root: str
    record: str
    heads: dict[str, str]
    state: str
    state_format: int
    fingerprints: str
    previous: str


class Receipt(Struct, frozen=True):
    """A checkpoint, the signature of it, and the key that made that; see `signed_bytes`."""

    checkpoint: Checkpoint
    key: str
    signature: str


class Proof(Struct, frozen=True):
    """That a record is in the ledger: its place in a receipt's tree, and the hashes beside it.

    `path` goes from the leaf to the root; `base64` stands for a payload that is no text."""

    apportion_proof: int
    revision: int
    subject: str
    path: tuple[str, ...]
    receipt: Receipt
    payload: str | None = None
    base64: bytes | None = None

    def message(self) -> bytes:
        """The record's payload, as the ledger holds it."""
        return self.base64 or b"" if self.payload is None else self.payload.encode()


class ReceiptInvalid(Exception):
    """A receipt or a proof that shows nothing; the message says why."""


_encode = msgspec.json.Encoder(order="sorted").encode
_decode_receipt = from_outside(msgspec.json.Decoder(Receipt).decode)
_decode_proof = from_outside(msgspec.json.Decoder(Proof).decode)


class Tree:
    """The tree over records as they come; it holds one hash for each of its heights."""

    def __init__(self) -> None:
        self._peaks: list[tuple[int, bytes]] = []
        self._fingerprints = bytearray()
        self.size = 0
        self.leaf = b""

    def add(self, leaf: bytes) -> None:
        """The next record, by its leaf."""
        self.leaf = leaf
        self.size += 1
        self._fingerprints += leaf[:FINGERPRINT_BYTES]
        height = 0
        while self._peaks and self._peaks[-1][0] == height:
            leaf = _node(self._peaks.pop()[1], leaf)
            height += 1
        self._peaks.append((height, leaf))

    def root(self) -> str:
        """The hash of all records so far."""
        hashes = [each for _, each in self._peaks]
        root = hashes.pop() if hashes else sha256().digest()
        while hashes:
            root = _node(hashes.pop(), root)
        return root.hex()

    def fingerprints(self) -> bytes:
        """Those of all records so far."""
        return bytes(self._fingerprints)


def leaf_of(revision: int, subject: str, payload: bytes) -> bytes:
    """The hash of one record; the length keeps two records from being read as one other."""
    return sha256(b"\0%d %d %s %s" % (revision, len(subject), subject.encode(), payload)).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def path_of(leaves: Sequence[bytes], index: int) -> list[str]:
    """The hashes that lead from one leaf to the root, from the leaf on (RFC 6962, 2.1.1)."""
    path: list[str] = []
    start, end = 0, len(leaves)
    while end - start > 1:
        middle = start + _split(end - start)
        beside = Tree()
        for leaf in leaves[middle:end] if index < middle else leaves[start:middle]:
            beside.add(leaf)
        path.append(beside.root())
        start, end = (start, middle) if index < middle else (middle, end)
    return path[::-1]


def _split(size: int) -> int:
    """The largest power of two below it: how many leaves are on the left."""
    return 1 << (size - 1).bit_length() - 1


def root_by(leaf: bytes, index: int, size: int, path: Sequence[str]) -> str:
    """The root that the path leads to. Raises ReceiptInvalid where it is none of such a tree."""
    sides: list[bool] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        sides.append(index < middle)
        start, end = (start, middle) if index < middle else (middle, end)
    if len(sides) != len(path):
        raise ReceiptInvalid(f"the path has {len(path)} hashes where {len(sides)} lead to the root")
    for is_left, beside in zip(reversed(sides), path, strict=True):
        try:
            other = bytes.fromhex(beside)
        except ValueError:
            raise ReceiptInvalid(f"{beside[:20]!r} is no hash") from None
        leaf = _node(leaf, other) if is_left else _node(other, leaf)
    return leaf.hex()


def heads_of(state: State) -> dict[str, str]:
    """The digest of the newest placement message on each node that has one."""
    heads = {name: before.chain for name, before in state.departed.items() if before.chain}
    return heads | {name: node.chain for name, node in state.nodes.items() if node.chain}


def signed_bytes(checkpoint: Checkpoint) -> bytes:
    """What a signature is over: its JSON without white space, with every map in key order.

    No other document of ours begins so, and a file may be laid out anew without harm."""
    return _SIGNED + _encode(checkpoint)


def encoded(document: Receipt | Proof) -> bytes:
    """The document as JSON, with every map in key order."""
    return _encode(document)


def hash_of(checkpoint: Checkpoint) -> str:
    """By which the checkpoint after it names this one."""
    return sha256(_encode(checkpoint)).hexdigest()


def read_receipt(data: bytes) -> Receipt:
    """Raises ReceiptInvalid. The signature is not looked at."""
    found: Receipt = _decoded(_decode_receipt, data, "receipt")
    _check(found.checkpoint)
    return found


def read_proof(data: bytes) -> Proof:
    """Raises ReceiptInvalid. Nothing of it is checked."""
    found: Proof = _decoded(_decode_proof, data, "proof")
    _check(found.receipt.checkpoint, found.apportion_proof)
    return found


def _check(found: Checkpoint, proof: int = FORMAT) -> None:
    for number in (proof, found.apportion_receipt):
        if number != FORMAT:
            raise ReceiptInvalid(f"it is of format {number}, and this build reads {FORMAT}")
    if not 0 < found.first <= found.last < found.first + SEGMENT_MAX:
        raise ReceiptInvalid(f"it is of revisions {found.first} to {found.last}")


def check_proof(proof: Proof) -> Checkpoint:
    """The checkpoint that the proof's record is under. Raises ReceiptInvalid: it is not.

    The signature is not looked at."""
    checkpoint = proof.receipt.checkpoint
    index, size = proof.revision - checkpoint.first, checkpoint.last - checkpoint.first + 1
    if not 0 <= index < size:
        what = f"revisions {checkpoint.first} to {checkpoint.last}, and not {proof.revision}"
        raise ReceiptInvalid(f"its receipt is of {what}")
    leaf = leaf_of(proof.revision, proof.subject, proof.message())
    if root_by(leaf, index, size, proof.path) != checkpoint.root:
        raise ReceiptInvalid(f"revision {proof.revision} is not what the receipt was made for")
    return checkpoint


def _decoded(decode: Any, data: bytes, what: str) -> Any:
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        raise ReceiptInvalid(f"is no {what}: {error}") from None
