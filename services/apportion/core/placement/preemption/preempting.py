"""Decide for which pending pod to evict others, as the last step of a decision.

The victims have a lower priority, or are idle, or their queues use what this pod's queue is
entitled to. The pod is nominated to the node until they have ended. In the meantime, no other pod
of the same or lower priority is placed there, and no pod of another queue if queues reclaim what
they lend. Source: kube-scheduler's DefaultPreemption. Invariant: no pod is evicted twice, and none
while pods that are already leaving free enough room."""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs

from apportion.core.bounded import remember
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.handlers.departures import waiting_for
from apportion.core.ledger.handlers.idle import IdleNews
from apportion.core.ledger.moments import micros_of
from apportion.core.ledger.state import GroupState, PodState, State
from apportion.core.placement.feasibility.evaluator import FITS
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gang_levels import Domain, GangLevels
from apportion.core.placement.gangs import GangDeficit, deficit_of, held
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.limits.reclaiming import Reclaim
from apportion.core.placement.preemption.victims import (
    Cost,
    DryRun,
    Lifted,
    Victims,
    eviction,
    keeps_budgets,
)
from apportion.core.placement.queueing.keys import gang_key, wants_key
from apportion.core.placement.queueing.shape_queue import (
    Reasons,
    ShapeQueue,
    Turn,
    is_pending,
    refusal_of,
)
from apportion.core.placement.queueing.waiting import Waiting
from apportion.core.placement.refusals import Refusing
from apportion.core.placement.reservations import Reservations
from apportion_schemas import (
    BudgetGone,
    BudgetObserved,
    ConfigurationChanged,
    KeptNode,
    NodesReserved,
    PlacementVoided,
    PodAdopted,
    PodChanged,
    PodEvicted,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    RefusalCode,
    VolumeClaimGone,
    VolumeClaimObserved,
)
from apportion_schemas.quantities import GANG_BATCH_MAX, WHOLE

TRIES_MAX: Final = 64  # nodes that one decision tries: some five milliseconds
REMEMBERED_MAX: Final = 4_096
COMPARED_MAX: Final = 100  # kube-scheduler's `minCandidateNodesAbsolute`
_COMES: Final = frozenset((PodSubmitted, PodAdopted))
_OF_CLAIMS: Final = frozenset((VolumeClaimObserved, VolumeClaimGone))
_OF_BUDGETS: Final = frozenset((BudgetObserved, BudgetGone))
# events that begin or end a nomination, and events that may also begin or end a reservation
_SETTLES: Final = frozenset((
    PodGone, PodPlaced, PodRefused, PodEvicted, PlacementVoided, PodChanged, PodGroupObserved,
))  # fmt: skip
_OF_RESERVATIONS: Final = frozenset((NodesReserved, ConfigurationChanged))
# limits that other queues' pods may use up
OF_OTHERS: Final = frozenset((RefusalCode.QUEUE_RESERVED, RefusalCode.QUEUE_CAPABILITY_EXCEEDED))
LEVEL_WORTH_S: Final = 300  # what a finer level of topology may cost more, for each device
DOMAINS_MAX: Final = 8  # topology domains of one level that are compared for a gang
FOUND_MAX: Final = 64  # nodes compared for identical pods of a gang


class Search:
    """Searches for the node where evictions for one pod cost least, a few nodes per step.

    Invariant: the result does not depend on the number of steps."""

    def __init__(self, dry_run: DryRun, pod: PodState, rows: Iterable[int]) -> None:
        self._dry_run = dry_run
        self.pod = pod
        self.reclaim = dry_run.reclaim(pod)
        self.rows = deque(rows)
        self.best: Victims | None = None
        self._compared = 0

    def go_on(self, tries_max: Int64) -> bool:
        """Try at most `tries_max` more nodes. Return True when the search is complete."""
        while self.rows:
            best = self.best
            if self._compared >= COMPARED_MAX and best is not None and not best.budgets:
                break  # enough candidates
            if tries_max <= 0:
                return False
            tries_max -= 1
            found = self._dry_run.victims(self.pod, self.rows.popleft(), self.reclaim)
            if found is None:
                continue
            self._compared += 1
            if best is None or found.better_than(best):
                self.best = found
            # no eviction needed: pods that are already leaving free enough room
            if not found.units:
                self.rows.clear()
        return True


