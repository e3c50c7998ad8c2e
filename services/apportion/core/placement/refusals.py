"""Why a class fits nowhere: nodes counted by the filter that stopped them, and the nearest misses.

For one ask, a device is stopped by the first filter that it fails, and a node by the filter that
stopped the last device it would have needed. Filters are ranked in their order, so the node whose
filter ranks highest came nearest.

Invariant: worked out from the same columns as the decision, so it never contradicts it.
"""

from typing import Final

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
from apportion.core.placement.filters.amounts import AMOUNTS
from apportion.core.placement.index import packed, refusal_loops
from apportion.core.placement.index.asks import AskColumns, flags, unnamed
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import HOST, Columns
from apportion_schemas import NearMiss, RefusalCode

NEAREST_KEPT: Final = 3
NEAREST_WEIGHED: Final = 16  # rows whose shortage is compared to find the nearest three

Ranks = NDArray[np.uint8]

_ANYWHERE: Final = np.zeros(0, np.uint8)


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
    last: Ranks = np.empty(len(columns.names), np.uint8)
    refusal_loops.rank_nodes(
        columns.flat_free,
        columns.flat_kind,
        columns.flat_closed,
        columns.flat_cut,
        columns.width,
        np.array(ask.needs, np.int64).data,
        np.array(never, np.uint8).data,
        np.array(alone, np.uint8).data,
        flags(ask.instance_fits),
        ask.instance_fits.shape[1],
        _place_ranks(ask, columns).reshape(-1).data,
        np.empty(ask.ask.count, np.uint8).data,
        RANK[RefusalCode.NO_SUCH_DEVICE],
        RANK[RefusalCode.DEVICES_TOO_FEW],
        RANK[AMOUNTS[0][0]],
        FITS,
        last.data,
    )
    return last


def _place_ranks(ask: AskColumns, columns: Columns) -> Ranks:
    """For each device the rank of the rule on ids or indexes that it breaks, or `FITS`."""
    wanted = ask.constraints
    if not (wanted.use_ids or wanted.nouse_ids or wanted.indexes):
        return _ANYWHERE
    ranks: Ranks = np.full(columns.kind.shape, FITS, np.uint8)
    by_id, by_index = unnamed(columns, wanted, columns.every)
    _stop(ranks, by_id, RefusalCode.UUID_MISMATCH)
    _stop(ranks, by_index, RefusalCode.INDEX_MISMATCH)
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
