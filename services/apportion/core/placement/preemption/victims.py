"""Choose the fewest and least important pods to evict from a node so that a pod fits.

In the pod's own queue, pods of lower priority may be evicted (preemption, as in Volcano's action
`preempt`). In other queues, pods may be evicted that use what the pod's queue is entitled to
(reclaim, see `limits.reclaiming`). All these pods are removed for a trial. Then each is put back if
the pod still fits (kube-scheduler's DefaultPreemption). A gang is evicted whole, unless its pods
can run alone. Invariant: the state is restored, and the pod would not fit if any victim stayed."""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from apportion.core.devices.shares import retake
from apportion.core.devices.worth import DEVICE, worth_of
from apportion.core.ledger import fold
from apportion.core.ledger.host_usage import charge_host
from apportion.core.ledger.moments import micros_of
from apportion.core.ledger.state import NodeState, Phase, Placement, PodState, State, queue_of
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.assign.devices import assign
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import held
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.limits.reclaiming import Reclaim
from apportion.core.placement.queueing.queue import PendingQueue
from apportion.core.workloads.pods.affinity import meet
from apportion_schemas import PodEvicted
from apportion_schemas.quantities import GANG_BATCH_MAX

Exceeded = dict[str, tuple[str, ...]]  # the budgets that the eviction of a pod exceeds, by its uid
# subtracted from each, so that a few pods beat many of negative priority
_LEAST_PRIORITY = -(1 << 31)


class Unit(NamedTuple):
    """Pods that are evicted together: one pod, or a gang, its most important pod first."""

    rank: int
    since: str
    uid: str
    pods: tuple[PodState, ...]


class Victims(NamedTuple):
    """The pods to evict so that a pod fits on a node."""

    row: int
    node: str
    units: tuple[Unit, ...]
    budgets: Exceeded
    lost: float = 0.0  # device seconds of work that is reclaimed

    @property
    def pods(self) -> list[PodState]:
        """Return the pods to evict."""
        return list(chain.from_iterable(unit.pods for unit in self.units))

    def better_than(self, other: "Victims") -> bool:
        """Return True if kube-scheduler would rather evict these victims; False for a tie.

        The criteria in order: fewest pods that exceed a budget, least work lost to reclaim, lowest
        priority of the highest pod, lowest sum of priorities, fewest pods, latest start of the most
        important ones."""
        mine, others = self.cost, other.cost
        if mine != others:
            return mine < others
        return bool(self.units) and self.since > other.since

    @property
    def cost(self) -> tuple[int, float, int, int, int]:
        """Return the criteria for comparing victims, except the start time; lower is better."""
        priorities = [pod.submitted.priority for pod in self.pods]
        highest = max(priorities, default=_LEAST_PRIORITY)
        total = sum(priority - _LEAST_PRIORITY for priority in priorities)
        return (len(self.budgets), self.lost, highest, total, len(priorities))

    @property
    def since(self) -> str:
        """Return when the earliest of the most important victims was placed."""
        return min(self.units).since


