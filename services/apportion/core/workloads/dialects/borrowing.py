"""Containers that need no devices of their own, because those of another are free at their time.

Init containers run one after the other, before any container that is neither one nor a sidecar. So
what a pod holds of a device is the most of any init container and of all others together, and not
the sum: Kubernetes counts like that, the kubelet hands devices on like that, and HAMi places like
that (`CollapseInitContainerUsage`). A container that holds devices may hold more than it asks for
itself, for the sake of one that it lends them to: its ask among those that take devices is the most
of all, and its own stands among those that borrow. Where that cannot be said in one ask (other
counts of devices, or amounts of other kinds), an init container is given devices beside the others.
Invariant: who borrows gets no more than the lender holds, and of two that borrow from one only one
runs at a time."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import structs

from apportion.core.devices.demand import Demand, demand
from apportion_schemas import Ask, Device, PodSubmitted, Share
from apportion_schemas.quantities import WHOLE

Parts = tuple[tuple[Ask, ...], tuple[Ask, ...]]
"""The asks that take devices, and those that borrow them."""


def parted(asks: Sequence[Ask], apps: Collection[str]) -> Parts:
    """The asks that take devices, and those that borrow them.

    `apps` are the containers that start after all init containers."""
    holders = {ask.container: ask for ask in asks if not ask.init}
    for init in (ask for ask in asks if ask.init):
        able = [ask for ask in holders.values() if ask.init or ask.container in apps]
        raised = [each for ask in able if (each := _most(ask, init)) is not None]
        best = min(raised, key=lambda each: _more(holders[each.container], each), default=init)
        holders[best.container] = best
    own = tuple(holders[ask.container] for ask in asks if ask.container in holders)
    return own, tuple(ask for ask in asks if ask not in own)


def lent(
    borrower: Ask, pod: PodSubmitted, shares: Iterable[Share], devices: Mapping[str, Device]
) -> list[Share]:
    """What the borrower gets of the pod's shares: the first devices of the lender, as many as are
    wanted, and as much of each."""
    asks = joined(pod.shape.asks)
    early = set(pod.init_containers)
    sidecars = {ask.container for ask in asks if ask.container in early and not ask.init}
    lender = lender_of(borrower, asks, sidecars)
    if lender is None:
        return []
    held = [share for share in shares if share.container == lender.container]
    found = []
    for share in held[: borrower.count]:
        own = structs.replace(share, container=borrower.container)
        if share.instance is None and share.template is None:  # a piece is lent as it is
            wanted = demand(borrower, devices[share.device])
            if isinstance(wanted, Demand) and wanted.template is None:
                own = structs.replace(own, memory_mib=wanted.memory_mib, cores=wanted.cores)
        found.append(own)
    return found


def lender_of(borrower: Ask, asks: Sequence[Ask], beside: Collection[str]) -> Ask | None:
    """The ask whose devices the borrower gets: that of its own container where it has one, else the
    first that holds as much of everything. `beside` are sidecars, which run on and lend nothing."""
    able = [ask for ask in asks if ask.container not in beside]
    own = (ask for ask in able if ask.container == borrower.container)
    return next(own, None) or next((ask for ask in able if _covers(ask, borrower)), None)


def joined(asks: Iterable[Ask]) -> list[Ask]:
    """One ask for each container: instances of MIG are asked for one by one."""
    found: dict[str, Ask] = {}
    for ask in asks:
        first = found.get(ask.container)
        count = ask.count + (first.count if first else 0)
        found[ask.container] = structs.replace(ask, count=count)
    return list(found.values())


def _covers(ask: Ask, other: Ask) -> bool:
    """Whether it is as much, of everything and on any device."""
    return ask.count >= other.count and _raised(ask, other) == ask


def _most(ask: Ask, other: Ask) -> Ask | None:
    """The ask, raised to hold what the other wants at another time; None where it cannot be."""
    if _covers(ask, other):
        return ask
    return _raised(ask, other) if ask.count == other.count else None


def _raised(ask: Ask, other: Ask) -> Ask | None:
    """The ask, with as much of each device as the other wants, if the two can be compared."""
    if ask.family != other.family or ask.profile or other.profile:
        return None  # instances by profile: each is an ask of its own
    cores = max(ask.cores, other.cores)
    if ask.memory_mib is not None and other.memory_mib is not None:
        return structs.replace(ask, cores=cores, memory_mib=max(ask.memory_mib, other.memory_mib))
    parts = [_part(each) for each in (ask, other)]
    if WHOLE in parts:
        whole = {"memory_mib": None, "memory_percent": None, "cap_memory": False}
        return structs.replace(ask, cores=cores, **({} if parts[0] == WHOLE else whole))
    if ask.memory_mib is not None or other.memory_mib is not None:
        return None
    return structs.replace(ask, cores=cores, memory_percent=max(parts))


def _part(ask: Ask) -> int:
    """The part of each device's memory; of an amount 0, which stands for nothing known."""
    if ask.memory_mib is not None:
        return 0
    return WHOLE if ask.memory_percent is None else ask.memory_percent


def _more(ask: Ask, raised: Ask) -> tuple[int, int, int]:
    """How much more the raised ask takes, by what it takes most of."""
    return (
        _part(raised) - _part(ask),
        (raised.memory_mib or 0) - (ask.memory_mib or 0),
        raised.cores - ask.cores,
    )
