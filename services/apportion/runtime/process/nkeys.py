"""NATS' keys: Ed25519, written in base32 with a prefix that says whose they are, and a checksum.

Invariant: a seed leaves this module in a file that its owner alone reads, or as a signature.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

USER: Final = 20 << 3
ACCOUNT: Final = 0
SERVER: Final = 13 << 3
_SEED: Final = 18 << 3
_KINDS: Final = {USER: "user", ACCOUNT: "account", SERVER: "server"}
_KEY_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 4096


class InvalidKey(ValueError):
    """It is no key of NATS; the message says what is wrong, and never shows it."""


class KeyPair:
    """A private key and its public one. `kind` is USER, ACCOUNT or SERVER."""

    def __init__(self, kind: int, raw: bytes) -> None:
        # A twentieth of a second of whoever has no key.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PrivateKey,
        )

        self.kind = kind
        self._raw = raw
        self._private: Ed25519PrivateKey = Ed25519PrivateKey.from_private_bytes(raw)

    @property
    def public(self) -> str:
        """The public key, as a server's configuration has it."""
        raw = self._private.public_key().public_bytes_raw()
        return _encoded(bytes([self.kind]) + raw)

    @property
    def seed(self) -> str:
        """The private key, as a file has it: do not show it."""
        first = bytes([_SEED | self.kind >> 5, (self.kind & 31) << 3])
        return _encoded(first + self._raw)

    def sign(self, data: bytes) -> bytes:
        """What shows that we have the private key, and saw `data`: 64 bytes."""
        return self._private.sign(data)


def new_key(kind: int = USER) -> KeyPair:
    """A key that nobody had before."""
    return KeyPair(kind, os.urandom(_KEY_BYTES))


def parse_seed(text: str) -> KeyPair:
    """The key of a seed. Raises InvalidKey."""
    raw = _decoded(text, "a seed")
    if len(raw) != _KEY_BYTES + 2 or raw[0] & 0xF8 != _SEED:
        raise InvalidKey("it is no seed of NATS: one begins with S, such as SU for a user's")
    kind = (raw[0] & 7) << 5 | raw[1] >> 3
    if kind not in _KINDS:
        raise InvalidKey(f"it is a seed for none of {', '.join(_KINDS.values())}")
    return KeyPair(kind, raw[2:])


def check_public(text: str, kind: int = USER) -> str:
    """The public key, if it is one of that kind. Raises InvalidKey."""
    raw = _decoded(text, "a public key")
    if len(raw) != _KEY_BYTES + 1 or raw[0] != kind:
        raise InvalidKey(f"it is no public key of a {_KINDS[kind]}")
    return text


def read_seed(path: Path) -> KeyPair:
    """The key of a file; lines that are no seed are passed over.

    Raises OSError, InvalidKey.
    """
    with path.open("rb") as file:
        text = file.read(_FILE_BYTES_MAX).decode("ascii", "replace")
    for line in text.split():
        if line.startswith("S"):
            return parse_seed(line)
    raise InvalidKey(f"{path} holds no seed of NATS: one begins with S, such as SU for a user's")


def write_seed(path: Path, key: KeyPair) -> None:
    """Write the seed into a file that is not there yet, for its owner's eyes. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{key.seed}\n")


def _encoded(raw: bytes) -> str:
    checksum = binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(raw + checksum).decode().rstrip("=")


def _decoded(text: str, what: str) -> bytes:
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (ValueError, binascii.Error):
        raise InvalidKey(f"it is not {what} of NATS: that is letters A to Z and 2 to 7") from None
    if binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") != raw[-2:]:
        raise InvalidKey(f"{what} of NATS has a checksum, and here it is wrong: copy it again")
    return raw[:-2]
