"""The connection settings of the ledger's clients: server URLs, user and credentials.

A credential is one of three: an Ed25519 seed (`--nats-key`), of which only signatures leave this
machine; a token (`--nats-token`), read again for each connection because its file changes; or a
password in the URL. Invariants: no message has a credential. Only the owner can read a seed."""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

USER: Final = 20 << 3
ACCOUNT: Final = 0
SERVER: Final = 13 << 3
_SEED: Final = 18 << 3
_KINDS: Final = {USER: "user", ACCOUNT: "account", SERVER: "server"}
_KEY_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 4096
TOKEN_BYTES_MAX = 64 << 10
LEDGER_KEY_BYTES_MIN = 32


class InvalidKey(ValueError):
    """Error: the NATS key is not usable. The message has the reason but not the key."""


class KeyPair:
    """A private key with its public key. `kind` is USER, ACCOUNT or SERVER, as in NATS."""

    def __init__(self, kind: int, raw: bytes) -> None:
        # Imported late: it takes 50 ms, which clients without a key save.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

        self.kind = kind
        self._raw = raw
        self._private: Ed25519PrivateKey = Ed25519PrivateKey.from_private_bytes(raw)

    @property
    def public(self) -> str:
        """Return the public key in the form that NATS server configurations use."""
        raw = self._private.public_key().public_bytes_raw()
        return _encoded(bytes([self.kind]) + raw)

    @property
    def seed(self) -> str:
        """Return the private key in the form that seed files use. Do not print it."""
        first = bytes([_SEED | self.kind >> 5, (self.kind & 31) << 3])
        return _encoded(first + self._raw)

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature of `data`."""
        return self._private.sign(data)


def new_key(kind: int = USER) -> KeyPair:
    """Generate a random key pair."""
    return KeyPair(kind, os.urandom(_KEY_BYTES))


def parse_seed(text: str) -> KeyPair:
    """Parse a seed into its key pair. Raises InvalidKey."""
    raw = _decoded(text, "seed")
    if len(raw) != _KEY_BYTES + 2 or raw[0] & 0xF8 != _SEED:
        raise InvalidKey("not a NATS seed; a seed begins with S, a user's with SU")
    kind = (raw[0] & 7) << 5 | raw[1] >> 3
    if kind not in _KINDS:
        raise InvalidKey(f"the seed must be of one of these kinds: {', '.join(_KINDS.values())}")
    return KeyPair(kind, raw[2:])


def check_public(text: str, kind: int = USER) -> str:
    """Return `text` if it is a public key of the given kind. Raises InvalidKey."""
    raw = _decoded(text, "public key")
    if len(raw) != _KEY_BYTES + 1 or raw[0] != kind:
        raise InvalidKey(f"not a public key of type {_KINDS[kind]}")
    return text


def read_seed(path: Path) -> KeyPair:
    """Read the first seed in a file. Raises OSError, InvalidKey."""
    with path.open("rb") as file:
        text = file.read(_FILE_BYTES_MAX).decode("ascii", "replace")
    for line in text.split():
        if line.startswith("S"):
            return parse_seed(line)
    raise InvalidKey(f"{path} has no NATS seed; a seed begins with S, a user's with SU")


def write_seed(path: Path, key: KeyPair) -> None:
    """Write the seed to a new file that only its owner can read. Raises OSError."""
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
        raise InvalidKey(f"not a NATS {what}; write only A to Z and 2 to 7") from None
    if binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") != raw[-2:]:
        raise InvalidKey(f"wrong checksum in the NATS {what}; copy it again")
    return raw[:-2]


class CannotShow(Exception):
    """Error: a credential cannot be read. The message names file, cause and fix."""


class Reach(msgspec.Struct, frozen=True):
    """How to reach the NATS servers: URLs, and a key, a token, or a password in the URLs."""

    url: str
    key: Path | None = None
    token: Path | None = None
    ledger_key: Path | None = None  # with which writers hide the ids of their messages from readers

    @property
    def user(self) -> str:
        """Return the user name for the connection, or "" if the URL has none."""
        return self._first.username or ""

    @property
    def password(self) -> str | None:
        """Return the password in the first server's URL."""
        return self._first.password

    @property
    def _first(self) -> SplitResult:
        return urlsplit(full(self.url.partition(",")[0].strip()))

    @property
    def shown(self) -> str:
        """Return the URL without user and password, for messages and logs."""
        servers = (urlsplit(full(part.strip())) for part in self.url.split(","))
        return ",".join(f"{each.scheme}://{each.netloc.rpartition('@')[2]}" for each in servers)

    def read_key(self) -> KeyPair:
        """Read the current content of the key file. Raises CannotShow."""
        path = self.key or Path()
        try:
            return read_seed(path)
        except (OSError, InvalidKey) as failure:
            raise CannotShow(
                f"cannot use the key in {path}: {failure}; create one with `apportion user add`, "
                "and name it with --nats-key or APPORTION_NATS_KEY"
            ) from failure

    def read_token(self) -> str:
        """Read the current content of the token file. Raises CannotShow."""
        path = self.token or Path()
        try:
            with path.open("rb") as file:
                text = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as failure:
            raise CannotShow(
                f"cannot use the token in {path}: {failure}; name its file with --nats-token or "
                "APPORTION_NATS_TOKEN"
            ) from failure
        if not text:
            raise CannotShow(
                f"the token file {path} is empty; write a token, or name a file with --nats-token"
            )
        return text

    @property
    def encrypted(self) -> bool:
        """Return True if a server URL is `tls://`, so a connection without TLS must fail."""
        urls = (urlsplit(full(part.strip())) for part in self.url.split(","))
        return any(url.scheme == "tls" for url in urls)

    def read_ledger_key(self) -> bytes:
        """Read the key that hides message ids, or return b"" if unset. Raises CannotShow."""
        path = self.ledger_key
        if path is None:
            return b""
        try:
            with path.open("rb") as file:
                key = file.read(TOKEN_BYTES_MAX).strip()
        except OSError as failure:
            raise CannotShow(f"cannot read the ledger's key in {path}: {failure}") from failure
        if len(key) < LEDGER_KEY_BYTES_MIN:
            raise CannotShow(
                f"the ledger's key in {path} has {len(key)} bytes; it needs at least "
                f"{LEDGER_KEY_BYTES_MIN} random bytes: openssl rand -hex 32"
            )
        return key

    def check(self) -> None:
        """Read all credential files once, to find errors early. Raises CannotShow."""
        if self.key:
            self.read_key()
        elif self.token:
            self.read_token()
        self.read_ledger_key()


def reach_of(given: Reach | str) -> Reach:
    """Convert a plain URL to a Reach; return a Reach unchanged."""
    return Reach(given) if isinstance(given, str) else given


def full(url: str) -> str:
    """Return the URL, with the scheme nats:// added if it has none."""
    return url if "://" in url else f"nats://{url}"
