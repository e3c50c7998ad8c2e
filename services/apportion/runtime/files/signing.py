"""Ed25519 keys in PEM files: a private key that signs, and its public key.

Invariant: writing a private key never replaces a file, and only the owner can read the file."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_BYTES_MAX = 64 << 10
KEY_ID_CHARS = 16


class KeyInvalid(Exception):
    """Error: the file contains no usable key. The message names the file."""


class SigningKey:
    """A private Ed25519 key. Its `id` is the id of the public key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.id = _id(key.public_key())

    @property
    def public(self) -> VerifyingKey:
        """Return the public key that belongs to this private key."""
        return VerifyingKey(self._key.public_key())

    def sign(self, data: bytes) -> str:
        """Return the signature of `data` in hexadecimal digits."""
        return self._key.sign(data).hex()


class VerifyingKey:
    """A public Ed25519 key. Its `id` is the start of the SHA-256 of its 32 bytes."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key
        self.id = _id(key)

    def signed(self, data: bytes, signature: str) -> bool:
        """Return True if `signature` over `data` was made with the matching private key."""
        try:
            self._key.verify(bytes.fromhex(signature), data)
        except (InvalidSignature, ValueError):
            return False
        return True


def make_key(path: Path) -> Path:
    """Write a new private key to `path`, and its public key to `path`.pub, which is returned."""
    key = Ed25519PrivateKey.generate()
    public = path.with_name(f"{path.name}.pub")
    if public.exists():
        raise FileExistsError(17, "already exists", str(public))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_new(path, private, mode=0o600)
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write_new(public, pem, mode=0o644)
    return public


def read_signing_key(path: Path) -> SigningKey:
    """Read a private key that `make_key` wrote. Raises KeyInvalid, OSError."""
    try:
        key = serialization.load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyInvalid(
            f"{path} is not an Ed25519 private key in PEM; create one with `apportion receipt key`"
        )
    return SigningKey(key)


def read_verifying_key(path: Path) -> VerifyingKey:
    """Read a public key that `make_key` wrote. Raises KeyInvalid, OSError."""
    try:
        key = serialization.load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyInvalid(
            f"{path} is not an Ed25519 public key in PEM; use the file that ends in .pub"
        )
    return VerifyingKey(key)


def _id(key: Ed25519PublicKey) -> str:
    return sha256(key.public_bytes_raw()).hexdigest()[:KEY_ID_CHARS]


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(KEY_BYTES_MAX)


def _write_new(path: Path, data: bytes, *, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
