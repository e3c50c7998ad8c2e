"""Choose the fewest and least important pods to evict from a node so that a pod fits.

In the pod's own queue, pods of lower priority may be evicted (preemption, as in Volcano's action
`preempt`), and idle pods of the same priority if the configuration says so. In other queues, the
pod may evict pods that use what its own queue is entitled to (reclaim, see `limits.reclaiming`).
All these pods are removed for a trial. Then each is put back if the pod still fits
(kube-scheduler's DefaultPreemption); idle pods are put back last. If a victim belongs to a gang,
the pods beyond the gang's minimum are evicted first, one by one. The other pods of the gang are
evicted together, unless they can run alone. Invariant: the state is restored, and the pod would not
fit if any victim stayed."""

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from apportion.core.devices.shares import retake
from apportion.core.devices.worth import DEVICE, most_at_once, worth_of
from apportion.core.ledger import fold
from apportion.core.ledger.handlers.gangs import minimums_of
from apportion.core.ledger.handlers.idle import idle_pod, reclaims
from apportion.core.ledger.host_usage import charge_host
from apportion.core.ledger.moments import SECOND, micros_of, text_of
from apportion.core.ledger.state import (
    GroupState,
    NodeState,
    Phase,
    Placement,
    PodState,
    State,
    queue_of,
)
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.assign.devices import assign
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import held
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.limits.holdings import COUNTED_MAX
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.limits.reclaiming import Reclaim
from apportion.core.placement.queueing.queue import NO_CLOCK, PendingQueue
from apportion.core.workloads.pods.affinity import meet
from apportion_schemas import PodEvicted, Share
from apportion_schemas.quantities import GANG_BATCH_MAX

Exceeded = dict[str, tuple[str, ...]]  # the budgets that the eviction of a pod exceeds, by its uid
WAIT_MAX_S: Final = 1_800  # for a checkpoint: an annotation must not keep devices for long
# seconds of work that count as lost for each device that is evicted beyond what is taken back
SURPLUS_S: Final = 1_800
WAITS_MAX: Final = 16  # times of checkpoints that are compared for one set of victims
# subtracted from each, so that a few pods beat many of negative priority
_LEAST_PRIORITY = -(1 << 31)
Cost = tuple[int, bool, float, int, int, int]  # of victims, see `Victims.better_than`


class Unit(NamedTuple):
    """Pods that are evicted together: one pod, or a gang, its most important pod first.

    `gang` is the gang that cannot run without these pods, or empty. If all pods are idle, they are
    less important than all pods that work. A `surplus` pod, which its gang can run without, is less
    important than all other pods of the same priority."""

    idle: bool
    rank: int
    surplus: bool
    since: str
    uid: str
    pods: tuple[PodState, ...]
    gang: str = ""


