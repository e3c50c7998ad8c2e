"""The cordons of a device or node, each with author, reason and time.

Invariant: a user has at most one cordon per object, the newest; cordons are in order of events."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct


class Stated(Protocol):
    """The fields that cordons have both in the ledger and in API answers."""

    @property
    def by(self) -> str:
        """Return the user or program that set the cordon."""

    @property
    def reason(self) -> str:
        """Return the reason of the cordon, as its author wrote it."""

    @property
    def time(self) -> str:
        """Return when the device or node was cordoned, in RFC 3339."""


class Cordon(Struct, frozen=True, array_like=True, gc=False):
    """One user's cordon: the reason, and the time and revision of the event."""

    by: str
    reason: str
    time: str
    revision: int


def added(cordons: tuple[Cordon, ...], one: Cordon) -> tuple[Cordon, ...]:
    """Return the cordons plus `one`, which replaces an earlier cordon of the same user."""
    return (*(each for each in cordons if each.by != one.by), one)


def without(cordons: tuple[Cordon, ...], by: str) -> tuple[Cordon, ...]:
    """Return the cordons except that of user `by`."""
    return tuple(each for each in cordons if each.by != by)


def reasons(cordons: tuple[Cordon, ...]) -> str:
    """Return the reasons of all cordons in one line; empty without cordons."""
    return "; ".join(each.reason for each in cordons)


def cordon_words(cordons: Iterable[Stated]) -> str:
    """Format cordons for users, as in `fan replaced (ada, 2026-05-01T14:20:07Z); …`."""
    return "; ".join(f"{each.reason} ({each.by}, {each.time[:19]}Z)" for each in cordons)
