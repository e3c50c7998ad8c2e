"""Init containers that need no devices of their own: a container that runs after them has enough.

Init containers run one after the other, before any container that is neither one nor a sidecar. So
the devices of such a container are free for them until it starts: Kubernetes counts like that, the
kubelet hands devices on like that, and HAMi places like that. Where an init container needs more
than any one container after it, it is given devices beside them.

Invariant: who borrows gets no more than the lender holds.
"""

from collections.abc import Collection, Sequence

from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE


def parted(
    asks: Sequence[Ask], lenders: Collection[str]
) -> tuple[tuple[Ask, ...], tuple[Ask, ...]]:
    """The asks that take devices, and those of init containers that borrow them.

    `lenders` are the containers that start after all init containers.
    """
    able = [ask for ask in asks if ask.container in lenders]
    borrowing = tuple(ask for ask in asks if ask.init and lender_of(ask, able) is not None)
    return tuple(ask for ask in asks if ask not in borrowing), borrowing


def lender_of(borrower: Ask, asks: Sequence[Ask]) -> Ask | None:
    """The first of the asks that holds as much as the borrower wants, of everything."""
    return next((ask for ask in asks if not ask.init and _covers(ask, borrower)), None)


def _covers(ask: Ask, other: Ask) -> bool:
    if ask.family != other.family or ask.profile or other.profile:
        return False  # instances by profile: each is an ask of its own
    return ask.count >= other.count and ask.cores >= other.cores and _holds(ask, other)


def _holds(ask: Ask, other: Ask) -> bool:
    """Whether the memory is as much on any device."""
    if ask.memory_mib is not None:
        return other.memory_mib is not None and ask.memory_mib >= other.memory_mib
    percent = WHOLE if ask.memory_percent is None else ask.memory_percent
    if percent == WHOLE:
        return True
    return other.memory_mib is None and percent >= (other.memory_percent or WHOLE)