class DryRun:
    """Tests whether a pod fits on a node without some of its pods, then restores the state."""

    def __init__(
        self,
        state: State,
        finder: PlaceFinder,
        limits: Limits,
        neighbours: Neighbours,
        queue: PendingQueue,
    ) -> None:
        self._state = state
        self._queue = queue
        self.safe_until = 0  # when the first of the pods that were safe so far may be evicted
        self._finder = finder
        self._limits = limits
        self._neighbours = neighbours

    @property
    def lends(self) -> bool:
        """Return True if a queue may take back what other queues use."""
        return self._limits.lends

    def reclaim(self, pod: PodState, others: Sequence[PodState] = ()) -> Reclaim | None:
        """Return what the pod may take back from other queues; None if nothing.

        `others` are pods of its gang that will be placed with it."""
        return self._limits.reclaim(pod, self._queue.now, others=others)

    def victims(self, pod: PodState, row: Int64, reclaim: Reclaim | None) -> Victims | None:
        """Return which pods of the node to evict for this pod, or None if no eviction helps."""
        node = self._finder.columns.nodes[row]
        leaving, units = self._below(pod, node, reclaim)
        if reclaim is not None and reclaim.safe_until:
            self.safe_until = min(reclaim.safe_until, self.safe_until or reclaim.safe_until)
        if not leaving and not units:
            return None
        gone = [self.lift(each) for each in leaving]
        lifted = {unit: [self.lift(each) for each in unit.pods] for unit in units}
        chosen: list[Unit] = []
        over: Exceeded = {}
        fits = self._fits(pod, row)
        if fits:
            over = exceeded(self._state, chain.from_iterable(unit.pods for unit in units))
            spared = [unit for unit in units if any(each.uid in over for each in unit.pods)]
            for unit in spared + [unit for unit in units if unit not in spared]:
                self._put_back(lifted[unit])
                if not self._fits(pod, row):
                    lifted[unit] = [self.lift(each) for each in unit.pods]
                    chosen.append(unit)
                else:
                    del lifted[unit]
        for places in lifted.values():
            self._put_back(places)
        self._put_back(gone)
        if not fits:
            return None
        uids = {each.uid for unit in chosen for each in unit.pods}
        budgets = {uid: names for uid, names in over.items() if uid in uids}
        chosen.sort()
        queue = queue_of(self._state, pod)
        others = [unit.pods for unit in chosen if queue_of(self._state, unit.pods[0]) != queue]
        if others and (reclaim is None or not reclaim.allows(reversed(others))):
            return None
        lost = sum(map(self._lost, chain.from_iterable(others)))
        return Victims(row, node.name, tuple(chosen), budgets, lost)

    def _lost(self, pod: PodState) -> float:
        # The device seconds since the pod was placed.
        node = self._state.nodes[_place_of(pod).node]
        worth = sum(
            worth_of(node.by_id[share.device].device, share.memory_mib, share.cores)
            for share in fold.shares_of(pod)
        )
        since = micros_of(pod.placed_time) or 0
        return worth / DEVICE * max(self._queue.now - since, 0) / 1_000_000

    def lift(self, pod: PodState) -> "Lifted":
        """Remove a placed pod from the state for a trial; pass the result to `put_back`."""
        placement = _place_of(pod)
        lifted = Lifted(pod, placement, *(getattr(pod, name) for name in _KEPT))
        fold.unplace(self._state, pod)
        self._note(pod, placement, undone=True)
        return lifted

    def put_back(self, lifted: "Lifted") -> None:
        """Restore a lifted pod with its shares, and the order of the node's pods."""
        pod, placement = lifted.pod, lifted.placement
        node = self._state.nodes[placement.node]
        for share in placement.shares:
            retake(node.by_id[share.device], share)
        charge_host(pod, node, placement)
        for name, value in zip(_KEPT, lifted[2:], strict=True):
            setattr(pod, name, value)
        pods = sorted(node.pods.values(), key=attrgetter("placed_revision"))
        node.pods.clear()  # restore their order, which derived data may depend on
        node.pods.update({each.uid: each for each in pods})
        self._note(pod, placement, undone=False)

    def _put_back(self, places: list["Lifted"]) -> None:
        for each in reversed(places):
            self.put_back(each)

    def _note(self, pod: PodState, placement: Placement, *, undone: bool) -> None:
        self._neighbours.note(pod)
        self._finder.models.forget()
        if self._limits.active:
            self._limits.note(pod, undone=undone)
        self._finder.columns.touch(self._state.nodes[placement.node], placement.shares)

    def _below(
        self, pod: PodState, node: NodeState, reclaim: Reclaim | None
    ) -> tuple[list[PodState], list[Unit]]:
        # Leaving pods, and evictable ones by importance.
        priority, queue = pod.submitted.priority, queue_of(self._state, pod)
        leaving: list[PodState] = []
        own: dict[str, Unit] = {}
        others: dict[str, Unit] = {}
        for each in node.pods.values():
            about = each.submitted
            lower, evicted = about.priority < priority, self._state.evictions.get(about.uid)
            if not about.evictable or not (lower or self._limits.lends):
                continue
            if evicted is not None:
                if lower or evicted.reason == "reclaimed":
                    leaving.append(each)
                continue
            mine = queue_of(self._state, each) == queue
            if lower if mine else reclaim is not None:
                self._add_unit(each, own if mine else others)
        allowed = [unit for unit in own.values() if -unit.rank < priority and _may_go(unit)]
        back: list[Unit] = []
        for unit in sorted(others.values(), reverse=True):  # the least important first
            alone = _may_go(unit) and self._of_one_queue(unit)
            if alone and reclaim and reclaim.allows([*(each.pods for each in back), unit.pods]):
                back.append(unit)
        return leaving, sorted((*allowed, *back))

    def _add_unit(self, pod: PodState, units: dict[str, Unit]) -> None:
        # Add the pods that are evicted with this one, unless they are there.
        name = pod.submitted.group
        if not name or not self._state.groups[name].together:
            units[pod.uid] = _unit([pod])
        elif name not in units:
            members = held(self._state.groups[name])
            # A pod that was placed after its gang was evicted is evicted alone.
            units[name] = _unit([m for m in members if m.uid not in self._state.evictions])

    def _of_one_queue(self, unit: Unit) -> bool:
        # Pods of a gang whose PodGroup is not known may name different queues.
        return len({queue_of(self._state, pod) for pod in unit.pods}) == 1

    def _fits(self, pod: PodState, row: Int64) -> bool:
        class_ = self._finder.class_of(pod)
        if class_.board.points[row] == REFUSED:
            return False
        columns = self._finder.columns
        shares = assign(class_, columns, row)
        if shares is None:
            class_.exclude(row)
            return False
        return not self._limits.active or (
            self._limits.exceeded(pod, columns.names[row], shares) is None
        )