class Victims(NamedTuple):
    """The pods to evict so that a pod fits on a node."""

    row: int
    node: str
    units: tuple[Unit, ...]
    budgets: Exceeded
    lost: float = 0.0  # device seconds of work that is reclaimed, and for which the pod waits
    at: int = 0  # when to evict them, in microseconds since 1970; 0: now

    @property
    def pods(self) -> list[PodState]:
        """Return the pods to evict."""
        return list(chain.from_iterable(unit.pods for unit in self.units))

    def better_than(self, other: "Victims") -> bool:
        """Return True if kube-scheduler would rather evict these victims; False for a tie.

        The criteria in order: fewest pods that exceed a budget, idle pods only, least work lost to
        reclaim, lowest priority of the highest pod, lowest sum of priorities, fewest pods, latest
        start of the most important ones."""
        mine, others = self.cost, other.cost
        if mine != others:
            return mine < others
        return bool(self.units) and self.since > other.since

    @property
    def cost(self) -> "Cost":
        """Return the criteria for comparing victims, except the start time; lower is better."""
        priorities = [pod.submitted.priority for pod in self.pods]
        highest = max(priorities, default=_LEAST_PRIORITY)
        total = sum(priority - _LEAST_PRIORITY for priority in priorities)
        works = not all(unit.idle for unit in self.units)
        return (len(self.budgets), works, self.lost, highest, total, len(priorities))

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
        self.stale: set[str] = set()  # pods that may be idle after their next report
        self.safe_until = 0  # when the first of the pods that were safe so far may be evicted
        self.ahead: list[PodState] = []  # pods that take back devices before the others do
        self._finder = finder
        self._limits = limits
        self._neighbours = neighbours

    @property
    def lends(self) -> bool:
        """Return True if a queue may reclaim what other queues use."""
        return self._limits.lends

    @property
    def takes_idle(self) -> bool:
        """Return True if there may be idle pods that a pod of the same priority may evict."""
        return reclaims(self._state)

    def count(self) -> bool:
        """Count what queues use, some pods per call. Return True if none is left."""
        return not self.lends or self._limits.count(COUNTED_MAX, shares=True)

    def reclaim(self, pod: PodState, others: Sequence[PodState] = ()) -> Reclaim | None:
        """Return what the pod may reclaim from other queues; None if nothing.

        `others` are pods of its gang that will be placed with it."""
        queue = queue_of(self._state, pod)
        ahead = [each for each in self.ahead if queue_of(self._state, each) == queue]
        return self._limits.reclaim(pod, self._queue.now, others=others, ahead=ahead)

    def victims(self, pod: PodState, row: Int64, reclaim: Reclaim | None) -> Victims | None:
        """Return which pods of the node to evict for this pod, or None if no eviction helps."""
        node = self._finder.columns.nodes[row]
        leaving, units = self.candidates(pod, node, reclaim)
        if reclaim is not None and reclaim.safe_until:
            self.safe_until = min(reclaim.safe_until, self.safe_until or reclaim.safe_until)
        if not leaving and not units:
            return None
        gone = [self.lift(each) for each in leaving]
        lifted = {unit: [self.lift(each) for each in unit.pods] for unit in units}
        chosen: list[Unit] = []
        over: Exceeded = {}
        fits = self.shares_on(pod, row) is not None
        if fits:
            over = exceeded(self._state, chain.from_iterable(unit.pods for unit in units))
            spared = [unit for unit in units if any(each.uid in over for each in unit.pods)]
            for unit in spared + [unit for unit in units if unit not in spared]:
                self._put_back(lifted[unit])
                if self.shares_on(pod, row) is None:
                    lifted[unit] = [self.lift(each) for each in unit.pods]
                    chosen.append(unit)
                else:
                    del lifted[unit]
        chosen += _left_alone(units, chosen)
        for places in lifted.values():
            self._put_back(places)
        self._put_back(gone)
        if not fits:
            return None
        uids = {each.uid for unit in chosen for each in unit.pods}
        budgets = {uid: names for uid, names in over.items() if uid in uids}
        chosen.sort()
        lost = self.lost_by(pod, chosen, reclaim)
        return None if lost is None else Victims(row, node.name, tuple(chosen), budgets, *lost)

    def lost_by(
        self, pod: PodState, chosen: list[Unit], reclaim: Reclaim | None
    ) -> tuple[float, int] | None:
        """Return what is lost to reclaim, and when that is least; None if it is not allowed."""
        queue = queue_of(self._state, pod)
        others = [unit for unit in chosen if queue_of(self._state, unit.pods[0]) != queue]
        taken = [unit.pods for unit in reversed(others)]
        if others and (reclaim is None or not reclaim.allows(taken)):
            return None
        priority, pods = pod.submitted.priority, chain.from_iterable(unit.pods for unit in chosen)
        equals = {
            each.uid
            for unit in chosen
            if unit.idle and unit not in others
            for each in unit.pods
            if each.submitted.priority == priority
        }
        if not keeps_budgets(self._state, pods, equals):
            return None
        working = [unit.pods for unit in others if not unit.idle]
        return self.least_lost(list(chain.from_iterable(working)), reclaim)

    def least_lost(self, pods: list[PodState], reclaim: Reclaim | None) -> tuple[float, int]:
        """Return the device seconds that are lost if these pods are evicted, and when that is best.

        The time is in microseconds since 1970, 0 for now, and at most `WAIT_MAX_S` later. Just
        after a checkpoint, a pod loses little, but until then, the pods that take the devices back
        wait. Both count, and devices that these pods do not need: otherwise a large gang that has
        just started would be evicted for one device."""
        now, worth = self._queue.now, [devices_of(self._state, pod) for pod in pods]
        waits = {0}
        devices = reclaim.devices if reclaim is not None else 0.0
        for pod in pods if devices and now != NO_CLOCK else ():
            every, placed = pod.submitted.checkpoint_s * SECOND, micros_of(pod.placed_time)
            if every and placed is not None and placed <= now:
                waits.add(every - (now - placed) % every)
        surplus = max(0.0, sum(worth) - devices) * SURPLUS_S if devices else 0.0
        lost = {
            wait: sum(map(operator.mul, worth, (lost_s(pod, now + wait) for pod in pods)))
            + wait / SECOND * devices
            + surplus
            for wait in sorted(waits)[:WAITS_MAX]
            if wait <= WAIT_MAX_S * SECOND
        }
        wait = min(lost, key=lambda each: (lost[each], each))
        return lost[wait], now + wait if wait else 0

    def _since(self, pod: PodState) -> str:
        # When the pod was placed or wrote its last checkpoint.
        every, placed = pod.submitted.checkpoint_s * SECOND, micros_of(pod.placed_time)
        if not every or placed is None or placed > self._queue.now:
            return pod.placed_time
        return text_of(self._queue.now - (self._queue.now - placed) % every)

    def may_evict(self, pod: PodState, reclaim: Reclaim | None, least: int) -> bool:
        """Return False if no pod may be evicted for this one. `least` is the lowest priority."""
        may = reclaim is not None or pod.submitted.priority > least or self.takes_idle
        return pod.submitted.preempts and may

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
        if pod.adopted:
            fold.judge(node)
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

    def candidates(
        self, pod: PodState, node: NodeState, reclaim: Reclaim | None
    ) -> tuple[list[PodState], list[Unit]]:
        """Return the pods of the node that are leaving, and those that may be evicted, by rank."""
        priority, queue = pod.submitted.priority, queue_of(self._state, pod)
        leaving: list[PodState] = []
        own: dict[str, Unit] = {}
        others: dict[str, Unit] = {}
        for each in node.pods.values():
            about = each.submitted
            lower, evicted = about.priority < priority, self._state.evictions.get(about.uid)
            if evicted is not None:
                if lower or evicted.reason != "preempted":
                    leaving.append(each)
                continue
            idle = about.priority == priority and self._is_idle(each)
            if not about.evictable or not (lower or idle or self._limits.lends):
                continue
            mine = queue_of(self._state, each) == queue
            if lower or idle if mine else reclaim is not None:
                self._add_unit(each, own if mine else others)
        allowed = [
            unit for unit in own.values() if -unit.rank < priority + unit.idle and _may_go(unit)
        ]
        back: list[Unit] = []
        lost = [unit._replace(since=min(map(self._since, unit.pods))) for unit in others.values()]
        for unit in sorted(lost, reverse=True):  # the least important first
            # Pods of a gang whose PodGroup is not known may name different queues.
            alone = _may_go(unit) and len({queue_of(self._state, pod) for pod in unit.pods}) == 1
            if alone and reclaim and reclaim.allows([*(each.pods for each in back), unit.pods]):
                back.append(unit)
        return leaving, sorted((*allowed, *back))

    def _is_idle(self, pod: PodState) -> bool:
        if not self.takes_idle:
            return False
        now = 0 if self._queue.now == NO_CLOCK else self._queue.now
        if idle_pod(self._state, pod, now) is not None:
            return True
        if self._state.idle and pod.uid in self._state.idle:
            self.stale.add(pod.uid)
        return False

    def _unit(self, pods: list[PodState], gang: str = "") -> Unit:
        ordered = _by_importance(pods)
        first, idle = ordered[0], all(map(self._is_idle, pods))
        since = min(each.placed_time for each in pods)
        rank = -first.submitted.priority
        return Unit(idle, rank, False, since, first.uid, tuple(ordered), gang)  # noqa: FBT003 - a field

    def _add_unit(self, pod: PodState, units: dict[str, Unit]) -> None:
        # Add the pods that are evicted with this one, unless they are there.
        name = pod.submitted.group
        if not name or not self._state.groups[name].together:
            units[pod.uid] = self._unit([pod])
        elif pod.uid not in units and name not in units:
            group, gone = self._state.groups[name], self._state.evictions
            # A pod that was placed after its gang was evicted is evicted alone.
            members = [each for each in held(group) if each.uid not in gone]
            extra = [each for each in _beyond_minimum(group, members) if _on(each, pod)]
            rest = [each for each in members if each not in extra]
            units.update((each.uid, self._unit([each])._replace(surplus=True)) for each in extra)
            if any(_on(each, pod) for each in rest):
                # A gang is not idle while one of its other members works.
                idle = all(map(self._is_idle, members))
                units[name] = self._unit(rest, name)._replace(idle=idle)

    def shares_on(self, pod: PodState, row: Int64) -> tuple[Share, ...] | None:
        """Return what the pod would get on the node; None if it does not fit or exceeds a limit."""
        class_ = self._finder.class_of(pod)
        if class_.board.points[row] == REFUSED:
            return None
        columns = self._finder.columns
        shares = assign(class_, columns, row)
        if shares is None:
            class_.exclude(row)
            return None
        name = columns.names[row]
        if self._limits.exceeded(pod, name, shares) is not None:
            return None
        return shares


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


