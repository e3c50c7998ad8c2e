"""Why a class fits nowhere: nodes counted by the filter that stopped them, and the nearest misses.

For one ask, a device is stopped by the first filter that it fails, and a node by the filter that
stopped the last device it would have needed. Filters are ranked in their order, so the node whose
filter ranks highest came nearest.

Invariant: worked out from the same columns as the decision, so it never contradicts it.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.devices.demand import Demand
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.filters import (
    FITS,
    NEIGHBOURS,
    ORDER,
    RANK,
    Verdict,
    refused_amount,
    refused_node,
)
from apportion.core.placement.filters.devices import uuid
from apportion.core.placement.index import packed
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import CORDONED, HOST, UNHEALTHY, Columns, Kinds
from apportion.core.placement.index.compiled import compiled
from apportion_schemas import NearMiss, RefusalCode

NEAREST_KEPT: Final = 3
NEAREST_WEIGHED: Final = 16  # rows whose shortage is compared to find the nearest three

Ranks = NDArray[np.uint8]

_NO_SUCH_DEVICE: Final = RANK[RefusalCode.NO_SUCH_DEVICE]
_DEVICES_TOO_FEW: Final = RANK[RefusalCode.DEVICES_TOO_FEW]
_DEVICE_UNHEALTHY: Final = RANK[RefusalCode.DEVICE_UNHEALTHY]
_DEVICE_CORDONED: Final = RANK[RefusalCode.DEVICE_CORDONED]
_DEVICE_IN_USE: Final = RANK[RefusalCode.DEVICE_IN_USE]
_SLOTS_EXHAUSTED: Final = RANK[RefusalCode.SLOTS_EXHAUSTED]
_CORES_INSUFFICIENT: Final = RANK[RefusalCode.CORES_INSUFFICIENT]
_MEMORY_INSUFFICIENT: Final = RANK[RefusalCode.MEMORY_INSUFFICIENT]
_MIG_SLICES_OCCUPIED: Final = RANK[RefusalCode.MIG_SLICES_OCCUPIED]
_TEMPLATE_CPU_INSUFFICIENT: Final = RANK[RefusalCode.TEMPLATE_CPU_INSUFFICIENT]
_ANYWHERE: Final = np.zeros((0, 0), np.uint8)


def explain(
    class_: PlacementClass, columns: Columns
) -> tuple[dict[RefusalCode, int], tuple[NearMiss, ...]]:
    """Nodes per refusal, and the nearest misses, for a class that fits nowhere."""
    if not columns.count:
        return {}, ()
    ranks = node_ranks(class_, columns)
    ranks[columns.vacant] = FITS  # nobody is refused there
    counts = np.bincount(ranks, minlength=FITS)
    reasons = {ORDER[rank]: int(counts[rank]) for rank in np.flatnonzero(counts[:FITS]).tolist()}
    misses = [
        (-rank, *miss(class_, columns, row, ORDER[rank]))
        for rank, row in _furthest(ranks, counts[:FITS])
    ]
    misses.sort(key=lambda each: each[:2])
    return reasons, tuple(each[2] for each in misses[:NEAREST_KEPT])


def _furthest(ranks: Ranks, counts: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Rank and row of the `NEAREST_WEIGHED` refused nodes that got furthest, of equals the first.

    `counts` says how many nodes were stopped at each rank.
    """
    found: list[tuple[int, int]] = []
    for rank in reversed(np.flatnonzero(counts).tolist()):
        rows = np.flatnonzero(ranks == rank)[: NEAREST_WEIGHED - len(found)].tolist()
        found.extend((rank, row) for row in rows)
        if len(found) == NEAREST_WEIGHED:
            break
    return found


def node_ranks(class_: PlacementClass, columns: Columns) -> Ranks:
    """For each node the rank of the filter that stopped it, or `FITS`."""
    ranks = class_.facts.copy()
    needs, room = class_.shape.node, columns.free[:, HOST]
    if not class_.host_fits(room).all():
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
    ranks[(ranks == FITS) & (class_.board.points == REFUSED)] = RANK[_collision(class_)]
    return ranks


def _collision(class_: PlacementClass) -> RefusalCode:
    """Why a node that no filter refuses may not take the pod."""
    if class_.shape.devices.numa_bind:
        return RefusalCode.NUMA_MISMATCH
    if class_.chain.best_linked:
        return RefusalCode.NVLINK_MISMATCH
    if len(class_.asks) == 1 and class_.asks[0].cuts_instances:
        return RefusalCode.MIG_SLICES_OCCUPIED  # the free ones take more memory than is left
    return RefusalCode.CONTAINERS_COLLIDE


def _ask_ranks(ask: AskColumns, columns: Columns) -> Ranks:
    """For each node how far the last device that the ask would need got."""
    never = [FITS if isinstance(known, Demand) else RANK[known] for known in ask.demands]
    alone = [isinstance(known, Demand) and known.alone for known in ask.demands]
    asked = _Asked(
        never=np.array(never, np.uint8),
        alone=np.array(alone, np.bool_),
        instance_fits=ask.instance_fits,
        place=_place_ranks(ask, columns),
        devices=ask.ask.count,
    )
    cut = columns.cut if ask.cuts_instances else columns.slices
    lacks = packed.lacking_each(columns.free, np.array(ask.needs, np.int64)[columns.kind])
    last: Ranks = np.empty(len(columns.names), np.uint8)
    _rank_nodes(_Seen(lacks, columns.kind, columns.closed, cut), asked, last)
    return last


