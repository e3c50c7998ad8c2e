"""On the chosen node: which devices each container gets, exactly.

Asks are met hardest first (devices wanted alone, then the most memory); a container's `count` is
that many different devices, while two containers of a pod may share one.

Invariant: `assign` leaves every device as it found it.
"""

from collections.abc import Callable, Iterator
from typing import Any

from apportion.core.devices.demand import Demand, demand
from apportion.core.devices.shares import occupy, release
from apportion.core.ledger.state import DeviceState, NodeState
from apportion.core.placement.filters import refused_amount, refused_kind
from apportion_schemas import Ask, MigInstance, Shape, Share

Order = Callable[[DeviceState], tuple[Any, ...]]


def assign(shape: Shape, node: NodeState, order: Order) -> tuple[Share, ...] | None:
    """The shares of a pod of this shape on the node, in the order of its asks; None if it fails."""
    for devices in _candidates(shape, node):
        shares = _assign(shape, devices, order)
        if shares is not None:
            return shares
    return None


def _candidates(shape: Shape, node: NodeState) -> Iterator[list[DeviceState]]:
    """The devices to choose among: all, or those of one NUMA node after the other."""
    if not shape.devices.numa_bind:
        yield node.devices
        return
    for numa in sorted(
        {state.device.numa for state in node.devices if state.device.numa is not None}
    ):
        yield [state for state in node.devices if state.device.numa == numa]


def _assign(shape: Shape, devices: list[DeviceState], order: Order) -> tuple[Share, ...] | None:
    asks = shape.asks
    if len(asks) == 1:
        chosen = _choose(shape, asks[0], devices, order)
        return tuple(share for _, share in chosen) if chosen is not None else None
    charged: list[tuple[DeviceState, Share]] = []
    found: dict[int, list[Share]] = {}
    try:
        for position in sorted(range(len(asks)), key=lambda at: _hardness(asks[at], at)):
            chosen = _choose(shape, asks[position], devices, order)
            if chosen is None:
                return None
            for state, share in chosen:
                occupy(state, share)
                charged.append((state, share))
            found[position] = [share for _, share in chosen]
    finally:
        for state, share in reversed(charged):
            release(state, share)
    return tuple(share for position in sorted(found) for share in found[position])


def _hardness(ask: Ask, position: int) -> tuple[bool, int, int, int, int]:
    return (
        not ask.whole,
        -(ask.memory_mib or 0),
        -(ask.memory_percent or 0),
        -ask.cores,
        position,
    )


def _choose(
    shape: Shape, ask: Ask, devices: list[DeviceState], order: Order
) -> list[tuple[DeviceState, Share]] | None:
    fitting = []
    for state in devices:
        if refused_kind(ask, shape.devices, state.device) is None:
            wanted = demand(ask, state.device)
            if isinstance(wanted, Demand) and refused_amount(wanted, state) is None:
                fitting.append((state, wanted))
    if len(fitting) < ask.count:
        return None
    fitting.sort(key=lambda pair: order(pair[0]))
    return [(state, _share(ask, state, wanted)) for state, wanted in fitting[: ask.count]]


def _share(ask: Ask, state: DeviceState, wanted: Demand) -> Share:
    instance = None
    if wanted.profile is not None:
        profile = wanted.profile
        start = next(
            start
            for start, mask in zip(profile.starts, profile.masks, strict=True)
            if not mask & state.slices
        )
        instance = MigInstance(profile=profile.name, start=start, size=profile.size)
    return Share(
        container=ask.container,
        device=state.device.id,
        memory_mib=wanted.memory_mib,
        cores=wanted.cores,
        instance=instance,
        template=wanted.template,
    )
