"""Signed receipts that prove later, and offline, what the ledger contained.

A receipt covers the revisions `first` to `last`. It names the previous receipt, so the newest one
covers the whole ledger. Records form a Merkle tree as in RFC 6962: a leaf is the SHA-256 of 0x00
and the record; an inner node is that of 0x01 and two children. The first eight bytes of each leaf
are its fingerprint, which is kept next to the receipt. Fingerprints prove nothing, but show which
record was changed first. Invariant: a changed, dropped, new or moved record changes the root."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from apportion.core.ledger.state import State
from apportion_schemas.decoding import from_outside

FORMAT = 1
FINGERPRINT_BYTES = 8
SEGMENT_MAX = 1 << 20  # records in one receipt; a longer segment is split
_SIGNED = b"apportion receipt\n"


class Checkpoint(Struct, frozen=True):
    """The signed part of a receipt. Hashes are SHA-256 in hexadecimal digits."""

    apportion_receipt: int
    stream: str
    created: str  # the stream's creation time
    time: str
    first: int
    last: int
    root: str
    record: str  # the leaf of the last record
    heads: dict[str, str]  # digest of each node's newest placement message
    state: str  # the digest of the state
    state_format: int  # the snapshot format of its build
    fingerprints: str  # the hash of the fingerprint file
    previous: str  # the hash of the previous checkpoint, or empty


class Receipt(Struct, frozen=True):
    """A checkpoint with its signature and the signing key; see `signed_bytes`."""

    checkpoint: Checkpoint
    key: str
    signature: str


class Proof(Struct, frozen=True):
    """Proves that a record is in the ledger: the record, its checkpoint, and the Merkle path."""

    apportion_proof: int
    revision: int
    subject: str
    path: tuple[str, ...]  # from the leaf to the root
    receipt: Receipt
    payload: str | None = None
    base64: bytes | None = None  # a payload that is not text

    def message(self) -> bytes:
        """Return the record's payload as stored in the ledger."""
        return self.base64 or b"" if self.payload is None else self.payload.encode()


class ReceiptInvalid(Exception):
    """Raised for an invalid receipt or proof, with the reason."""


_encode = msgspec.json.Encoder(order="sorted").encode
_decode_receipt = from_outside(msgspec.json.Decoder(Receipt).decode)
_decode_proof = from_outside(msgspec.json.Decoder(Proof).decode)


class Tree:
    """A Merkle tree to which records are appended; it stores one hash per level."""

    def __init__(self) -> None:
        self._peaks: list[tuple[int, bytes]] = []
        self._fingerprints = bytearray()
        self.size = 0
        self.leaf = b""

    def add(self, leaf: bytes) -> None:
        """Append the leaf of the next record."""
        self.leaf = leaf
        self.size += 1
        self._fingerprints += leaf[:FINGERPRINT_BYTES]
        height = 0
        while self._peaks and self._peaks[-1][0] == height:
            leaf = _node(self._peaks.pop()[1], leaf)
            height += 1
        self._peaks.append((height, leaf))

    def root(self) -> str:
        """Return the Merkle root of all records so far, in hexadecimal digits."""
        hashes = [each for _, each in self._peaks]
        root = hashes.pop() if hashes else sha256().digest()
        while hashes:
            root = _node(hashes.pop(), root)
        return root.hex()

    def fingerprints(self) -> bytes:
        """Return the fingerprints of all records so far."""
        return bytes(self._fingerprints)


def leaf_of(revision: int, subject: str, payload: bytes) -> bytes:
    """Return the hash of one record. The hashed bytes include the subject's length."""
    return sha256(b"\0%d %d %s %s" % (revision, len(subject), subject.encode(), payload)).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def path_of(leaves: Sequence[bytes], index: int) -> list[str]:
    """Return the sibling hashes from one leaf up to the root (RFC 6962, 2.1.1)."""
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
    """Return the number of leaves on the left: the largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def root_by(leaf: bytes, index: int, size: int, path: Sequence[str]) -> str:
    """Compute the root of a Merkle tree from one leaf and its path. Raises ReceiptInvalid."""
    sides: list[bool] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        sides.append(index < middle)
        start, end = (start, middle) if index < middle else (middle, end)
    if len(sides) != len(path):
        raise ReceiptInvalid(f"the path has {len(path)} hashes, but {len(sides)} are needed")
    for is_left, beside in zip(reversed(sides), path, strict=True):
        try:
            other = bytes.fromhex(beside)
        except ValueError:
            raise ReceiptInvalid(f"{beside[:20]!r} is not a hash") from None
        leaf = _node(leaf, other) if is_left else _node(other, leaf)
    return leaf.hex()


def heads_of(state: State) -> dict[str, str]:
    """Return for each node the digest of its newest placement message."""
    heads = {name: before.chain for name, before in state.departed.items() if before.chain}
    return heads | {name: node.chain for name, node in state.nodes.items() if node.chain}


def signed_bytes(checkpoint: Checkpoint) -> bytes:
    """Return the bytes that are signed: a prefix, then compact JSON with sorted keys.

    Each kind of signed document has its own prefix. Reformatting a file keeps these bytes."""
    return _SIGNED + _encode(checkpoint)


def encoded(document: Receipt | Proof) -> bytes:
    """Return the document as JSON with sorted keys."""
    return _encode(document)


def hash_of(checkpoint: Checkpoint) -> str:
    """Return the checkpoint's hash; the next checkpoint contains it as `previous`."""
    return sha256(_encode(checkpoint)).hexdigest()


def read_receipt(data: bytes) -> Receipt:
    """Decode a receipt without checking its signature. Raises ReceiptInvalid."""
    found: Receipt = _decoded(_decode_receipt, data, "receipt")
    _check(found.checkpoint)
    return found


def read_proof(data: bytes) -> Proof:
    """Decode a proof without verifying it. Raises ReceiptInvalid."""
    found: Proof = _decoded(_decode_proof, data, "proof")
    _check(found.receipt.checkpoint, found.apportion_proof)
    return found


def _check(found: Checkpoint, proof: int = FORMAT) -> None:
    for number in (proof, found.apportion_receipt):
        if number != FORMAT:
            raise ReceiptInvalid(f"its format is {number}, but this build reads {FORMAT}")
    if not 0 < found.first <= found.last < found.first + SEGMENT_MAX:
        raise ReceiptInvalid(f"its revisions {found.first} to {found.last} are not a valid segment")


def check_proof(proof: Proof) -> Checkpoint:
    """Return the checkpoint that covers the proof's record. The signature is not checked.

    Raises ReceiptInvalid if the record is not the one that the receipt covers."""
    checkpoint = proof.receipt.checkpoint
    index, size = proof.revision - checkpoint.first, checkpoint.last - checkpoint.first + 1
    if not 0 <= index < size:
        what = f"revisions {checkpoint.first} to {checkpoint.last}, not {proof.revision}"
        raise ReceiptInvalid(f"its receipt covers {what}")
    leaf = leaf_of(proof.revision, proof.subject, proof.message())
    if root_by(leaf, index, size, proof.path) != checkpoint.root:
        raise ReceiptInvalid(f"revision {proof.revision} does not match its receipt")
    return checkpoint


def _decoded(decode: Any, data: bytes, what: str) -> Any:
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        raise ReceiptInvalid(f"is not a {what}: {error}") from None