class Lifted(NamedTuple):
    """A pod that was removed for a trial, with the values to restore."""

    pod: PodState
    placement: Placement
    phase: Phase
    placed_revision: int
    placed_time: str
    bound_revision: int
    allocated_revision: int


_KEPT = Lifted._fields[2:]


def eviction(state: State, victim: PodState, pod: PodState, found: Victims) -> PodEvicted:
    """Return the event that evicts `victim` so that `pod` fits on the node of `found`."""
    about, placement = victim.submitted, _place_of(victim)
    queues = queue_of(state, victim), queue_of(state, pod)
    reclaimed = queues[0] != queues[1]
    return PodEvicted(
        pod=about.uid,
        namespace=about.namespace,
        name=about.name,
        attempt=placement.attempt,
        node=placement.node,
        priority=about.priority,
        beneficiary=pod.uid,
        beneficiary_name=pod.full_name,
        beneficiary_priority=pod.submitted.priority,
        nominated=found.node,
        reason="reclaimed" if reclaimed else "preempted",
        queue=queues[0] if reclaimed else "",
        beneficiary_queue=queues[1] if reclaimed else "",
        budgets=found.budgets.get(about.uid, ()),
    )


def _place_of(pod: PodState) -> Placement:
    if pod.placement is None:
        raise ValueError(f"pod {pod.uid} has no placement")
    return pod.placement


def _may_go(unit: Unit) -> bool:
    # A gang is evicted in one batch.
    return len(unit.pods) <= GANG_BATCH_MAX and all(each.submitted.evictable for each in unit.pods)


def _unit(pods: list[PodState]) -> Unit:
    ordered = sorted(pods, key=lambda each: (-each.submitted.priority, each.placed_time, each.uid))
    first = ordered[0]
    since = min(each.placed_time for each in pods)
    return Unit(-first.submitted.priority, since, first.uid, tuple(ordered))


def exceeded(state: State, pods: Iterable[PodState]) -> Exceeded:
    """Return the pods whose eviction, in this order, would exceed a disruption budget."""
    if not state.budgets:
        return {}
    left = {
        (namespace, name): budget.allowed
        for namespace, budgets in state.budgets.items()
        for name, budget in budgets.items()
    }
    found: Exceeded = {}
    for pod in pods:
        about, over = pod.submitted, []
        for name, budget in sorted(state.budgets.get(about.namespace, {}).items()):
            if not budget.selector or not meet(about.labels, budget.selector):
                continue
            left[about.namespace, name] -= 1
            if left[about.namespace, name] < 0:
                over.append(name)
        if over:
            found[pod.uid] = tuple(over)
    return found
