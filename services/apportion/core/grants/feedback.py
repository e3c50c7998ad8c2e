"""Which containers wait for others on their card, and which are held to their compute.

What HAMi's monitor does every few seconds (`feedback.go`), so that a share of compute is a limit
only where somebody else wants the card. Without these rounds HAMi-core holds everybody always.
That a container uses a card says its region in two ways: `recent_kernel`, which HAMi-core of mid
2026 sets only while it holds the container, and the time of its last kernel. Invariant: of the
containers that used a card lately, those of the highest priority are never made to wait, so a card
that is wanted does not stand idle.
"""

from collections import Counter
from collections.abc import Sequence

from apportion.core.grants.region import Region


def advise(regions: Sequence[Region], now_s: float, recent_s: float) -> None:
    """One round over all containers of the node: let some wait, hold some, and free the rest.

    A kernel in the last `recent_s` seconds before `now_s`, in seconds since 1970, is one of lately.

    A container waits while one of higher priority (a lower number) uses a card of its own, and is
    held to its compute where another of its priority does.
    """
    using: Counter[tuple[str, int]] = Counter()
    for region in regions:
        region.count_down()
        if region.recently_used or 0 < region.last_kernel >= now_s - recent_s:
            using.update((device, region.priority) for device in region.devices)
    ranks = sorted({rank for _, rank in using})
    for region in regions:
        own = region.priority
        before = any(
            using[device, rank] for device in region.devices for rank in ranks if rank < own
        )
        beside = any(using[device, own] > 1 for device in region.devices)
        region.block(blocked=before)
        region.hold_cores(held=before or beside)
