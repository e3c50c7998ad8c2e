"""The cordons of a device or node, each with author, reason and time.

Invariant: a user has at most one cordon per object, the newest; cordons are in order of events."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from apportion_schemas import (
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceUncordoned,
    NodeCordoned,
    NodeCordonLifted,
    NodeUncordoned,
)


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


def spoken(cordons: Iterable[Stated]) -> str:
    """Format cordons for users like `cordon_words`, but without their times."""
    return "; ".join(f"{each.reason} ({each.by})" for each in cordons)


def cordoning(node: str, device: str, *, by: str, reason: str) -> NodeCordoned | DeviceCordoned:
    """Build the event that cordons `device`, or `node` if `device` is empty."""
    if device:
        return DeviceCordoned(device=device, by=by, reason=reason)
    return NodeCordoned(node=node, by=by, reason=reason)


def lifting(
    node: str, device: str, *, of: str, by: str, reason: str
) -> NodeCordonLifted | DeviceCordonLifted:
    """Build the event that removes the cordon of the user `of` from `device`, or from `node`."""
    if device:
        return DeviceCordonLifted(device=device, of=of, by=by, reason=reason)
    return NodeCordonLifted(node=node, of=of, by=by, reason=reason)


def uncordoning(
    node: str, device: str, *, by: str, reason: str = ""
) -> NodeUncordoned | DeviceUncordoned:
    """Build the event that removes all cordons from `device`, or from `node`."""
    if device:
        return DeviceUncordoned(device=device, by=by, reason=reason)
    return NodeUncordoned(node=node, by=by, reason=reason)
