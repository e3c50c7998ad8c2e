"""How somebody comes to the ledger: where it is, as whom, and by what he shows that he is.

The URL names servers and user. Beside it stands one of: a key (`--nats-key`), whose seed never
leaves this machine; a token (`--nats-token`), which is read anew whenever one connects, as its
file changes; a password in the URL. Invariant: no message shows any of them.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from apportion.runtime.process.nkeys import InvalidKey, KeyPair, read_seed

TOKEN_BYTES_MAX = 64 << 10
LEDGER_KEY_BYTES_MIN = 32


class CannotShow(Exception):
    """What he is to show that he is who he says cannot be read; names file, cause and fix."""


class Reach(msgspec.Struct, frozen=True):
    """The servers' URL, several by comma; and a key or a token, where the URL has no password."""

    url: str
    key: Path | None = None
    token: Path | None = None
    ledger_key: Path | None = None
    """By which those who append hide the ids of their messages from those who do not."""

    @property
    def user(self) -> str:
        """Who connects; empty where nobody is named."""
        return self._first.username or ""

    @property
    def password(self) -> str | None:
        """That of the first server's URL."""
        return self._first.password

    @property
    def _first(self) -> SplitResult:
        return urlsplit(full(self.url.partition(",")[0].strip()))

    @property
    def shown(self) -> str:
        """The URL without user and password, for messages and logs."""
        servers = (urlsplit(full(part.strip())) for part in self.url.split(","))
        return ",".join(f"{each.scheme}://{each.netloc.rpartition('@')[2]}" for each in servers)

    def read_key(self) -> KeyPair:
        """The key, as its file has it now. Raises CannotShow."""
        path = self.key or Path()
        try:
            return read_seed(path)
        except (OSError, InvalidKey) as failure:
            raise CannotShow(
                f"cannot use the key in {path}: {failure}; `apportion user add` makes one, and "
                "--nats-key or APPORTION_NATS_KEY names it"
            ) from failure

    def read_token(self) -> str:
        """The token, as its file has it now. Raises CannotShow."""
        path = self.token or Path()
        try:
            with path.open("rb") as file:
                text = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as failure:
            raise CannotShow(
                f"cannot use the token in {path}: {failure}; --nats-token or APPORTION_NATS_TOKEN "
                "names its file"
            ) from failure
        if not text:
            raise CannotShow(f"the token in {path} is empty; --nats-token names its file")
        return text

    @property
    def encrypted(self) -> bool:
        """Whether a server without TLS is none: one of them is `tls://`."""
        urls = (urlsplit(full(part.strip())) for part in self.url.split(","))
        return any(url.scheme == "tls" for url in urls)

    def read_ledger_key(self) -> bytes:
        """The key by which ids are hidden; empty where there is none. Raises CannotShow."""
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
                f"the ledger's key in {path} has {len(key)} bytes; write {LEDGER_KEY_BYTES_MIN} or "
                "more that nobody can guess: openssl rand -hex 32"
            )
        return key

    def check(self) -> None:
        """Read once what is shown later. Raises CannotShow."""
        if self.key:
            self.read_key()
        elif self.token:
            self.read_token()
        self.read_ledger_key()


def reach_of(given: Reach | str) -> Reach:
    """A URL alone, as the reach that it is."""
    return Reach(given) if isinstance(given, str) else given


def full(url: str) -> str:
    """The URL, with its scheme."""
    return url if "://" in url else f"nats://{url}"
