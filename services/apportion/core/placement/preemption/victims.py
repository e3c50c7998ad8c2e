"""Choose the fewest and least important pods to evict from a node so that a pod fits.

All pods of lower priority are removed for a trial, then each is put back if the pod still fits
(kube-scheduler's DefaultPreemption). A gang is evicted whole, unless its pods can run alone. As in
Volcano's action `preempt`, only pods of the same queue are evicted. Invariant: the state is
restored, and the pod would not fit if any victim stayed."""

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from apportion.core.devices.shares import retake
from apportion.core.ledger import fold
from apportion.core.ledger.host_usage import charge_host
from apportion.core.ledger.state import NodeState, Phase, Placement, PodState, State, queue_of
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.assign.devices import assign
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import held
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.limits.limits import Limits
from apportion.core.workloads.pods.affinity import meet
from apportion_schemas import PodEvicted

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

    @property
    def pods(self) -> list[PodState]:
        """Return the pods to evict."""
        return list(chain.from_iterable(unit.pods for unit in self.units))

    def better_than(self, other: "Victims") -> bool:
        """Return True if kube-scheduler would rather evict these victims; False for a tie.

        The criteria in order: fewest pods that exceed a budget, lowest priority of the highest pod,
        lowest sum of priorities, fewest pods, latest start of the most important ones."""
        mine, others = self.cost, other.cost
        if mine != others:
            return mine < others
        return bool(self.units) and self.since > other.since

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """Return the criteria for comparing victims, except the start time; lower is better."""
        priorities = [pod.submitted.priority for pod in self.pods]
        highest = max(priorities, default=_LEAST_PRIORITY)
        total = sum(priority - _LEAST_PRIORITY for priority in priorities)
        return (len(self.budgets), highest, total, len(priorities))

    @property
    def since(self) -> str:
        """Return when the earliest of the most important victims was placed."""
        return min(self.units).since


class DryRun:
    """Tests whether a pod fits on a node without some of its pods, then restores the state."""

    def __init__(
        self, state: State, finder: PlaceFinder, limits: Limits, neighbours: Neighbours
    ) -> None:
        self._state = state
        self._finder = finder
        self._limits = limits
        self._neighbours = neighbours

    def victims(self, pod: PodState, row: Int64) -> Victims | None:
        """Return which pods of the node to evict for this pod, or None if no eviction helps."""
        node = self._finder.columns.nodes[row]
        leaving, units = self._below(pod, node)
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
        return Victims(row, node.name, tuple(sorted(chosen)), budgets)

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
        if self._limits.active:
            self._limits.note(pod, undone=undone)
        self._finder.columns.touch(self._state.nodes[placement.node], placement.shares)

    def _below(self, pod: PodState, node: NodeState) -> tuple[list[PodState], list[Unit]]:
        # Leaving pods of lower priority, and evictable ones of the same queue by importance.
        priority, queue = pod.submitted.priority, queue_of(self._state, pod)
        leaving: list[PodState] = []
        units: dict[str, Unit] = {}
        for each in node.pods.values():
            about = each.submitted
            if about.priority >= priority or not about.evictable:
                continue
            if about.uid in self._state.evictions:
                leaving.append(each)
            elif queue_of(self._state, each) != queue:
                continue
            elif not about.group or not self._state.groups[about.group].together:
                units[about.uid] = _unit([each])
            elif about.group not in units:
                members = held(self._state.groups[about.group])
                # A pod that was placed after its gang was evicted is evicted alone.
                staying = [m for m in members if m.uid not in self._state.evictions]
                units[about.group] = _unit(staying)
        return leaving, sorted(
            unit
            for unit in units.values()
            if -unit.rank < priority and all(each.submitted.evictable for each in unit.pods)
        )

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


def eviction(victim: PodState, pod: PodState, found: Victims) -> PodEvicted:
    """Return the event that evicts `victim` so that `pod` fits on the node of `found`."""
    about, placement = victim.submitted, _place_of(victim)
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
        reason="preempted",
        budgets=found.budgets.get(about.uid, ()),
    )


def _place_of(pod: PodState) -> Placement:
    if pod.placement is None:
        raise ValueError(f"pod {pod.uid} has no placement")
    return pod.placement


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
