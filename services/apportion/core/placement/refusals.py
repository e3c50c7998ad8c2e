"""Why a class fits nowhere: nodes counted by the filter that stopped them, and the nearest misses.

For one ask, a device is stopped by the first filter that it fails, and a node by the filter that
stopped the last device it would have needed. Filters are ranked in their order, so the node whose
filter ranks highest came nearest.

Invariant: worked out from the same columns as the decision, so it never contradicts it.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.devices.demand import Demand, demand
from apportion.core.ledger.state import NodeState
from apportion.core.placement import packed
from apportion.core.placement.ask_columns import AskColumns
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.columns import CORDONED, HOST, UNHEALTHY, Columns
from apportion.core.placement.filters import (
    FITS,
    NEIGHBOURS,
    ORDER,
    RANK,
    Verdict,
    refused_amount,
    refused_kind,
    refused_node,
)
from apportion.core.placement.filters.devices import uuid
from apportion_schemas import NearMiss, RefusalCode

NEAREST_KEPT: Final = 3
NEAREST_WEIGHED: Final = 64  # rows whose shortage is compared to find the nearest three

Ranks = NDArray[np.uint8]


def explain(
    class_: PlacementClass, columns: Columns
) -> tuple[dict[RefusalCode, int], tuple[NearMiss, ...]]:
    """Nodes per refusal, and the nearest misses, for a class that fits nowhere."""
    if not columns.nodes:
        return {}, ()
    ranks = node_ranks(class_, columns)
    counts = np.bincount(ranks, minlength=FITS)
    reasons = {ORDER[rank]: int(counts[rank]) for rank in np.flatnonzero(counts[:FITS]).tolist()}
    refused = np.flatnonzero(ranks < FITS)
    nearest = refused[np.argsort(-ranks[refused].astype(np.int16), kind="stable")]
    misses = [
        (-int(ranks[row]), *miss(class_, columns.nodes[row], ORDER[ranks[row]]))
        for row in nearest[:NEAREST_WEIGHED].tolist()
    ]
    misses.sort(key=lambda each: each[:2])
    return reasons, tuple(each[2] for each in misses[:NEAREST_KEPT])


def node_ranks(class_: PlacementClass, columns: Columns) -> Ranks:
    """For each node the rank of the filter that stopped it, or `FITS`."""
    ranks = class_.standing.copy()
    needs, room = class_.shape.node, columns.free[:, HOST]
    for code, at, bits, needed in (
        (RefusalCode.CPU_INSUFFICIENT, packed.COMPUTE_AT, packed.COMPUTE_BITS, needs.cpu_milli),
        (RefusalCode.HOST_MEMORY_INSUFFICIENT, 0, packed.MEMORY_BITS, needs.memory_mib),
        (RefusalCode.PODS_EXHAUSTED, packed.SLOTS_AT, packed.SLOTS_BITS, 1),
    ):
        _stop(ranks, _field(room, at, bits) < needed, code)
    if needs.extended:
        for row in np.flatnonzero(ranks == FITS).tolist():
            verdict = refused_node(class_.shape, columns.nodes[row])
            if verdict is not None:
                ranks[row] = RANK[verdict.code]
    if class_.relations is not None:
        ranks = np.where(ranks == FITS, class_.relations.ranks, ranks)
    for ask in class_.asks:
        ranks = np.where(ranks == FITS, _ask_ranks(ask, columns), ranks)
    for row in class_.collided:
        if ranks[row] == FITS:
            ranks[row] = RANK[_collision(class_)]
    return ranks


def _collision(class_: PlacementClass) -> RefusalCode:
    """Why a node that no filter refuses may not take the pod."""
    if class_.shape.devices.numa_bind:
        return RefusalCode.NUMA_MISMATCH
    if class_.chain.best_linked:
        return RefusalCode.NVLINK_MISMATCH
    return RefusalCode.CONTAINERS_COLLIDE


def _ask_ranks(ask: AskColumns, columns: Columns) -> Ranks:
    """For each node how far the last device that the ask would need got."""
    ranks = np.sort(_device_ranks(ask, columns), axis=1)[:, ::-1]
    none = RANK[RefusalCode.NO_SUCH_DEVICE]
    count = ask.ask.count
    last: Ranks = np.full(len(ranks), none, np.uint8)
    if count <= ranks.shape[1]:
        last = ranks[:, count - 1].copy()
    last[(last == none) & (ranks > none).any(axis=1)] = RANK[RefusalCode.DEVICES_TOO_FEW]
    return last


def _device_ranks(ask: AskColumns, columns: Columns) -> Ranks:
    """For each device the rank of the filter that stopped it, or `FITS`."""
    never = [FITS if isinstance(known, Demand) else RANK[known] for known in ask.demands]
    kind, free = columns.kind[:, 1:], columns.free[:, 1:]
    need, closed = np.array(ask.needs, np.int64)[kind], columns.closed[:, 1:]
    ranks = np.minimum(np.array(never, np.uint8)[kind], _place_ranks(ask, columns))
    _stop(ranks, closed == UNHEALTHY, RefusalCode.DEVICE_UNHEALTHY)
    _stop(ranks, closed == CORDONED, RefusalCode.DEVICE_CORDONED)
    slots = _field(need, packed.SLOTS_AT, packed.SLOTS_BITS)
    slots_free = _field(free, packed.SLOTS_AT, packed.SLOTS_BITS)
    alone = np.array([isinstance(known, Demand) and known.alone for known in ask.demands])
    _stop(ranks, alone[kind] & (slots_free < slots), RefusalCode.DEVICE_IN_USE)
    for code, at, bits in (
        (RefusalCode.SLOTS_EXHAUSTED, packed.SLOTS_AT, packed.SLOTS_BITS),
        (RefusalCode.CORES_INSUFFICIENT, packed.COMPUTE_AT, packed.COMPUTE_BITS),
        (RefusalCode.MEMORY_INSUFFICIENT, 0, packed.MEMORY_BITS),
    ):
        _stop(ranks, _field(free, at, bits) < _field(need, at, bits), code)
    no_place = ~ask.instance_fits[kind, columns.cut[:, 1:]]
    _stop(ranks, no_place, RefusalCode.MIG_SLICES_OCCUPIED)
    at, bits = packed.TEMPLATE_CPU_AT, packed.TEMPLATE_CPU_BITS
    too_few = _field(free, at, bits) < _field(need, at, bits)
    _stop(ranks, too_few, RefusalCode.TEMPLATE_CPU_INSUFFICIENT)
    return ranks


def _place_ranks(ask: AskColumns, columns: Columns) -> Ranks:
    """For each device the rank of the rule on ids or indexes that it breaks, or `FITS`."""
    ranks: Ranks = np.full((len(columns.nodes), columns.kind.shape[1] - 1), FITS, np.uint8)
    wanted = ask.constraints
    if wanted.use_ids or wanted.nouse_ids:
        for row, node in enumerate(columns.nodes):
            for column, state in enumerate(node.devices):
                if not uuid(ask.ask, wanted, state.device):
                    ranks[row, column] = RANK[RefusalCode.UUID_MISMATCH]
    if wanted.indexes:
        _stop(ranks, ~np.isin(columns.index[:, 1:], wanted.indexes), RefusalCode.INDEX_MISMATCH)
    return ranks


def _field(amounts: NDArray[np.int64], at: int, bits: int) -> NDArray[np.int64]:
    return (amounts >> at) & ((1 << bits) - 1)


def _stop(ranks: Ranks, where: NDArray[np.bool_], code: RefusalCode) -> None:
    """Note the filter as the one that stopped whatever no earlier filter did."""
    ranks[where & (ranks == FITS)] = RANK[code]


def miss(class_: PlacementClass, node: NodeState, code: RefusalCode) -> tuple[float, NearMiss]:
    """The miss of a node that this code refuses, with its shortage as a part of what was needed."""
    device, verdict = _verdict(class_, node, code)
    missed = NearMiss(
        node=node.name,
        device=device,
        code=code,
        needed=verdict.needed,
        available=verdict.available,
    )
    return (verdict.needed - verdict.available) / max(verdict.needed, 1), missed


def _verdict(class_: PlacementClass, node: NodeState, code: RefusalCode) -> tuple[str, Verdict]:
    """The amounts behind a node's refusal: those of the device that came nearest, if it was one."""
    of_node = refused_node(class_.shape, node)
    if of_node is not None:
        return "", of_node
    if code in NEIGHBOURS:
        return "", Verdict(code, 1, 0)
    best: tuple[float, str, Verdict] | None = None
    for ask in class_.shape.asks:
        for state in node.devices:
            if refused_kind(ask, class_.shape.devices, state.device) is not None:
                continue
            wanted = demand(ask, state.device, class_.geometries)
            if class_.chain.idle_only and isinstance(wanted, Demand):
                wanted = wanted._replace(alone=True)
            verdict = refused_amount(wanted, state) if isinstance(wanted, Demand) else None
            if verdict is None or verdict.code is not code:
                continue
            shortage = (verdict.needed - verdict.available) / verdict.needed
            if best is None or (shortage, state.device.id) < best[:2]:
                best = (shortage, state.device.id, verdict)
    if best is not None:
        return best[1], best[2]
    wanted_devices = max((ask.count for ask in class_.shape.asks), default=1)
    there = sum(
        any(refused_kind(ask, class_.shape.devices, s.device) is None for ask in class_.shape.asks)
        for s in node.devices
    )
    return "", Verdict(code, wanted_devices, min(there, wanted_devices - 1))