def worth_on(pod: PodState, node: NodeState, shares: Iterable[Share]) -> int:
    """Return the devices that the pod takes with these shares of the node, in thousandths."""

    def of_share(share: Share) -> tuple[tuple[int, int]]:
        device = node.by_id[share.device].device
        return ((DEVICE, worth_of(device, share.memory_mib, share.cores)),)

    return most_at_once(pod.submitted.shape, shares, of_share).total()


def devices_of(state: State, pod: PodState) -> float:
    """Return how many devices a placed pod has; a share counts as its part of the device."""
    placement = _place_of(pod)
    return worth_on(pod, state.nodes[placement.node], placement.shares) / DEVICE


def lost_s(pod: PodState, at: int) -> float:
    """Return the seconds of work between the pod's last checkpoint and `at`.

    `at` is in microseconds since 1970. Without checkpoints, the work began when the pod was placed.
    """
    every, placed = pod.submitted.checkpoint_s * SECOND, micros_of(pod.placed_time) or 0
    ran = max(at - placed, 0)
    return (ran % every if every else ran) / SECOND


def eviction(state: State, victim: PodState, pod: PodState, found: Victims) -> PodEvicted:
    """Return the event that evicts `victim` so that `pod` fits on the node of `found`."""
    about, placement = victim.submitted, _place_of(victim)
    queues = queue_of(state, victim), queue_of(state, pod)
    reclaimed = queues[0] != queues[1]
    idle = idle_pod(state, victim) if reclaims(state) else None
    lower = about.priority < pod.submitted.priority
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
        beneficiary_group=pod.submitted.group,
        nominated=found.node,
        reason="reclaimed" if reclaimed else "preempted" if lower or idle is None else "idle",
        queue=queues[0] if reclaimed else "",
        beneficiary_queue=queues[1] if reclaimed else "",
        budgets=found.budgets.get(about.uid, ()),
        notice_s=about.notice_s,
        idle_s=0 if idle is None else idle.seconds,
    )