class _Vain(NamedTuple):
    """A search for evictions that found no node, and the facts on which this result depends."""

    priority: int
    key: bytes
    generation: int
    seen: int


class _Node(NamedTuple):
    """A node with its victims, after `evicted` earlier victims of the same trial; orders by cost.

    `start` is the negated start time of the victims: at equal cost, the latest are evicted."""

    cost: Cost
    start: int
    row: int
    evicted: int
    victims: Victims


class _Nodes(NamedTuple):
    """The nodes to try for identical pods, and those that were tried, as a heap."""

    rest: deque[int]
    known: list[_Node]


class _Trial(NamedTuple):
    """A search for evictions for one gang in one topology domain, and what it has found so far."""

    domain: Domain
    least: int  # the lowest priority of any pod
    victims: list[Victims]
    lifted: list[Lifted]
    evicted: list[PodEvicted]
    kept: list[KeptNode]  # for pods that need no eviction
    nodes: dict[bytes, _Nodes]  # by the key of identical pods

    @property
    def cost(self) -> tuple[int, float, int]:
        """Return how many budgets are exceeded, the device seconds lost, and how many victims."""
        budgets = sum(len(each.budgets) for each in self.victims)
        return budgets, sum(each.lost for each in self.victims), len(self.evicted)


class GangRoom:
    """Searches for evictions that let a whole gang fit.

    Invariant: the search leaves the state as it was."""

    def __init__(
        self, state: State, finder: PlaceFinder, reservations: Reservations, dry_run: DryRun
    ) -> None:
        self._state = state
        self._finder = finder
        self._reservations = reservations
        self.dry_run = dry_run
        # Gangs that no eviction helps, at `_vain_as_of`: of how many pods, by what they need.
        self._vain: dict[Hashable, int] = {}
        self._vain_as_of = -1

    def make(
        self, group: GroupState, waiting: list[PodState], least: int
    ) -> tuple[list[PodEvicted], int] | None:
        """Return evictions that let the gang fit, and when to make them, as in `Victims`.

        Return none while the gang waits for earlier evictions, and None if pods are left to count.
        `waiting` are its pending pods in the order of the queue; `least` is the lowest priority of
        any pod."""
        deficit = deficit_of(group)
        if deficit is None or deficit.pods > GANG_BATCH_MAX or not deficit.met_by(waiting):
            return [], 0
        if group.observed is not None and group.observed.parts:
            # Evictions on several nodes would make no room in several topology domains.
            return [], 0
        if any(pod.uid in self._state.nominated for pod in waiting):
            return [], 0
        if not self.dry_run.count():
            return None
        batch = next_batch(deficit, waiting)
        first, *others = batch
        reclaim = self.dry_run.reclaim(first, others)
        if not any(self.dry_run.may_evict(pod, reclaim, least) for pod in batch):
            return [], 0
        if self._vain_as_of != self._state.revision:
            self.forget()
        alike = self._alike(batch, group)
        if alike is not None and self._vain.get(alike, len(batch) + 1) <= len(batch):
            return [], 0
        asked = sum(ask.count for pod in batch for ask in pod.submitted.shape.asks)
        # the device seconds that pods may lose more, so that the gang is in a finer domain
        worth = LEVEL_WORTH_S * (float(asked) if reclaim is None else reclaim.devices)
        found = self._trials(batch, group, waiting, least, worth)
        if not found:
            self._vain[alike] = len(batch)
            return [], 0
        # The nodes of pods that need no eviction are reserved, too. Otherwise other pods would take
        # them before the evicted pods have ended, and the gang would evict again.
        best = _worthwhile(found, worth)
        taken = [pod for each in best.victims if each.lost for pod in each.pods]
        _, at = self.dry_run.least_lost(taken, reclaim)
        evicted, *more = best.evicted
        return [structs.replace(evicted, kept=tuple(best.kept)), *more], at

    def _trials(
        self,
        batch: list[PodState],
        group: GroupState,
        waiting: list[PodState],
        least: int,
        worth: float,
    ) -> list[_Trial]:
        # The trial with the lowest cost of each level that has any, the finest level first, until
        # no coarser level could be chosen. `worth` is that of a finer level.
        choices = [{}, *self._finder.model_choices(waiting, len(batch), by_room=False)]
        found: list[_Trial] = []
        for domains in GangLevels(self._finder, group).to_clear(waiting, DOMAINS_MAX):
            trials = []
            for choice in choices:
                self._finder.models.begin = choice
                trials += [
                    self._try(batch, domain, least)
                    for domain in domains
                    if self._is_large_enough(domain, batch)
                ]
            level = [trial for trial in trials if trial is not None]
            found += [min(level, key=lambda each: each.cost)] if level else []
            if found and found[-1].cost[:2] <= (0, worth):
                break
        self._finder.models.begin = {}
        return found

    def forget(self) -> None:
        """Forget which gangs no eviction helps."""
        self._vain.clear()
        self._vain_as_of = self._state.revision

    def _alike(self, batch: list[PodState], group: GroupState) -> Hashable:
        # A key that is equal for gangs of identical pods that need the same; None for other gangs.
        # If no eviction helps these pods, none helps more of them.
        keys = {(self._finder.key_of(pod), pod.submitted.priority) for pod in batch}
        said = group.observed
        if len(keys) > 1 or said is None or held(group):
            return None
        return *keys, said.required_level, said.preferred_level, said.topology

    def _is_large_enough(self, domain: Domain, batch: list[PodState]) -> bool:
        # Whether the domain has as many devices as the pods need for themselves alone.
        asks = (ask for pod in batch for ask in pod.submitted.shape.asks)
        needed = sum(ask.count for ask in asks if ask.cores == WHOLE)
        rows = () if domain.rows is None else np.flatnonzero(domain.rows).tolist()
        nodes = self._finder.columns.nodes
        return domain.rows is None or needed <= sum(len(nodes[row].devices) for row in rows)

    def _try(self, batch: list[PodState], domain: Domain, least: int) -> _Trial | None:
        before = self._reservations.checkpoint()
        trial = _Trial(domain, least, [], [], [], [], {})
        fits = all(self._place(pod, batch[number:], trial) for number, pod in enumerate(batch, 1))
        self._reservations.roll_back(before)
        self._reservations.met = False
        for each in reversed(trial.lifted):
            self.dry_run.put_back(each)
        return trial if fits and trial.evicted else None

    def _place(self, pod: PodState, others: Sequence[PodState], trial: _Trial) -> bool:
        # Reserve a placement for the pod, evicting if necessary. False if there is none. `others`
        # are the pods of its gang that will be placed after it.
        self._reservations.charge()
        found = self._finder.find(pod, trial.domain.rows)
        if found is not None:
            kept = KeptNode(namespace=pod.submitted.namespace, pod=pod.uid, node=found.node)
            trial.kept.append(kept)
        else:
            victims = self._victims(pod, others, trial)
            if victims is None:
                return False
            trial.victims.append(victims)
            evicted = [eviction(self._state, each, pod, victims) for each in victims.pods]
            every = [*trial.evicted, *evicted]
            idle = {each.pod for each in every if each.reason == "idle"}
            if not keeps_budgets(self._state, (self._state.pods[each.pod] for each in every), idle):
                return False
            for each in victims.pods:
                trial.lifted.append(self.dry_run.lift(each))
            found = self._finder.find(pod, trial.domain.rows)
            if found is None:
                return False
            # It may be another node of an evicted gang.
            trial.evicted.extend(structs.replace(each, nominated=found.node) for each in evicted)
        self._reservations.reserve(pod, found)
        return True

    def _victims(self, pod: PodState, others: Sequence[PodState], trial: _Trial) -> Victims | None:
        # The cheapest of the nodes that are compared. Earlier evictions of the trial rarely change
        # what another node costs, so only the cheapest is looked at again.
        reclaim = self.dry_run.reclaim(pod, others)
        if not self.dry_run.may_evict(pod, reclaim, trial.least):
            return None
        key = wants_key(pod)
        if key not in trial.nodes:
            right = self._finder.class_of(pod).facts.ranks == FITS
            inside = trial.domain.rows
            rows = np.flatnonzero(right if inside is None else right & inside)
            trial.nodes[key] = _Nodes(deque(rows.tolist()), [])
        rest, known = trial.nodes[key]
        while True:
            while rest and len(known) < FOUND_MAX:
                self._note(pod, rest.popleft(), reclaim, trial, known)
            if not known:
                return None
            best = known[0]
            if best.evicted == len(trial.evicted):
                return best.victims
            heappop(known)
            self._note(pod, best.row, reclaim, trial, known)

    def _note(
        self, pod: PodState, row: Int64, reclaim: Reclaim | None, trial: _Trial, known: list[_Node]
    ) -> None:
        # Nodes where no eviction helps are not tried again for identical pods.
        found = self.dry_run.victims(pod, row, reclaim)
        if found is not None and found.units:
            since = micros_of(found.since) or 0
            heappush(known, _Node(found.cost, -since, int(row), len(trial.evicted), found))


