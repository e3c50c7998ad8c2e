"""Who took a device or a node off offer, when, and why: every reason until it is lifted.

Invariant: one person has one reason at a time for one thing, the newest; the order is that of the
events.
"""

from msgspec import Struct


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


def cordon_words(cordons: tuple[Cordon, ...]) -> str:
    """As people read it: `fan replaced (ada, 2026-05-01T14:20:07Z); …`, as all times."""
    return "; ".join(f"{each.reason} ({each.by}, {each.time[:19]}Z)" for each in cordons)
