"""Explain why a pod fits nowhere: count nodes by the filter that refused them; find near misses.

A near miss is a node that only a late filter refused, and that lacks little. Invariant: reasons
come from the same columns as the decision, so they never contradict it."""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.devices.demand import Demand
from apportion.core.ledger.state import PodState
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.feasibility.evaluator import (
    FITS,
    NEAREST_KEPT,
    NEIGHBOURS,
    NO_PLACE,
    ORDER,
    RANK,
    Need,
    Rules,
    Verdict,
    first_lacking,
    need_of,
    refused_ask,
    refused_node,
)
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.index import packed
from apportion.core.placement.index.asks import AskColumns, unnamed
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.columns import HOST, Columns
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.queueing.shape_queue import Reasons
from apportion.core.placement.reservations import Reservations
from apportion.core.placement.volumes import code_of
from apportion_schemas import NearMiss, RefusalCode

NEAREST_WEIGHED: Final = 16  # rows whose shortage is compared to find the nearest three
KEPT: Final = (RefusalCode.NODE_NOMINATED, RefusalCode.NODE_RESERVED)  # for other pods
EXPLAINED: Final = 2  # looks per row to explain a refusal

Ranks = NDArray[np.uint8]


def _codes(instances: RefusalCode) -> packed.UInt8s:
    # The ranks for `ask_loops.rank`, in the order of its checks.
    codes = (
        RefusalCode.DEVICE_UNHEALTHY,
        RefusalCode.DEVICE_CORDONED,
        RefusalCode.DEVICE_IN_USE,
        RefusalCode.SLOTS_EXHAUSTED,
        RefusalCode.CORES_INSUFFICIENT,
        RefusalCode.MEMORY_INSUFFICIENT,
        instances,
        RefusalCode.TEMPLATE_CPU_INSUFFICIENT,
    )
    return np.array([FITS, *(RANK[code] for code in codes)], np.uint8).data


_WITH_SLICES, _WITH_SIZES = map(_codes, (RefusalCode.MIG_SLICES_OCCUPIED, RefusalCode.SIZES_DIFFER))
_encode = msgspec.json.Encoder(order="sorted").encode


def explain(
    class_: PlacementClass, columns: Columns
) -> tuple[dict[RefusalCode, int], tuple[NearMiss, ...]]:
    """Return how many nodes each code refused, and the nodes that came nearest to fitting."""
    if not columns.count:
        return {}, ()
    ranks = node_ranks(class_, columns)
    ranks[columns.vacant] = FITS  # vacant rows do not count
    counts = np.bincount(ranks, minlength=FITS)
    reasons = {ORDER[rank]: int(counts[rank]) for rank in np.flatnonzero(counts[:FITS]).tolist()}
    misses: list[tuple[int, float, NearMiss]] = []
    for rank in reversed(np.flatnonzero(counts[:FITS]).tolist()):  # the nearest first
        rows = np.flatnonzero(ranks == rank)[: NEAREST_WEIGHED - len(misses)].tolist()
        misses += [(-rank, *miss(class_, columns, row, ORDER[rank])) for row in rows]
        if len(misses) == NEAREST_WEIGHED:
            break
    misses.sort(key=lambda each: each[:2])
    return reasons, tuple(each[2] for each in misses[:NEAREST_KEPT])


