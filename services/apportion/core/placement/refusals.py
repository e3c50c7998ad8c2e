"""Why a class fits nowhere: nodes counted by the filter that stopped them, and the nearest misses.

For one ask, a device is stopped by the first filter that it fails, and a node by the filter that
stopped the last device it would have needed. Filters are ranked in their order, so the node whose
filter ranks highest came nearest.

Invariant: worked out from the same columns as the decision, so it never contradicts it.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.devices.demand import Demand, largest_part
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.feasibility import (
    FITS,
    NEIGHBOURS,
    ORDER,
    RANK,
    UNCUT,
    Verdict,
    refused_amount,
    refused_node,
)
from apportion.core.placement.index import packed
from apportion.core.placement.index.asks import AskColumns, unnamed
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import CORDONED, HOST, UNHEALTHY, Columns
from apportion_schemas import NearMiss, RefusalCode

NEAREST_KEPT: Final = 3
NEAREST_WEIGHED: Final = 16  # rows whose shortage is compared to find the nearest three

Ranks = NDArray[np.uint8]


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
    ranks = class_.facts.ranks.copy()
    needs, room = class_.shape.node, columns.free[:, HOST]
    if not class_.host_fits(room).all():
        for code, at, bits, needed in (
            (RefusalCode.CPU_INSUFFICIENT, packed.COMPUTE_AT, packed.COMPUTE_BITS, needs.cpu_milli),
            (RefusalCode.HOST_MEMORY_INSUFFICIENT, 0, packed.MEMORY_BITS, needs.memory_mib),
            (RefusalCode.PODS_EXHAUSTED, packed.SLOTS_AT, packed.SLOTS_BITS, 1),
        ):
            _stop(ranks, _field(room, at, bits) < needed, code)
    if class_.needs:
        for row in np.flatnonzero(ranks == FITS).tolist():
            verdict = _lacking(class_, columns, row)
            if verdict is not None:
                ranks[row] = RANK[verdict.code]
    if class_.relations is not None:
        ranks = np.where(ranks == FITS, class_.relations.ranks, ranks)
    for ask in class_.asks:
        ranks = np.where(ranks == FITS, _ask_ranks(ask, columns), ranks)
    kept = [row for row in class_.kept if ranks[row] == FITS]
    ranks[kept] = RANK[RefusalCode.NODE_NOMINATED]
    ranks[(ranks == FITS) & (class_.board.points == REFUSED)] = RANK[_collision(class_)]
    return ranks


def _lacking(class_: PlacementClass, columns: Columns, row: int) -> Verdict | None:
    """The first of what few pods want that the node has too little of, or None."""
    for code, check in class_.needs:
        needed, available = check(class_.shape, columns.nodes[row])
        if available < needed:
            return Verdict(code, needed, available)
    return None


def _collision(class_: PlacementClass) -> RefusalCode:
    """Why a node that no filter refuses may not take the pod."""
    if class_.shape.devices.numa_bind:
        return RefusalCode.NUMA_MISMATCH
    if len(class_.asks) == 1 and class_.asks[0].module > 1:
        return RefusalCode.MODULES_IN_USE
    if len(class_.asks) == 1 and class_.asks[0].cuts_instances:
        return RefusalCode.MIG_SLICES_OCCUPIED  # the free ones take more memory than is left
    return RefusalCode.CONTAINERS_COLLIDE


def _ask_ranks(ask: AskColumns, columns: Columns) -> Ranks:
    """For each node how far the last device that the ask would need got."""
    never = [FITS if isinstance(known, Demand) else RANK[known] for known in ask.demands]
    ranks: Ranks = np.array(never, np.uint8).take(columns.kind)
    _stop_by_name(ranks, ask, columns)
    devices = ranks.reshape(-1)
    asked = np.flatnonzero(devices == FITS)
    devices[asked] = _amount_ranks(ask, columns, asked)
    return _last_needed(ranks, ask.ask.count)


def _stop_by_name(ranks: Ranks, ask: AskColumns, columns: Columns) -> None:
    """Note the rule on ids or indexes that each device breaks, if the pod names any."""
    wanted = ask.constraints
    if not (wanted.use_ids or wanted.nouse_ids or wanted.indexes):
        return
    by_id, by_index = unnamed(columns, wanted, columns.every)
    np.minimum(ranks, RANK[RefusalCode.UUID_MISMATCH], out=ranks, where=by_id)
    np.minimum(ranks, RANK[RefusalCode.INDEX_MISMATCH], out=ranks, where=by_index)


def _amount_ranks(ask: AskColumns, columns: Columns, asked: NDArray[np.intp]) -> Ranks:
    """For these devices the rank of the first filter of amounts that stops them, or `FITS`."""
    kind, closed = columns.kind.take(asked), columns.closed.take(asked)
    alone = [isinstance(known, Demand) and known.alone for known in ask.demands]
    needs = np.array(ask.needs, np.int64).take(kind)
    lacks = packed.lacking_each(columns.free.take(asked), needs)
    full = (lacks & packed.SLOTS_GUARD) != 0
    ranks: Ranks = np.full(len(asked), FITS, np.uint8)
    _stop(ranks, closed == UNHEALTHY, RefusalCode.DEVICE_UNHEALTHY)
    _stop(ranks, closed == CORDONED, RefusalCode.DEVICE_CORDONED)
    _stop(ranks, full & np.array(alone).take(kind), RefusalCode.DEVICE_IN_USE)
    _stop(ranks, full, RefusalCode.SLOTS_EXHAUSTED)
    _stop(ranks, (lacks & packed.COMPUTE_GUARD) != 0, RefusalCode.CORES_INSUFFICIENT)
    _stop(ranks, (lacks & packed.MEMORY_GUARD) != 0, RefusalCode.MEMORY_INSUFFICIENT)
    if ask.cuts_instances:
        fits = ask.instance_fits[kind, columns.cut.take(asked)]
        _stop(ranks, ~fits, RefusalCode.MIG_SLICES_OCCUPIED)
    _stop(ranks, (lacks & packed.TEMPLATE_CPU_GUARD) != 0, RefusalCode.TEMPLATE_CPU_INSUFFICIENT)
    return ranks


def _last_needed(ranks: Ranks, count: int) -> Ranks:
    """Of each row the rank of the device that got furthest but for so many less one.

    Where that is none, too few are there, unless there is no such device at all.
    """
    least, few = RANK[RefusalCode.NO_SUCH_DEVICE], RANK[RefusalCode.DEVICES_TOO_FEW]
    width = ranks.shape[1]
    at = max(width - count, 0)
    ordered = np.partition(ranks, sorted({at, width - 1}), axis=1)
    last: Ranks = np.full(len(ranks), least, np.uint8) if count > width else ordered[:, at].copy()
    last[(last == least) & (ordered[:, -1] > least)] = few
    return last


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
    if of_node is None and code is RefusalCode.VOLUMES_EXHAUSTED:
        of_node = _lacking(class_, columns, row)
    if of_node is not None:
        return "", of_node
    if code in (*NEIGHBOURS, RefusalCode.VOLUME_NODE_MISMATCH, RefusalCode.NODE_NOMINATED):
        return "", Verdict(code, 1, 0)
    if code in UNCUT:
        return min(_uncut(class_, columns, row, code), default=(0.0, "", Verdict(code, 1, 0)))[1:]
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


def _uncut(
    class_: PlacementClass, columns: Columns, row: int, code: RefusalCode
) -> Iterator[tuple[float, str, Verdict]]:
    """The devices of which no part is large enough: the fraction that each lacks, and its id."""
    kinds = columns.kind[row].tolist()[HOST + 1 :]
    for ask in class_.asks:
        for kind, state in zip(kinds, columns.nodes[row].devices, strict=False):
            if ask.demands[kind] is code:
                needed, available = largest_part(ask.ask, state.device, ask.geometries)
                shortage = (needed - available) / max(needed, 1)
                yield shortage, state.device.id, Verdict(code, needed, available)