def next_batch(deficit: GangDeficit, waiting: list[PodState]) -> list[PodState]:
    """Return the pods that the gang still needs, in the order of the queue."""
    batch: list[PodState] = []
    for pod in waiting:
        rest = deficit.less(pod)
        if rest is not None:
            batch.append(pod)
            deficit = rest
    return batch


def _worthwhile(trials: list[_Trial], worth: float) -> _Trial:
    # The first trial, of the finest level, that costs little more than the cheapest one.
    budgets, lost, _ = min(trial.cost for trial in trials)
    return next(
        trial for trial in trials if trial.cost[0] <= budgets and trial.cost[1] <= lost + worth
    )


class Preempting:
    """Decides which pods to evict so that pending pods of one engine can be placed."""

    def __init__(
        self,
        state: State,
        waiting: Waiting,
        finder: PlaceFinder,
        refusing: Refusing,
        gang_room: GangRoom,
    ) -> None:
        self._state = state
        self._waiting = waiting
        self._finder = finder
        self._refusing = refusing
        self._gang_room = gang_room
        self.nominated = finder.kept.all()  # nodes that are nominated, or reserved
        priorities = [pod.submitted.priority for pod in state.pods.values()]
        self._least = min(priorities, default=0)
        self._highest = max(priorities, default=0)
        self._search: Search | None = None
        self._searched_at = -1
        self._searched: set[str] = set()  # pods whose search ended at this revision
        self._searched_for = -1
        self._in_vain: dict[bytes, _Vain] = {}
        # When to evict for the first pod of a shape queue: its uid, and microseconds since 1970.
        self._until: dict[bytes, tuple[str, int]] = {}
        self._claims = 0
        self._idle = IdleNews(state)
        self._as_of = -1

    def knows(self, priority: int) -> bool:
        """Return True if the range of known priorities includes this one."""
        return self._least <= priority <= self._highest

    def observe(self, change: Change) -> bool:
        """Apply the fold's change. Return True if it ended a nomination or reservation of a node.

        The engine leaves out events of pods that do not matter here."""
        kind = type(change.data)
        self._forget_gang(change)
        if self._state.idle is not None:
            news = self._idle.news(change, self._gang_room.dry_run.stale)
            if news or (kind in _OF_BUDGETS and self.takes_idle):
                self._in_vain.clear()
        if kind in _OF_CLAIMS:
            self._claims += 1
        if kind in _COMES and change.pod is not None:
            priority = change.pod.submitted.priority
            self._least = min(self._least, priority)
            self._highest = max(self._highest, priority)
        elif kind in _OF_RESERVATIONS or (
            kind in _SETTLES and (self.nominated or self._state.nominated)
        ):
            self._finder.follow_reservation()
            now = self._finder.kept.all()
            ended = {uid: node for uid, node in self.nominated.items() if now.get(uid) != node}
            if ended or len(now) != len(self.nominated):
                self.nominated = now
            for name in sorted(set(ended.values()) & self._state.nodes.keys()):
                self._finder.columns.touch(self._state.nodes[name], ())
            return bool(ended)
        return False

    @property
    def due(self) -> int:
        """Return when the first pod that is safe now may be evicted; 0 for never.

        The time is in microseconds since 1970."""
        return self._gang_room.dry_run.safe_until

    @property
    def takes_idle(self) -> bool:
        """Return True if there may be idle pods that a pod of the same priority may evict."""
        return self._gang_room.dry_run.takes_idle

    @property
    def _takes_equals(self) -> bool:
        # Whether a pod may evict pods that have no lower priority.
        return self._gang_room.dry_run.lends or self.takes_idle

    def look_again(self) -> None:
        """Search again without a new event, because of the time or the set of pending pods."""
        self._as_of = self._searched_at = self._searched_for = -1
        self._gang_room.dry_run.safe_until = 0
        self._gang_room.forget()
        if self._gang_room.dry_run.lends:
            self._in_vain.clear()

    def _forget_gang(self, change: Change) -> None:
        # Failed searches may succeed now, for others if the gang's most important pod changed.
        pod, data = change.pod, change.data
        name = pod.submitted.group if pod is not None else ""
        if isinstance(data, PodGroupObserved):
            name = data.group
        if not name:
            return
        self._in_vain.pop(gang_key(name), None)
        group = self._state.groups.get(name)
        pods = [] if group is None else list(group.pods.values())
        if len({(each.submitted.priority, each.submitted.evictable) for each in pods}) > 1:
            self._in_vain.clear()

    def decide(self, events_max: int) -> tuple[list[PodEvicted | PodRefused], bool]:
        """Return the evictions for one pod or gang, or refusals. True if more may follow.

        `events_max` limits the refusals."""
        if self._as_of == self._state.revision:
            return [], False
        if self._highest <= self._least and not self._takes_equals:
            return [], False
        refused = self._given_up(events_max)
        if refused:
            return refused, True
        if self._searched_for != self._state.revision:
            self._searched_for = self._state.revision
            self._searched.clear()
        self._gang_room.dry_run.ahead.clear()
        for shape_queue in self._hopeful():
            if self._is_put_off(shape_queue):
                continue
            decided = (
                self._for_gang(shape_queue) if shape_queue.gang else self._for_pod(shape_queue)
            )
            if decided is None:
                return [], True
            evicted, at = decided
            late = at <= self._waiting.queue.now  # also 0, which is now
            if evicted and (late or self._has_waited(shape_queue)):
                return list(evicted), True
            if evicted:
                self._put_off(shape_queue, at)
        self._as_of = self._state.revision
        return [], False

    def _for_gang(self, shape_queue: ShapeQueue) -> tuple[list[PodEvicted], int] | None:
        # The evictions for a gang, and when to make them, as in `GangRoom.make`.
        columns = self._finder.columns
        columns.sync()
        vain = self._in_vain.get(shape_queue.key)
        # What the search depends on, apart from the nodes. With entitlements, that is all.
        as_of = self._state.revision if self._gang_room.dry_run.lends else self._claims
        if vain and (vain.generation, vain.seen) == (as_of, columns.changed.end):
            return [], 0
        waiting = [self._state.pods[turn.uid] for turn in shape_queue.live(self._state)]
        group = self._state.groups[shape_queue.gang]
        found = self._gang_room.make(group, waiting, self._least)
        if found is not None and not found[0]:
            self._remember(shape_queue, _Vain(0, b"", as_of, 0))
        return found

    def _for_pod(self, shape_queue: ShapeQueue) -> tuple[list[PodEvicted], int] | None:
        # The evictions for the first pod that may preempt; None while the search goes on.
        pod = self._first_of(shape_queue)
        if pod is None or pod.uid in self._searched:
            return [], 0
        if not self._gang_room.dry_run.count():
            return None
        found = self._look_for(shape_queue, pod)
        if self._search is not None:
            return None
        if found is None:
            self._searched.add(pod.uid)
            return [], 0
        return [eviction(self._state, each, pod, found) for each in found.pods], found.at

    def _put_off(self, shape_queue: ShapeQueue, until: int) -> None:
        # Do not search for the first pod, or its gang, until this time, when evictions cost less.
        # Later pods of its queue may take back only what it leaves. It does not wait again.
        first = self._first_of(shape_queue)
        if first is not None:
            remember(self._until, shape_queue.key, (first.uid, until), most=REMEMBERED_MAX)
            self._is_put_off(shape_queue)

    def _has_waited(self, shape_queue: ShapeQueue) -> bool:
        # Pods that were pending when the wait ended have waited, too.
        first = self._first_of(shape_queue)
        if first is None:
            return False
        uid, until = self._until.get(shape_queue.key, ("", 0))
        over = until <= self._waiting.queue.now
        return first.uid == uid or (over and (micros_of(first.submitted_time) or 0) < until)

    def _is_put_off(self, shape_queue: ShapeQueue) -> bool:
        uid, until = self._until.get(shape_queue.key, ("", 0))
        if until <= self._waiting.queue.now or not self._has_waited(shape_queue):
            return False
        dry_run = self._gang_room.dry_run
        dry_run.safe_until = min(until, dry_run.safe_until or until)
        group = self._state.groups.get(shape_queue.gang) if shape_queue.gang else None
        deficit = deficit_of(group) if group is not None else None
        if deficit is None:
            dry_run.ahead.append(self._state.pods[uid])
        else:
            live = [self._state.pods[turn.uid] for turn in shape_queue.live(self._state)]
            dry_run.ahead += next_batch(deficit, live)
        return True

    def _given_up(self, events_max: int) -> list[PodEvicted | PodRefused]:
        # Report pods that fit nowhere although all their victims have ended; one for each gang.
        found: list[PodEvicted | PodRefused] = []
        if not self._state.nominated:
            return found
        awaiting = {waiting_for(self._state, each) for each in self._state.evictions.values()}
        for uid in sorted(self._state.nominated):
            pod = self._state.pods.get(uid)
            if pod is None or not is_pending(self._state, pod) or not self._waiting.owns(pod):
                continue
            name = pod.submitted.group or uid
            if name in awaiting or len(found) >= events_max:
                continue
            awaiting.add(name)
            alone = self._refusing.reasons(pod)
            if pod.refusal is not None and (pod.submitted.group or not alone.counts):
                found.append(pod.refusal)  # a pod of a gang that would fit alone keeps its refusal
            else:
                found.append(refusal_of(pod, alone))
        return found

    def _hopeful(self) -> list[ShapeQueue]:
        # Unschedulable shape queues that an eviction may help, in their order.
        found: list[tuple[Turn, bytes, ShapeQueue]] = []
        for shape_queue in self._waiting.queue.unschedulable():
            head, reasons = shape_queue.head(self._state), shape_queue.reasons
            place = shape_queue.place(self._state)
            if head is None or place is None or reasons is None or not self._may_help(reasons):
                continue
            if self._takes_equals or -head.rank > self._least:
                found.append((place, shape_queue.key, shape_queue))
        return [shape_queue for _, _, shape_queue in sorted(found, key=lambda each: each[:2])]

    def _may_help(self, reasons: Reasons) -> bool:
        # An eviction does not change a limit, but frees what other queues use of it.
        if reasons.limit is None:
            return True
        return self._gang_room.dry_run.lends and reasons.limit.exceeded.code in OF_OTHERS

    def _first_of(self, shape_queue: ShapeQueue) -> PodState | None:
        # The first pod of a shape queue that may preempt.
        head = shape_queue.head(self._state)
        if head is None or self._hopes(head):  # usually it is the head
            return None if head is None else self._state.pods[head.uid]
        for turn in shape_queue.live(self._state):
            if -turn.rank <= self._least and not self._takes_equals:
                return None  # nor may any pod behind it
            if self._hopes(turn):
                return self._state.pods[turn.uid]
        return None

    def _hopes(self, turn: Turn) -> bool:
        # The pod may preempt, and no room is being made for it yet.
        about = self._state.pods[turn.uid].submitted
        return about.preempts and turn.uid not in self._state.nominated

    def _look_for(self, shape_queue: ShapeQueue, pod: PodState) -> Victims | None:
        # The result is not known yet while `_search` is set.
        search = self._search
        if search is None or search.pod is not pod or self._searched_at != self._state.revision:
            class_, columns = self._finder.class_of(pod), self._finder.columns
            right = class_.facts.ranks == FITS
            rows = np.flatnonzero(right)
            vain = self._in_vain.get(shape_queue.key)
            limited = self._finder.limited
            if vain is not None and class_.relations is None and not limited:
                same = (vain.key, vain.generation) == (self._finder.key_of(pod), columns.generation)
                changed = columns.changed.since(vain.seen) if same else None
                if changed is not None and pod.submitted.priority <= vain.priority:
                    rows = np.unique(changed[right[changed]])  # enough after a failed search
            search = self._search = Search(self._gang_room.dry_run, pod, rows.tolist())
            self._searched_at = self._state.revision
        if not search.go_on(TRIES_MAX):
            return None
        self._search = None
        if search.best is None or not search.best.units:
            generation, key = self._finder.columns.generation, self._finder.key_of(pod)
            self._remember(shape_queue, _Vain(pod.submitted.priority, key, generation, 0))
            return None
        return search.best

    def _remember(self, shape_queue: ShapeQueue, vain: _Vain) -> None:
        columns = self._finder.columns
        columns.sync()  # lifting pods and restoring them changed nothing
        self._in_vain.pop(shape_queue.key, None)
        if len(self._in_vain) >= REMEMBERED_MAX:
            del self._in_vain[next(iter(self._in_vain))]
        self._in_vain[shape_queue.key] = vain._replace(seen=columns.changed.end)
