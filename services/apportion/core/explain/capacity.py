"""What a node lacks for a pod with nothing on it: its kind and its size, and not what it has free.

Invariant: a node lacks nothing here exactly if `room` counts it among those that could hold the
pod; filters are tried in their order, as by the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import structs

from apportion.core.devices.demand import Demand, Known, demand, largest_part
from apportion.core.devices.shares import DeviceState, template_cpu_of
from apportion.core.ledger.state import NodeState
from apportion.core.placement.feasibility import (
    FITS,
    RANK,
    UNCUT,
    Verdict,
    refused_amount,
    refused_kind,
)
from apportion.core.placement.feasibility.nodes import labels, taints
from apportion_schemas import Ask, Device, RefusalCode, Shape

NO_PLACE: Final = -1


class Deficit(NamedTuple):
    """What is lacking, and the place on its node of the device that has most; `NO_PLACE`: none."""

    verdict: Verdict
    place: int = NO_PLACE

    @property
    def order(self) -> tuple[int, float]:
        """The least is the nearest: the last filter, then the smallest part of what is needed."""
        needed, available = self.verdict.needed, self.verdict.available
        return -RANK.get(self.verdict.code, FITS), (needed - available) / max(needed, 1)


def host_deficit(shape: Shape, node: NodeState) -> Deficit | None:
    """The first thing that keeps the pod from the host, whatever runs there."""
    if not node.present:
        return Deficit(Verdict(RefusalCode.NODE_GONE, 1, 0))
    needs, host = shape.node, node.host
    offered = node.observed.extended if node.observed else {}
    amounts = [
        (RefusalCode.TAINT_NOT_TOLERATED, *taints(shape, node)),
        (RefusalCode.NODE_LABELS_MISMATCH, *labels(shape, node)),
        (RefusalCode.CPU_INSUFFICIENT, needs.cpu_milli, host.cpu_milli),
        (RefusalCode.HOST_MEMORY_INSUFFICIENT, needs.memory_mib, host.memory_mib),
        (RefusalCode.PODS_EXHAUSTED, 1, host.pods),
    ]
    amounts += [
        (RefusalCode.EXTENDED_RESOURCE_INSUFFICIENT, count, offered.get(name, 0))
        for name, count in sorted(needs.extended.items())
    ]
    return next((Deficit(Verdict(*each)) for each in amounts if each[2] < each[1]), None)


def devices_deficit(shape: Shape, node: NodeState, known: Known) -> Deficit | None:
    """What the first ask lacks that finds too few devices there that would do when empty."""
    for ask in shape.asks:
        deficits = [
            Deficit(found, place) if found is not None else None
            for place, found in enumerate(_verdicts(ask, shape, node, known))
        ]
        fitting = deficits.count(None)
        if fitting >= ask.count:
            continue
        lacking = sorted(
            (each for each in deficits if each is not None), key=lambda each: each.order
        )
        short = ask.count - fitting
        if short <= len(lacking):
            return next(
                each for each in lacking if each.verdict.code is lacking[short - 1].verdict.code
            )
        few = fitting or any(
            each.verdict.code is not RefusalCode.NO_SUCH_DEVICE for each in lacking
        )
        code = RefusalCode.DEVICES_TOO_FEW if few else RefusalCode.NO_SUCH_DEVICE
        return Deficit(Verdict(code, ask.count, fitting))
    return None


def most_pods(shape: Shape, node: NodeState, known: Known) -> int:
    """No more such pods than this the node could hold with nothing on it; it may be fewer, for each
    ask is looked at by itself.
    """
    if host_deficit(shape, node) is not None:
        return 0
    needs, host = shape.node, node.host
    most = host.pods
    if needs.cpu_milli:
        most = min(most, host.cpu_milli // needs.cpu_milli)
    if needs.memory_mib:
        most = min(most, host.memory_mib // needs.memory_mib)
    for ask in shape.asks:
        if not ask.init:
            places = sum(_most_shares(ask, shape, held.device, known) for held in node.devices)
            most = min(most, places // ask.count)
    return most


def _most_shares(ask: Ask, shape: Shape, device: Device, known: Known) -> int:
    needs = demand(ask, device, known)
    refused = refused_kind(ask, shape.devices, device) is not None
    if refused or not isinstance(needs, Demand) or refused_amount(needs, empty(device)) is not None:
        return 0
    amounts = (
        (needs.memory_mib, device.memory_mib),
        (needs.cores_needed, device.cores),
        (needs.template_cpu, template_cpu_of(device)),
    )
    slots = 1 if needs.alone else device.slots
    return min([slots, *(there // wanted for wanted, there in amounts if wanted)])


def _verdicts(ask: Ask, shape: Shape, node: NodeState, known: Known) -> Iterator[Verdict | None]:
    for held in node.devices:
        device = held.device
        unlike = refused_kind(ask, shape.devices, device)
        if unlike is not None:
            yield Verdict(unlike, 1, 0)
            continue
        needs = demand(ask, device, known)
        if isinstance(needs, Demand):
            yield refused_amount(needs, empty(device))
        else:
            yield Verdict(needs, *(largest_part(ask, device, known) if needs in UNCUT else (1, 0)))


def empty(device: Device) -> DeviceState:
    """The device with nothing on it and all of its slices open: what closes them ends as well."""
    return DeviceState(
        device=structs.replace(device, closed_slices=0) if device.closed_slices else device,
        memory_free_mib=device.memory_mib,
        cores_free=device.cores,
        slots_free=device.slots,
        template_cpu_free=template_cpu_of(device),
    )
