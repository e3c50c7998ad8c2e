"""Decide which containers of a device wait for other containers, and which have limited compute.

HAMi's monitor does the same every few seconds (`feedback.go`); without it, HAMi-core always limits
compute. Each container's region (a file) has the time of its last kernel; devices and priority come
from the ledger. So a container that reports false use can only slow itself and its neighbours.
Invariant: a container of priority 0 never waits. Other containers wait only for containers of their
own namespace, or of namespaces to which the node's operator gives precedence."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from apportion.core.grants.region import Region

ANY = "*"  # matches every namespace


class Contender(NamedTuple):
    """A container that may share devices, with its region (HAMi-core's file) and priority."""

    region: Region
    namespace: str
    devices: tuple[str, ...]
    priority: int


def advise(
    contenders: Sequence[Contender], now_s: float, recent_s: float, first: Collection[str] = ()
) -> None:
    """Block, limit or release each container of the node.

    A container uses its devices if it launched a kernel within `recent_s` seconds of `now_s`. A
    container is blocked while one with precedence uses one of its devices, and limited while any
    other does. Containers of priority 0 in the namespaces `first` precede those of other
    namespaces."""
    using: dict[str, list[Contender]] = {}
    for each in contenders:
        each.region.count_down()
        launched = now_s - recent_s <= each.region.last_kernel <= now_s + recent_s
        if launched or each.region.recently_used:
            for device in each.devices:
                using.setdefault(device, []).append(each)
    for each in contenders:
        on_any = [using.get(device, []) for device in each.devices]
        waits = any(_goes_before(user, each, first) for users in on_any for user in users)
        beside = any(
            sum(not _goes_before(each, user, first) for user in users) > 1 for users in on_any
        )
        each.region.block(blocked=waits)
        each.region.hold_cores(held=waits or beside)


def _goes_before(one: Contender, other: Contender, first: Collection[str]) -> bool:
    if one.priority >= other.priority:
        return False
    return one.namespace == other.namespace or one.namespace in first or ANY in first
