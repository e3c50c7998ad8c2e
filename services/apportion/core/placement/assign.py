"""On the chosen node: which devices each container gets, exactly.

Asks are met hardest first (devices wanted alone, then the most memory); a container's `count` is
that many different devices, those linked best, while two containers of a pod may share one.

Invariant: `assign` leaves every device as it found it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from apportion.core.devices.demand import Demand, memory_charged_mib
from apportion.core.devices.geometries import Place
from apportion.core.devices.shares import occupy, release
from apportion.core.ledger.state import DeviceState
from apportion.core.placement import packed
from apportion.core.placement.classes import AskColumns, PlacementClass
from apportion.core.placement.columns import Columns
from apportion.core.placement.linked import best_linked
from apportion.core.placement.scores.devices import Order
from apportion.core.placement.scores.look import NO_DEVICE
from apportion_schemas import Ask, Device, MigInstance, Share


def assign(class_: PlacementClass, columns: Columns, row: int) -> tuple[Share, ...] | None:
    """The shares of a pod of this class on the node, in the order of its asks; None if it fails."""
    order = class_.device_order(columns, row)
    for chosen in _candidates(class_, columns, row):
        shares = _assign(class_, columns, row, chosen, order)
        if shares is not None:
            return shares
    return None


def _candidates(class_: PlacementClass, columns: Columns, row: int) -> Iterator[list[int]]:
    """The positions to choose among: all devices, or those of one NUMA node after the other.

    Where one device is wanted, the one that was scored comes before all.
    """
    devices = columns.nodes[row].devices
    if (
        len(class_.asks) == 1
        and class_.asks[0].ask.count == 1
        and not class_.shape.devices.numa_bind
    ):
        scored = class_.scored_device(row)
        if scored != NO_DEVICE:
            yield [scored]
    if not class_.shape.devices.numa_bind:
        yield list(range(len(devices)))
        return
    nodes = {state.device.numa for state in devices}
    for numa in sorted(numa for numa in nodes if numa is not None):
        yield [at for at, state in enumerate(devices) if state.device.numa == numa]


def _assign(
    class_: PlacementClass, columns: Columns, row: int, chosen: list[int], order: Order
) -> tuple[Share, ...] | None:
    asks = class_.asks
    if len(asks) == 1:
        found = _choose(asks[0], columns, row, chosen, order)
        return tuple([share for _, share in found]) if found is not None else None
    charged: list[tuple[DeviceState, Share]] = []
    shares: dict[int, list[Share]] = {}
    try:
        kinds = set(columns.kind[row].tolist())
        for position in sorted(range(len(asks)), key=lambda at: _hardness(asks[at], kinds)):
            ask = asks[position]
            found = _choose(ask, columns, row, chosen, order)
            if found is None:
                return None
            for state, share in found:
                occupy(state, share)
                charged.append((state, share))
            shares[position] = [share for _, share in found]
    finally:
        for state, share in reversed(charged):
            release(state, share)
    return tuple(share for position in sorted(shares) for share in shares[position])


def _hardness(ask: AskColumns, kinds: set[int]) -> tuple[bool, int, int]:
    """Least for the ask that is hardest to meet on these kinds of device."""
    wanted = [found for kind in kinds if isinstance(found := ask.demands[kind], Demand)]
    alone = any(found.alone for found in wanted)
    return not alone, -max((found.memory_mib for found in wanted), default=0), -ask.ask.count


def _choose(
    ask: AskColumns, columns: Columns, row: int, chosen: list[int], order: Order
) -> list[tuple[DeviceState, Share]] | None:
    guards, demands, needs = packed.GUARDS, ask.demands, ask.needs
    devices = columns.nodes[row].devices
    kinds = columns.kind[row, 1:].tolist()
    elsewhere = ask.elsewhere[row, 1:].tolist() if ask.elsewhere is not None else None
    fitting: list[tuple[tuple[Any, ...], int, DeviceState, Demand]] = []
    for at in chosen:
        state, wanted = devices[at], demands[kinds[at]]
        if not isinstance(wanted, Demand) or (elsewhere is not None and elsewhere[at]):
            continue
        if (packed.free_amounts(state) - needs[kinds[at]]) & guards != guards:
            continue
        if wanted.profile is None or _place(wanted, state) is not None:
            fitting.append((order(state), at, state, wanted))
    count = ask.ask.count
    if len(fitting) < count:
        return None
    if count == 1:
        _, _, state, wanted = min(fitting)
        return [(state, _share(ask.ask, state, wanted))]
    fitting.sort()
    would_do: list[Device] = []
    if ask.chain.best_linked:
        wanted_kinds = [isinstance(known, Demand) for known in demands]
        there = (at for at in chosen if wanted_kinds[kinds[at]])
        would_do = [devices[at].device for at in there if elsewhere is None or not elsewhere[at]]
    picked = _linked([state.device for _, _, state, _ in fitting], count, would_do)
    return [(fitting[at][2], _share(ask.ask, *fitting[at][2:])) for at in picked] or None


def _linked(fitting: list[Device], count: int, would_do: list[Device]) -> Sequence[int]:
    """The positions of those to take: the best linked, else the first.

    None are taken where `would_do`, the devices that would do were they free, are linked better.
    """
    if not would_do and not any(device.nvlink_lanes for device in fitting):
        return range(count)
    found = best_linked(fitting, count)
    if would_do and best_linked(would_do, count).lanes > found.lanes:
        return ()
    return found.positions


def _place(wanted: Demand, state: DeviceState) -> Place | None:
    """Where the instance would be made, or None where there is no room for it."""
    return next(wanted.free_places(state.slices, state.group), None)


def _share(ask: Ask, state: DeviceState, wanted: Demand) -> Share:
    memory_mib, instance = wanted.memory_mib, None
    place = _place(wanted, state) if wanted.profile is not None else None
    if place is not None:
        memory_mib = memory_charged_mib(place.profile, state.device)
        instance = MigInstance(
            profile=place.profile.name,
            start=place.start,
            size=place.profile.size,
            group=place.group,
            position=place.position,
        )
    return Share(
        container=ask.container,
        device=state.device.id,
        memory_mib=memory_mib,
        cores=wanted.cores,
        instance=instance,
        template=wanted.template,
    )
