"""Who took a device or a node off offer, when, and why: every reason until it is lifted.

Invariant: one person has one reason at a time for one thing, the newest; the order is that of the
events."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct


class Stated(Protocol):
    """A reason with its author and time, in the ledger or in an answer."""

    @property
    def by(self) -> str:
        """The person or program that cordoned it."""

    @property
    def reason(self) -> str:
        """Why it takes nothing new, in that person's words."""

    @property
    def time(self) -> str:
        """The time of the event, as RFC 3339 writes it."""


class Cordon(Struct, frozen=True, array_like=True, gc=False):
    """One person's reason, the time and revision of the event that says so."""

    by: str
    reason: str
    time: str
    revision: int


def added(cordons: tuple[Cordon, ...], one: Cordon) -> tuple[Cordon, ...]:
    """These, with that one in place of what the same person said before."""
    return (*(each for each in cordons if each.by != one.by), one)


def without(cordons: tuple[Cordon, ...], by: str) -> tuple[Cordon, ...]:
    """These, without what that person said."""
    return tuple(each for each in cordons if each.by != by)


def reasons(cordons: tuple[Cordon, ...]) -> str:
    """All reasons in one line; empty where there are none."""
    return "; ".join(each.reason for each in cordons)


def cordon_words(cordons: Iterable[Stated]) -> str:
    """As people read it: `fan replaced (ada, 2026-05-01T14:20:07Z); …`, as all times."""
    return "; ".join(f"{each.reason} ({each.by}, {each.time[:19]}Z)" for each in cordons)