def node_ranks(class_: PlacementClass, columns: Columns) -> Ranks:
    """Return, for each node, the rank of the filter that refused it, or `FITS`."""
    ranks = class_.facts.ranks.copy()
    needs, room = class_.shape.node, columns.free[:, HOST]
    if not class_.host_fits(room).all():
        for code, at, bits, needed in (
            (RefusalCode.CPU_INSUFFICIENT, packed.COMPUTE_AT, packed.COMPUTE_BITS, needs.cpu_milli),
            (RefusalCode.HOST_MEMORY_INSUFFICIENT, 0, packed.MEMORY_BITS, needs.memory_mib),
            (RefusalCode.PODS_EXHAUSTED, packed.SLOTS_AT, packed.SLOTS_BITS, 1),
        ):
            _stop(ranks, ((room >> at) & ((1 << bits) - 1)) < needed, code)
    if class_.needs:
        for row in np.flatnonzero(ranks == FITS).tolist():
            verdict = first_lacking(class_.needs, class_.shape, columns.nodes[row])
            if verdict is not None:
                ranks[row] = RANK[verdict.code]
    if class_.relations is not None:
        ranks = np.where(ranks == FITS, class_.relations.ranks, ranks)
    for ask in class_.asks:
        ranks = np.where(ranks == FITS, _ask_ranks(ask, columns), ranks)
    kept = [row for row in class_.kept if ranks[row] == FITS]
    ranks[kept] = RANK[RefusalCode.NODE_NOMINATED]
    reserved = [row for row in class_.reserved if row in kept]
    ranks[reserved] = RANK[RefusalCode.NODE_RESERVED]
    ranks[(ranks == FITS) & (class_.board.points == REFUSED)] = RANK[_collision(class_)]
    return ranks


def _collision(class_: PlacementClass) -> RefusalCode:
    if class_.shape.devices.numa_bind:
        return RefusalCode.NUMA_MISMATCH
    if len(class_.asks) == 1 and class_.asks[0].together:
        return RefusalCode.MODULES_IN_USE
    if len(class_.asks) == 1 and class_.asks[0].cuts_instances:
        return RefusalCode.MIG_SLICES_OCCUPIED  # the free slices need more memory than is left
    return RefusalCode.CONTAINERS_COLLIDE


def _ask_ranks(ask: AskColumns, columns: Columns) -> Ranks:
    # For each node, the rank of the last device that the ask would need.
    never = [FITS if isinstance(known, Demand) else RANK[known] for known in ask.demands]
    ranks: Ranks = np.array(never, np.uint8).take(columns.kind)
    wanted = ask.constraints
    if wanted.use_ids or wanted.nouse_ids or wanted.indexes:  # the rule that a device breaks
        by_id, by_index = unnamed(columns, wanted, columns.every)
        np.minimum(ranks, RANK[RefusalCode.UUID_MISMATCH], out=ranks, where=by_id)
        np.minimum(ranks, RANK[RefusalCode.INDEX_MISMATCH], out=ranks, where=by_index)
    sizes = FAMILIES[ask.ask.family].alike
    ask.rank(columns, ranks, _WITH_SIZES if sizes else _WITH_SLICES)
    # The rank of the device at position `count`, highest first; too few if a row has no such.
    least, few = RANK[RefusalCode.NO_SUCH_DEVICE], RANK[RefusalCode.DEVICES_TOO_FEW]
    count, width = ask.ask.count, ranks.shape[1]
    first: Ranks = np.ascontiguousarray(ranks.T).max(axis=0)  # faster than along short rows
    if count == 1:
        return first
    last: Ranks = np.full(len(ranks), least, np.uint8)
    if count <= width:
        last = np.partition(ranks, width - count, axis=1)[:, width - count].copy()
    last[(last == least) & (first > least)] = few
    return last


def _stop(ranks: Ranks, where: NDArray[np.bool_], code: RefusalCode) -> None:
    # Only rows that no earlier filter refused.
    ranks[where & (ranks == FITS)] = RANK[code]


def miss(
    class_: PlacementClass, columns: Columns, row: int, code: RefusalCode
) -> tuple[float, NearMiss]:
    """Return how far the node is from fitting: as a fraction of the need, and as a near miss."""
    node = columns.nodes[row]
    found = _verdict(class_, columns, row, code)
    missed = NearMiss(
        node=columns.names[row],
        device="" if found.place == NO_PLACE else node.devices[found.place].device.id,
        code=code,
        needed=found.needed,
        available=found.available,
    )
    return found.order[1], missed


