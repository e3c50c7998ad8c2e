"""Which containers wait for others on their card, and which are held to their compute.

What HAMi's monitor does every few seconds (`feedback.go`), so that a share of compute is a limit
only where another container uses the card. Without these rounds HAMi-core holds every container
always. A region reports use of its card in two ways: `recent_kernel`, which HAMi-core of mid 2026
sets only while it holds the container, and the time of its last kernel.

Devices and priority are the ledger's, never the region's: its container may write anything there.
By lying about use a container can only have itself and its neighbours held to their own compute.
Invariant: a container of the first priority never waits, and one waits only for its own namespace
or for a namespace to which the node's operator gives precedence."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from apportion.core.grants.region import Region

ANY = "*"
"""In place of a namespace: all of them."""


class Contender(NamedTuple):
    """One container: its region, and by the ledger its namespace, devices and priority.

    Priority 0 goes before 1."""

    region: Region
    namespace: str
    devices: tuple[str, ...]
    priority: int


def advise(
    contenders: Sequence[Contender], now_s: float, recent_s: float, first: Collection[str] = ()
) -> None:
    """Run one round over all containers of the node: have some wait, hold some, free the rest.

    A container uses its devices if it launched a kernel in the last `recent_s` seconds before
    `now_s`, in seconds since 1970. It waits while one that goes before it uses a device of its own,
    and is held to its compute where another one does. `first` are the namespaces whose containers
    of priority 0 go before those of other namespaces."""
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
