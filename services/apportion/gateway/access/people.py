"""A person, what he wishes to do, and those who know whether he may.

Invariants: whoever cannot be asked about is not let in, and is told why; what is remembered of a
person is forgotten within `KEPT_S`, and nothing of a token is kept but its digest.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from hashlib import sha256
from typing import Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

KEPT_S = 30.0
"""So long a yes is good: who loses a right has it no longer than this."""
KEPT_NO_S = 5.0
KEPT_MAX = 8_192
T = TypeVar("T")


class Person(Struct, frozen=True):
    """Who asks, as the login knows him; `extra` is handed on to the API server as it came."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


class Wish(NamedTuple):
    """What somebody wants, in the words of Kubernetes' RBAC; the group is `apportion.dev`.

    Without a `namespace` it is wanted of the whole cluster.
    """

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""


READ_ALL = Wish("get", "ledger")
READ_METRICS = Wish("get", "metrics")
READ_DOCTOR = Wish("get", "doctor")


def read_namespace(namespace: str) -> Wish:
    """To read what is of one namespace."""
    return Wish("get", "pods", namespace=namespace)


class LoginUnavailable(Exception):
    """Nobody can say now who that is or what he may; the message says why."""


class Login(Protocol):
    """Somebody who knows whose a token is, and what that person may do."""

    async def person(self, token: str) -> Person | None:
        """Whose token this is; None where it is nobody's. Raises LoginUnavailable."""

    async def may(self, person: Person, wish: Wish) -> bool:
        """Whether the person may do that. Raises LoginUnavailable."""


class Remembered:
    """A login whose answers are good for a short time, so that not every request asks for them."""

    def __init__(self, login: Login, *, now: Callable[[], float] = time.monotonic) -> None:
        self._login = login
        self._people = _Kept[Person](now)
        self._nobodies = _Kept[None](now)  # apart: made-up tokens must not push people out
        self._rights = _Kept[bool](now)

    async def person(self, token: str) -> Person | None:
        """See Login."""
        key = _digest(token)
        if self._people.has(key):
            return self._people.get(key)
        if self._nobodies.has(key):
            return None
        found = await self._login.person(token)
        if found is None:
            self._nobodies.put(key, None, KEPT_NO_S)
        else:
            self._people.put(key, found, KEPT_S)
        return found

    async def may(self, person: Person, wish: Wish) -> bool:
        """See Login."""
        key = (person.name, person.uid, person.groups, wish)
        if not self._rights.has(key):
            allowed = await self._login.may(person, wish)
            self._rights.put(key, allowed, KEPT_S if allowed else KEPT_NO_S)
        return self._rights.get(key)

    def known(self, token: str) -> Person | None:
        """Whose token this is, if that was asked lately."""
        key = _digest(token)
        return self._people.get(key) if self._people.has(key) else None


def _digest(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class _Kept(Generic[T]):
    """Answers with their ends; the oldest go first where there are too many."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._of: OrderedDict[Hashable, tuple[T, float]] = OrderedDict()

    def has(self, key: Hashable) -> bool:
        found = self._of.get(key)
        return found is not None and found[1] > self._now()

    def get(self, key: Hashable) -> T:
        return self._of[key][0]

    def put(self, key: Hashable, value: T, seconds: float) -> None:
        self._of.pop(key, None)
        self._of[key] = (value, self._now() + seconds)
        if len(self._of) > KEPT_MAX:
            self._of.popitem(last=False)