class _Seen(NamedTuple):
    """The columns of these names, and the guards of what each device lacks for the ask."""

    lacks: NDArray[np.int64]
    kind: Kinds
    closed: NDArray[np.uint8]
    cut: NDArray[Any]


class _Asked(NamedTuple):
    """An ask by kind of device: the rule that refuses the kind (or `FITS`), whether it
    wants the device alone, and which cuts have room for it. `place` is by node and device, empty
    where the pod names no ids and no indexes.
    """

    never: Ranks
    alone: NDArray[np.bool_]
    instance_fits: NDArray[np.bool_]
    place: Ranks
    devices: int


@compiled
def _rank_amounts(lacks: int, closed: int, alone: bool, has_place: bool) -> int:  # noqa: FBT001
    """The rank of the first filter of amounts that stops a device, or `FITS`."""
    if closed == UNHEALTHY:
        return _DEVICE_UNHEALTHY
    if closed == CORDONED:
        return _DEVICE_CORDONED
    if lacks & packed.SLOTS_GUARD:
        return _DEVICE_IN_USE if alone else _SLOTS_EXHAUSTED
    if lacks & packed.COMPUTE_GUARD:
        return _CORES_INSUFFICIENT
    if lacks & packed.MEMORY_GUARD:
        return _MEMORY_INSUFFICIENT
    if not has_place:
        return _MIG_SLICES_OCCUPIED
    return _TEMPLATE_CPU_INSUFFICIENT if lacks & packed.TEMPLATE_CPU_GUARD else FITS


@compiled
def _rank_nodes(seen: _Seen, asked: _Asked, last: Ranks) -> None:
    """Fill `last` with the rank at which the last device stopped that the ask would need."""
    lacks, kind, closed, cut = seen
    never, alone, instance_fits, place, devices = asked
    rows, width = kind.shape
    ranks = np.zeros(devices, np.uint8)  # of the devices that got furthest, the furthest first
    for row in range(rows):
        ranks[:] = 0
        for at in range(HOST + 1, width):
            of = kind[row, at]
            rank = never[of] if not place.shape[0] else min(never[of], place[row, at - HOST - 1])
            if rank == FITS:
                has_place = instance_fits[of, cut[row, at]]
                rank = _rank_amounts(lacks[row, at], closed[row, at], alone[of], has_place)
            to = devices
            while to and ranks[to - 1] < rank:
                if to < devices:
                    ranks[to] = ranks[to - 1]
                to -= 1
            if to < devices:
                ranks[to] = rank
        last[row] = ranks[devices - 1] if devices < width else _NO_SUCH_DEVICE
        if last[row] == _NO_SUCH_DEVICE and width > 1 and ranks[0] > _NO_SUCH_DEVICE:
            last[row] = _DEVICES_TOO_FEW


def _place_ranks(ask: AskColumns, columns: Columns) -> Ranks:
    """For each device the rank of the rule on ids or indexes that it breaks, or `FITS`."""
    wanted = ask.constraints
    if not (wanted.use_ids or wanted.nouse_ids or wanted.indexes):
        return _ANYWHERE
    ranks: Ranks = np.full((len(columns.nodes), columns.kind.shape[1] - 1), FITS, np.uint8)
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


def miss(
    class_: PlacementClass, columns: Columns, row: int, code: RefusalCode
) -> tuple[float, NearMiss]:
    """The miss of a node that this code refuses, with its shortage as a part of what was needed."""
    device, verdict = _verdict(class_, columns, row, code)
    missed = NearMiss(
        node=columns.names[row],
        device=device,
        code=code,
        needed=verdict.needed,
        available=verdict.available,
    )
    return (verdict.needed - verdict.available) / max(verdict.needed, 1), missed


def _verdict(
    class_: PlacementClass, columns: Columns, row: int, code: RefusalCode
) -> tuple[str, Verdict]:
    """The amounts behind a node's refusal: those of the device that came nearest, if it was one."""
    of_node = refused_node(class_.shape, columns.nodes[row])
    if of_node is not None:
        return "", of_node
    if code in NEIGHBOURS:
        return "", Verdict(code, 1, 0)
    best: tuple[float, str, Verdict] | None = None
    would_do: set[int] = set()
    kinds = columns.kind[row].tolist()[HOST + 1 :]
    for ask in class_.asks:
        for at, wanted in ask.wanted(row, kinds):
            would_do.add(at)
            state = columns.nodes[row].devices[at]
            verdict = refused_amount(wanted, state)
            if verdict is None or verdict.code is not code:
                continue
            shortage = (verdict.needed - verdict.available) / verdict.needed
            if best is None or (shortage, state.device.id) < best[:2]:
                best = (shortage, state.device.id, verdict)
    if best is not None:
        return best[1], best[2]
    wanted_devices = max((ask.count for ask in class_.shape.asks), default=1)
    return "", Verdict(code, wanted_devices, min(len(would_do), wanted_devices - 1))
