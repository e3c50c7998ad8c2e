"""The gateway's logins, which authenticate users and check the users' permissions.

Invariants: if the login cannot answer, the user is refused with the reason; cached answers expire
within `KEPT_S`; only the digest of a token is stored."""

import logging
import time
import tomllib
from collections.abc import Callable, Hashable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from apportion.core.bounded import remember
from apportion.runtime.files.atomic import stamp_of
from apportion.runtime.process.config import ConfigError

KEPT_S = 30.0  # how long an answer is cached: a revoked right lasts no longer than this
KEPT_NO_S = 5.0
KEPT_MAX = 8_192
T = TypeVar("T")


class Person(Struct, frozen=True):
    """An authenticated user; `extra` is passed to the API server unchanged."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


class Wish(NamedTuple):
    """A permission that an action needs, as in RBAC. An empty `namespace` means all namespaces."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""


READ_ALL = Wish("get", "ledger")
READ_METRICS = Wish("get", "metrics")
READ_DOCTOR = Wish("get", "doctor")


def read_namespace(namespace: str) -> Wish:
    """Return the permission that is needed to read one namespace."""
    return Wish("get", "pods", namespace=namespace)


class LoginUnavailable(Exception):
    """Error: the login cannot answer now. The message has the reason."""


class Login(Protocol):
    """Authenticates tokens and authorizes users."""

    async def person(self, token: str) -> Person | None:
        """Return the user of the token, or None if it is unknown. Raises LoginUnavailable."""

    async def may(self, person: Person, wish: Wish) -> bool:
        """Return True if the user has the permission. Raises LoginUnavailable."""


class Remembered:
    """A `Login` that wraps another one and caches its answers for a short time."""

    def __init__(self, login: Login, *, now: Callable[[], float] = time.monotonic) -> None:
        self._login = login
        self._people = _Kept[Person](now)
        # Unknown tokens have a cache of their own, so that forged ones do not evict users.
        self._nobodies = _Kept[bool](now)
        self._rights = _Kept[bool](now)

    async def person(self, token: str) -> Person | None:
        """Implement `Login.person`, with cached answers."""
        key = _digest(token)
        found = self._people.get(key)
        if found is not None or self._nobodies.get(key):
            return found
        found = await self._login.person(token)
        if found is None:
            self._nobodies.put(key, value=True, seconds=KEPT_NO_S)
        else:
            self._people.put(key, found, KEPT_S)
        return found

    async def may(self, person: Person, wish: Wish) -> bool:
        """Implement `Login.may`, with cached answers."""
        key = (person.name, person.uid, person.groups, wish)
        allowed = self._rights.get(key)
        if allowed is None:
            allowed = await self._login.may(person, wish)
            self._rights.put(key, allowed, KEPT_S if allowed else KEPT_NO_S)
        return allowed

    def known(self, token: str) -> Person | None:
        """Return the user of the token if it is cached, else None."""
        return self._people.get(_digest(token))


def _digest(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class _Kept(Generic[T]):
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._of: dict[Hashable, tuple[T, float]] = {}

    def get(self, key: Hashable) -> T | None:
        value, until = self._of.get(key, (None, 0.0))
        return value if until > self._now() else None

    def put(self, key: Hashable, value: T, seconds: float) -> None:
        remember(self._of, key, (value, self._now() + seconds), most=KEPT_MAX)


BYTES_MAX = 1 << 20
EVERY = "*"
_log = logging.getLogger(__name__)
Name = Annotated[str, Meta(min_length=1, max_length=253)]


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """The entry of one token: its digest, its user and that user's permissions."""

    name: Name
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    groups: tuple[Name, ...] = ()
    namespaces: tuple[Name, ...] = ()
    may: tuple[Literal["cordon", "metrics", "doctor"], ...] = ()


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    token: tuple[Row, ...] = ()


class TokenFile:
    """A login by tokens in a file, for a gateway without a cluster.

        [[token]]
        name = "mei"
        sha256 = "9f86d08…"          # of the token; `apportion token mei` makes both
        namespaces = ["ml", "ci"]    # or ["*"], for the whole ledger
        may = ["cordon"]             # also: metrics, doctor

    Invariants: the file is read again when it changes, and an invalid version changes nothing. The
    constructor raises ConfigError if the file is invalid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = stamp_of(path)
        self._rows = read_rows(path)

    async def person(self, token: str) -> Person | None:
        """Return the user whose entry has this token's digest, or None."""
        self._renew()
        row = self._rows.get(_digest(token))
        return None if row is None else Person(row.name, uid=row.sha256, groups=row.groups)

    async def may(self, person: Person, wish: Wish) -> bool:
        """Return True if the user's entry has the permission."""
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

    def _renew(self) -> None:
        stamp = stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._rows = read_rows(self._path)
        except ConfigError as error:
            _log.warning("keeping the previous tokens: %s", error)
        else:
            _log.info("%s changed, reloaded", self._path)


def read_rows(path: Path) -> dict[str, Row]:
    """Return the entries of a token file, keyed by the token's digest. Raises ConfigError."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise ValueError(f"the file has more than {BYTES_MAX:,} bytes")
        rows = msgspec.convert(tomllib.loads(path.read_text()), _File).token
        names = [row.name for row in rows]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"token {twice[0]!r} is listed twice")
    except (OSError, ValueError, msgspec.ValidationError) as error:
        fix = f"the file cannot be used: {error}; create tokens with `apportion token NAME`"
        raise ConfigError("--tokens", str(path), fix) from None
    return {row.sha256: row for row in rows}
