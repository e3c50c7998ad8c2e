"""The reasons why a device or node is cordoned, each with author, time and text.

Invariant: an author has at most one reason per object, the newest, in the order of events."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct


class Stated(Protocol):
    """A cordon's reason with its author and time, in the ledger or in an answer."""

    @property
    def by(self) -> str:
        """Return the user or program that set the cordon."""

    @property
    def reason(self) -> str:
        """Return the reason of the cordon, as its author wrote it."""

    @property
    def time(self) -> str:
        """Return the time of the event, in RFC 3339."""


class Cordon(Struct, frozen=True, array_like=True, gc=False):
    """One author's reason, with the time and revision of its event."""

    by: str
    reason: str
    time: str
    revision: int


def added(cordons: tuple[Cordon, ...], one: Cordon) -> tuple[Cordon, ...]:
    """Return the cordons with `one` replacing the same author's previous cordon, if any."""
    return (*(each for each in cordons if each.by != one.by), one)


def without(cordons: tuple[Cordon, ...], by: str) -> tuple[Cordon, ...]:
    """Return the cordons except those of author `by`."""
    return tuple(each for each in cordons if each.by != by)


def reasons(cordons: tuple[Cordon, ...]) -> str:
    """Join all reasons in one line, which is empty without cordons."""
    return "; ".join(each.reason for each in cordons)


def cordon_words(cordons: Iterable[Stated]) -> str:
    """Format cordons for users, as in `fan replaced (ada, 2026-05-01T14:20:07Z); …`."""
    return "; ".join(f"{each.reason} ({each.by}, {each.time[:19]}Z)" for each in cordons)
