"""Find the running pods to move so that a pending pod or gang fits.

This is the search for evictions with other candidates and another cost: the candidates are all pods
that may be moved and have no higher priority than the beneficiary, whatever their queue, and those
whose end loses the least work are chosen. Whether they fit elsewhere is unknown here; `lab.defrag`
simulates that. Invariant: the search leaves the state as it was."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.feasibility.evaluator import FITS
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import deficit_of, held
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.limits.reclaiming import Reclaim
from apportion.core.placement.preemption.preempting import GangRoom, Search
from apportion.core.placement.preemption.victims import (
    DryRun,
    Unit,
    Victims,
    devices_of,
    lost_s,
    worth_on,
)
from apportion.core.placement.queueing.queue import PendingQueue
from apportion.core.placement.queueing.shape_queue import turn_of
from apportion.core.placement.reservations import Reservations
from apportion_schemas import Share

COUNTED_MAX: Final = 1 << 16  # pods or nodes that one call counts
UNIT_MAX: Final = 500  # pods that can be moved together; each takes two events of one batch

# Rules that leave out a set of pods to move.
Beyond = Literal["moves-max", "frees-less", "disruption-budget"]


def unit_of(state: State, pod: PodState) -> tuple[PodState, ...]:
    """Return the placed pods that are moved together with this one, in the order of the queue.

    Of a gang with a minimum of several pods, these are all placed pods."""
    group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
    if group is None or group.min_available <= 1:
        return (pod,)
    return tuple(sorted(held(group), key=turn_of))


def worth(state: State, pods: Iterable[PodState]) -> int:
    """Return the devices that the placed pods among these take, in thousandths."""
    placed = ((pod, pod.placement) for pod in pods)
    return sum(
        worth_on(pod, state.nodes[placement.node], placement.shares)
        for pod, placement in placed if placement is not None
    )  # fmt: skip


def lost_work(state: State, pods: Iterable[PodState], now: int) -> float:
    """Return the device seconds of work that these placed pods lose if they end at `now`.

    `now` is in microseconds since 1970."""
    return sum(devices_of(state, pod) * lost_s(pod, now) for pod in pods)


class Found(NamedTuple):
    """The units to move, the nodes to keep free for the beneficiary, and what the move costs."""

    units: tuple[tuple[PodState, ...], ...]
    nodes: tuple[str, ...]
    lost: float  # device seconds of work
    worth: int  # devices, in thousandths


class MoveSearch:
    """Searches one state for pods to move; make a new one after the state has changed."""

    def __init__(self, state: State, may_move: Callable[[PodState], bool], *, now: int) -> None:
        """Index the state. `now` is in microseconds since 1970, to count lost work."""
        neighbours, limits = Neighbours(state), Limits(state)
        reservations = Reservations(state, Columns(state), limits, neighbours)
        finder = PlaceFinder(state, limits, neighbours, reservations)
        queue = PendingQueue(state, limits.turn, now)
        self._state = state
        self._finder = finder
        self.dry_run = MoveDryRun(state, finder, limits, neighbours, queue)
        self.dry_run.may_move = may_move
        self._gangs = GangRoom(state, finder, reservations, self.dry_run)
        while not (
            (not limits.active or limits.count(COUNTED_MAX, shares=True))
            and neighbours.count(COUNTED_MAX)
            and finder.classes.prepare()
        ):
            pass

    def find(
        self, pods: Sequence[PodState], *, moves_max: int, without: frozenset[str] = frozenset()
    ) -> Found | None:
        """Return the cheapest pods to move so that this pod, or these pods of a gang, fit.

        At most `moves_max` pods are moved, and none of the units with a uid in `without`."""
        first, *_ = pods
        dry_run, state = self.dry_run, self._state
        group = state.groups.get(first.submitted.group) if first.submitted.group else None
        # Of a gang, only the pods of the next batch are to fit.
        deficit = deficit_of(group) if group is not None and group.together else None
        dry_run.begin(deficit.pods if deficit is not None else len(pods), moves_max, without)
        if group is not None and group.together:
            self._gangs.forget()
            made = self._gangs.make(group, list(pods), 0)
            evicted = made[0] if made is not None else []
            nodes = [each.nominated for each in evicted]
            nodes += [kept.node for each in evicted for kept in each.kept]
            moved = [state.pods[each.pod] for each in evicted]
        else:
            rows = np.flatnonzero(self._finder.class_of(first).facts.ranks == FITS)
            search = Search(dry_run, first, rows.tolist())
            search.go_on(len(rows))
            best = search.best
            nodes, moved = ([best.node], best.pods) if best is not None else ([], [])
        units = {unit[0].uid: unit for unit in (unit_of(state, pod) for pod in moved)}
        moved = [pod for unit in units.values() for pod in unit]
        if not moved:
            return None
        if len(moved) > moves_max:
            dry_run.beyond["moves-max"] = None
            return None
        return Found(
            tuple(sorted(units.values(), key=lambda unit: turn_of(unit[0]))),
            tuple(dict.fromkeys(nodes)),
            dry_run.lost(moved),
            worth(state, moved),
        )


class MoveDryRun(DryRun):
    """Tests whether a pod fits on a node without the pods that may be moved from it.

    Since `begin`, `beyond` has the rules that left out a set of pods, and `gain` the devices that
    the beneficiary would get, in thousandths; 0 if no move makes room."""

    may_move: Callable[[PodState], bool]

    def begin(self, count: int, moves_max: int, without: frozenset[str]) -> None:
        """Prepare a search for moves that make room for `count` pods; see `MoveSearch.find`."""
        self.beyond: dict[Beyond, None] = {}
        self._count = count
        self._moves_max = moves_max
        self._without = without
        self.gain = 0
        self._gains: dict[str, int] = {}  # by uid of the beneficiary's pods

    def may_evict(self, pod: PodState, reclaim: Reclaim | None, least: int) -> bool:  # noqa: ARG002 - the base's signature
        """Return True: `candidates` has the rule about priorities."""
        return True

    def reclaim(self, pod: PodState, others: Sequence[PodState] = ()) -> Reclaim | None:  # noqa: ARG002 - the base's signature
        """Return None: moves do not depend on queues."""
        return None

    def victims(self, pod: PodState, row: Int64, reclaim: Reclaim | None) -> Victims | None:
        """Return which pods to move from the node; None if no move within the rules helps."""
        found = super().victims(pod, row, reclaim)
        if found is not None and found.budgets:
            self.beyond["disruption-budget"] = None
            return None
        return found

    def candidates(
        self, pod: PodState, node: NodeState, reclaim: Reclaim | None  # noqa: ARG002 - as above
    ) -> tuple[list[PodState], list[Unit]]:  # fmt: skip
        """Return the units that may be moved from the node, the one that would lose most first.

        None of their pods has a higher priority than the beneficiary, because a moved pod can end
        up pending in Kubernetes. The first ones are put back first, if the pod still fits."""
        units: dict[str, Unit] = {}
        for each in node.pods.values():
            pods = unit_of(self._state, each)
            first = pods[0]
            if first.uid in units or first.uid in self._without or len(pods) > UNIT_MAX:
                continue
            own = bool(pod.submitted.group) and first.submitted.group == pod.submitted.group
            below = all(each.submitted.priority <= pod.submitted.priority for each in pods)
            if not own and below and all(map(self.may_move, pods)):
                gang = first.submitted.group if len(pods) > 1 else ""
                rank, since = -first.submitted.priority, first.placed_time
                units[first.uid] = Unit(False, rank, False, since, first.uid, pods, gang)  # noqa: FBT003
        costs = {uid: -self.lost(unit.pods) for uid, unit in units.items()}
        return [], sorted(units.values(), key=lambda unit: (costs[unit.uid], unit[1:5]))

    def shares_on(self, pod: PodState, row: Int64) -> tuple[Share, ...] | None:
        """Return as the base does, and note the devices in `gain`."""
        shares = super().shares_on(pod, row)
        if shares is not None:
            one = worth_on(pod, self._finder.columns.nodes[row], shares)
            self._gains[pod.submitted.uid] = one
            # Pods that were not tried yet count as this one.
            others = max(self._count - len(self._gains), 0)
            self.gain = sum(self._gains.values()) + others * one
        return shares

    def lost_by(
        self, pod: PodState, chosen: list[Unit], reclaim: Reclaim | None  # noqa: ARG002 - as above
    ) -> tuple[float, int] | None:  # fmt: skip
        """Return the lost work and 0, for now; None if too many pods or devices would be moved."""
        moved = [each for unit in chosen for each in unit.pods]
        if len(moved) > self._moves_max:
            self.beyond["moves-max"] = None
        elif worth(self._state, moved) >= self.gain:
            self.beyond["frees-less"] = None
        else:
            return self.lost(moved), 0
        return None

    def lost(self, pods: Iterable[PodState]) -> float:
        """Return the device seconds of work that these placed pods lose if they end now."""
        return lost_work(self._state, pods, self._queue.now)
