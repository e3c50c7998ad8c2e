"""Let a container borrow devices that another container of the pod uses at another time.

Init containers run one by one before the app containers. So a pod needs the maximum, not the sum,
as in Kubernetes and HAMi (`CollapseInitContainerUsage`). The lender's ask is raised to what the
borrower needs. If no ask can cover both, the init container gets its own devices. Invariant: a
borrower gets no more than the lender has, and two borrowers from one lender never run at once."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from msgspec import structs

from apportion.core.devices.demand import Demand, demand
from apportion_schemas import Ask, Device, PodSubmitted, Share
from apportion_schemas.quantities import WHOLE

# the asks that take devices, and those that borrow them
Parts = tuple[tuple[Ask, ...], tuple[Ask, ...]]


def parted(asks: Sequence[Ask], apps: Collection[str]) -> Parts:
    """Split a pod's asks into those that get devices and those that borrow them.

    `apps` are the app containers, which start after all init containers."""
    holders = {ask.container: ask for ask in asks if not ask.init}
    for init in (ask for ask in asks if ask.init):
        able = [ask for ask in holders.values() if ask.init or ask.container in apps]
        raised = [
            each
            for ask in able
            if (each := _raised(ask, init)) is not None
            and (ask.count == init.count or _covers(ask, init))
        ]
        best = min(raised, key=lambda each: _more(holders[each.container], each), default=init)
        holders[best.container] = best
    own = tuple(holders[ask.container] for ask in asks if ask.container in holders)
    return own, tuple(ask for ask in asks if ask not in own)


def lent(
    borrower: Ask, pod: PodSubmitted, shares: Iterable[Share], devices: Mapping[str, Device]
) -> list[Share]:
    """Return the shares that a container may borrow; empty if no container can lend them.

    The borrower gets the lender's first devices, as many and as much of each as it requests."""
    asks = joined(pod.shape.asks)
    # Sidecars keep running and lend nothing. The lender is the borrower's own container, else the
    # first one with as much of everything.
    sidecars = {a.container for a in asks if a.container in pod.init_containers and not a.init}
    able = [ask for ask in asks if ask.container not in sidecars]
    own_asks = (ask for ask in able if ask.container == borrower.container)
    covering = (ask for ask in able if _covers(ask, borrower))
    lender = next(chain(own_asks, covering), None)
    if lender is None:
        return []
    held = [share for share in shares if share.container == lender.container]
    found = []
    for share in held[: borrower.count]:
        own = structs.replace(share, container=borrower.container)
        if share.instance is None and share.template is None:  # an instance is lent as a whole
            wanted = demand(borrower, devices[share.device])
            if isinstance(wanted, Demand) and wanted.template is None:
                own = structs.replace(own, memory_mib=wanted.memory_mib, cores=wanted.cores)
        found.append(own)
    return found


def joined(asks: Iterable[Ask]) -> list[Ask]:
    """Merge the asks of each container into one with their total count."""
    found: dict[str, Ask] = {}
    for ask in asks:
        first = found.get(ask.container)
        count = ask.count + (first.count if first else 0)
        found[ask.container] = structs.replace(ask, count=count)
    return list(found.values())


def _covers(ask: Ask, other: Ask) -> bool:
    return ask.count >= other.count and _raised(ask, other) == ask


# The ask, raised to what `other` requests of each device; None if they cannot be compared.
def _raised(ask: Ask, other: Ask) -> Ask | None:
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
    if ask.memory_mib is not None:
        return 0  # unknown
    return WHOLE if ask.memory_percent is None else ask.memory_percent


def _more(ask: Ask, raised: Ask) -> tuple[int, int, int]:
    return (
        _part(raised) - _part(ask),
        (raised.memory_mib or 0) - (ask.memory_mib or 0),
        raised.cores - ask.cores,
    )
