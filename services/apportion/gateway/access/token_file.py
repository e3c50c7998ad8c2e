"""Tokens in a file, for a gateway without a cluster: who has each, and what he may.

    [[token]]
    name = "mei"
    sha256 = "9f86d08…"          # of the token; `apportion token mei` makes both
    namespaces = ["ml", "ci"]    # or ["*"], for all that the ledger says
    may = ["cordon"]             # also: metrics, doctor

Invariants: the file holds no token; it is read anew when it was rewritten, and one that cannot be
used changes nothing.
"""

from __future__ import annotations

import logging
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from apportion.gateway.access.people import (
    READ_ALL,
    READ_DOCTOR,
    READ_METRICS,
    Person,
    Wish,
)
from apportion.runtime.process.config import ConfigError

BYTES_MAX = 1 << 20
EVERY = "*"
_log = logging.getLogger(__name__)
Name = Annotated[str, Meta(min_length=1, max_length=253)]


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One token: whose it is, by its digest, and what that one may."""

    name: Name
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    groups: tuple[Name, ...] = ()
    namespaces: tuple[Name, ...] = ()
    may: tuple[Literal["cordon", "metrics", "doctor"], ...] = ()


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    token: tuple[Row, ...] = ()


class TokenFile:
    """See `people.Login`. Raises ConfigError where the file cannot be used at the beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._stamped()
        self._rows = read_rows(path)

    async def person(self, token: str) -> Person | None:
        """The person whose row has the digest of this token."""
        self._renew()
        row = self._rows.get(sha256(token.encode("utf-8", "surrogatepass")).hexdigest())
        return None if row is None else Person(row.name, uid=row.sha256, groups=row.groups)

    async def may(self, person: Person, wish: Wish) -> bool:
        """Whether the row of his token says so."""
        self._renew()
        row = self._rows.get(person.uid)
        if row is None:
            return False
        if wish in {READ_METRICS, READ_DOCTOR} and wish.resource in row.may:
            return True
        if EVERY in row.namespaces and wish.verb == "get":
            return True
        if wish.resource == "pods" and wish.verb == "get":
            return bool(wish.namespace) and wish.namespace in row.namespaces
        return wish.verb in {"cordon", "uncordon"} and "cordon" in row.may and wish != READ_ALL

    def _stamped(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _renew(self) -> None:
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._rows = read_rows(self._path)
        except ConfigError as error:
            _log.warning("tokens stay as they were: %s", error)
        else:
            _log.info("%s was rewritten, and is read anew", self._path)


def read_rows(path: Path) -> dict[str, Row]:
    """The tokens of a file, by their digests. Raises ConfigError."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise ValueError(f"it has more than {BYTES_MAX} bytes")
        rows = msgspec.convert(tomllib.loads(path.read_text()), _File).token
        names = [row.name for row in rows]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twice[0]} is there twice")
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise ConfigError(
            "--tokens", str(path), f"cannot be used ({error}); `apportion token NAME` makes one"
        ) from None
    return {row.sha256: row for row in rows}