def _place_of(pod: PodState) -> Placement:
    if pod.placement is None:
        raise ValueError(f"pod {pod.uid} has no placement")
    return pod.placement


def _on(pod: PodState, other: PodState) -> bool:
    return _place_of(pod).node == _place_of(other).node


def _beyond_minimum(group: GroupState, members: list[PodState]) -> list[PodState]:
    # The least important members without which the gang still has its minimum.
    said = group.observed
    if said is None or said.parts or said.whole:
        return []
    there = Counter(each.submitted.task for each in members)
    minimums = minimums_of(group)
    spare = len(members) - group.min_available
    found: list[PodState] = []
    for each in reversed(_by_importance(members)):
        task = each.submitted.task
        if len(found) < spare and there[task] > minimums[task]:
            there[task] -= 1
            found.append(each)
    return found


def _left_alone(units: list[Unit], chosen: list[Unit]) -> list[Unit]:
    # Members beyond the minimum of a gang that is evicted: they go, too.
    gangs = {unit.gang for unit in chosen if unit.gang}
    left = (unit for unit in units if unit not in chosen)
    return [unit for unit in left if unit.pods[0].submitted.group in gangs]


def _may_go(unit: Unit) -> bool:
    # A gang is evicted in one batch.
    return len(unit.pods) <= GANG_BATCH_MAX and all(each.submitted.evictable for each in unit.pods)


def _by_importance(pods: list[PodState]) -> list[PodState]:
    return sorted(pods, key=lambda each: (-each.submitted.priority, each.placed_time, each.uid))


def keeps_budgets(state: State, pods: Iterable[PodState], idle: Collection[str]) -> bool:
    """Return False if the eviction of these pods would exceed a disruption budget of an idle one.

    `idle` are the uids of pods that may be evicted only because they are idle. Pods that are
    already leaving count, because the budgets may not include them yet."""
    if not idle or not state.budgets:
        return True
    leaving = [state.pods[uid] for uid in state.evictions]
    evicted = sorted(pods, key=lambda each: each.uid in idle)
    return not any(uid in idle for uid in exceeded(state, (*leaving, *evicted)))


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