def _verdict(class_: PlacementClass, columns: Columns, row: int, code: RefusalCode) -> Verdict:
    shape, node = class_.shape, columns.nodes[row]
    found = refused_node(shape, node) or first_lacking(class_.needs, shape, node)
    if found is not None and found.code is code:
        return found
    if code in (*NEIGHBOURS, RefusalCode.VOLUME_NODE_MISMATCH, *KEPT):
        return Verdict(code, 1, 0)
    devices = node.devices
    for ask in class_.asks:  # `devices_feasibility` with the demands that the class has cached
        needs = _needs(class_, ask, columns, row)
        found = refused_ask(ask.ask, devices, needs, ask.fleet, range(len(devices)))
        if found is not None:
            return found
    # No ask lacks anything alone: the containers collide, so count the usable devices.
    would_do = {
        place
        for ask in class_.asks
        for place, need in enumerate(_needs(class_, ask, columns, row))
        if isinstance(need, Demand)
    }
    wanted_devices = max((ask.count for ask in shape.asks), default=1)
    return Verdict(code, wanted_devices, min(len(would_do), wanted_devices - 1))


def _needs(class_: PlacementClass, ask: AskColumns, columns: Columns, row: int) -> list[Need]:
    devices = columns.nodes[row].devices
    if ask.elsewhere is not None:  # kinds do not distinguish the devices that the pod names
        rules = Rules(ask.fleet, ask.chain.idle_only)
        return [need_of(ask.ask, class_.shape.devices, held.device, rules) for held in devices]
    kinds = columns.kind[row].tolist()[HOST + 1 :]
    return [ask.demands[kind] for kind, _ in zip(kinds, devices, strict=False)]


class Refusing:
    """Computes why pods are refused; caches the results until the next reservation."""

    def __init__(self, finder: PlaceFinder, limits: Limits, reservations: Reservations) -> None:
        self._finder = finder
        self._limits = limits
        self._reservations = reservations
        self._known: dict[bytes, Reasons] = {}
        self._as_of = -1

    def refused_alike(self, pod: PodState) -> bool:
        """Return True if an identical pod was refused and nothing was placed since."""
        if not self._known:
            return False
        self._reservations.charge()
        return self._as_of == self._reservations.version and self._key_of(pod) in self._known

    def reasons_once(self, pod: PodState) -> Reasons:
        """Return `reasons` for a pod that fits nowhere, cached for identical pods."""
        self._reservations.charge()
        if self._as_of != self._reservations.version:
            self._as_of = self._reservations.version
            self._known.clear()
        key = self._key_of(pod)
        if key not in self._known:
            self._known[key] = self.reasons(pod)
        return self._known[key]

    def _key_of(self, pod: PodState) -> bytes:
        # Pods with equal keys have the same reasons; an unready claim is one.
        key, shortage = self._finder.key_of(pod), self._finder.volumes.shortage(pod)
        return key if shortage is None else key + _encode((pod.submitted.namespace, shortage))

    def nodes_refused(self, pod: PodState, code: RefusalCode) -> NDArray[np.bool_]:
        """Return for each node whether this code refuses the pod there."""
        self._reservations.charge()
        columns = self._finder.columns
        refused: NDArray[np.bool_] = (
            node_ranks(self._finder.class_of(pod), columns) == RANK[code]
        ) & ~columns.vacant
        return refused

    def reasons(self, pod: PodState) -> Reasons:
        """Return why the pod fits nowhere: node counts by filter, and the limit that refuses it."""
        self._reservations.charge()
        shortage = self._finder.volumes.shortage(pod)
        if shortage is not None:
            return Reasons({code_of(shortage): 0}, (), 0, volume=shortage)
        kept = self._finder.look_within(pod)[1] if self._limits.bounded else None
        if kept is not None and kept.without is None:
            return Reasons({kept.exceeded.code: 0}, (), 0, limit=kept)
        columns = self._finder.columns
        counts, nearest = explain(self._finder.class_of(pod), columns)
        self._finder.classes.looks += EXPLAINED * len(columns.names)
        nodes = columns.count
        if kept is not None:
            counts[kept.exceeded.code] = nodes - sum(counts.values())
        return Reasons(counts, nearest, nodes, limit=kept)
