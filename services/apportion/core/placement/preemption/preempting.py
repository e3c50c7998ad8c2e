"""Decide for which pending pod to evict others, as the last step of a decision.

The victims have a lower priority, or their queues use what this pod's queue is entitled to. The pod
is nominated to the node until they have ended. In the meantime, no other pod of the same or lower
priority is placed there. If queues take back what they lend, neither is a pod of another queue.
Source: kube-scheduler's DefaultPreemption. Invariant: no pod is evicted twice, and none while pods
that are already leaving free enough room."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.handlers.departures import awaited
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.feasibility.evaluator import FITS
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import GangDeficit, deficit_of
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.preemption.victims import DryRun, Lifted, Victims, eviction
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
    PlacementVoided,
    PodAdopted,
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
from apportion_schemas.quantities import GANG_BATCH_MAX

TRIES_MAX: Final = 64  # nodes that one decision tries: some five milliseconds
REMEMBERED_MAX: Final = 4_096
COMPARED_MAX: Final = 100  # kube-scheduler's `minCandidateNodesAbsolute`
_COMES: Final = frozenset((PodSubmitted, PodAdopted))
_OF_CLAIMS: Final = frozenset((VolumeClaimObserved, VolumeClaimGone))
# events that begin or end a nomination
_SETTLES: Final = frozenset((PodGone, PodPlaced, PodRefused, PodEvicted, PlacementVoided))
# limits that other queues' pods may use up
OF_OTHERS: Final = frozenset((RefusalCode.QUEUE_RESERVED, RefusalCode.QUEUE_CAPABILITY_EXCEEDED))
FOUND_MAX: Final = 8  # nodes compared for each pod of a gang


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
    """A search for evictions that found no node, with the facts that it depends on."""

    priority: int
    key: bytes
    generation: int
    seen: int


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

    def make(self, shape_queue: ShapeQueue) -> list[PodEvicted]:
        """Return evictions that let the gang fit; none while it waits for earlier evictions."""
        waiting = [self._state.pods[turn.uid] for turn in shape_queue.live(self._state)]
        group = self._state.groups[shape_queue.gang]
        deficit = deficit_of(group)
        if deficit is None or deficit.pods > GANG_BATCH_MAX or not deficit.met_by(waiting):
            return []
        if group.observed is not None and (group.observed.required_level or group.observed.parts):
            return []  # evictions on several nodes would make no room in one topology domain
        if any(pod.uid in self._state.nominated for pod in waiting):
            return []
        found = self._evictions(waiting, deficit)
        for choice in self._finder.model_choices(waiting, deficit.pods, by_room=False):
            self._finder.models.begin = choice
            other = self._evictions(waiting, deficit)
            found = min((each for each in (found, other) if each), key=len, default=[])
        self._finder.models.begin = {}
        return found

    def _evictions(self, waiting: list[PodState], deficit: GangDeficit) -> list[PodEvicted]:
        before = self._reservations.checkpoint()
        lifted: list[Lifted] = []
        evicted: list[PodEvicted] = []
        rows: dict[bytes, list[int]] = {}
        batch: list[PodState] = []
        for pod in waiting:
            rest = deficit.less(pod)
            if rest is not None:
                batch.append(pod)
                deficit = rest
        fits = not deficit.pods and all(
            self._place(pod, batch[number:], rows, lifted, evicted)
            for number, pod in enumerate(batch, 1)
        )
        self._reservations.roll_back(before)
        self._reservations.met = False
        for each in reversed(lifted):
            self.dry_run.put_back(each)
        return evicted if fits else []

    def _place(
        self,
        pod: PodState,
        others: Sequence[PodState],
        rows: dict[bytes, list[int]],
        lifted: list[Lifted],
        evicted: list[PodEvicted],
    ) -> bool:
        # Reserve a placement for the pod, evicting if necessary. False if there is none. `others`
        # are the pods of its gang that will be placed after it.
        self._reservations.charge()
        found = self._finder.find(pod)
        if found is None:
            victims = self._victims(pod, others, rows)
            if victims is None:
                return False
            evicted += [eviction(self._state, each, pod, victims) for each in victims.pods]
            lifted += [self.dry_run.lift(each) for each in victims.pods]
            found = self._finder.find(pod)
            if found is None:
                return False
        self._reservations.reserve(pod, found)
        return True

    def _victims(
        self, pod: PodState, others: Sequence[PodState], rows: dict[bytes, list[int]]
    ) -> Victims | None:
        # Nodes that fail are not tried again for identical pods.
        if not pod.submitted.preempts:
            return None
        key = wants_key(pod)
        if key not in rows:
            right = self._finder.class_of(pod).facts.ranks == FITS
            rows[key] = np.flatnonzero(right).tolist()
        left = rows[key]
        best: Victims | None = None
        found = 0
        reclaim = self.dry_run.reclaim(pod, others)
        for row in list(left):
            victims = self.dry_run.victims(pod, row, reclaim)
            if victims is None or not victims.units:
                left.remove(row)
                continue
            found += 1
            if best is None or victims.better_than(best):
                best = victims
            if found >= FOUND_MAX:
                break
        return best


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
        self._nominated = dict(state.nominated)
        priorities = [pod.submitted.priority for pod in state.pods.values()]
        self._least = min(priorities, default=0)
        self._highest = max(priorities, default=0)
        self._search: Search | None = None
        self._searched_at = -1
        self._searched: set[str] = set()  # pods whose search ended at this revision
        self._searched_for = -1
        self._in_vain: dict[bytes, _Vain] = {}
        self._claims = 0
        self._as_of = -1

    def observe(self, change: Change) -> bool:
        """Apply the fold's change. Return True if it ended the nomination of a node."""
        kind = type(change.data)
        self._forget_gang(change)
        if kind in _OF_CLAIMS:
            self._claims += 1
        if kind in _COMES and change.pod is not None:
            priority = change.pod.submitted.priority
            self._least = min(self._least, priority)
            self._highest = max(self._highest, priority)
        elif kind in _SETTLES and (self._nominated or self._state.nominated):
            now = self._state.nominated
            ended = {uid: node for uid, node in self._nominated.items() if now.get(uid) != node}
            if ended or len(now) != len(self._nominated):
                self._nominated = dict(now)
            for name in sorted(set(ended.values()) & self._state.nodes.keys()):
                self._finder.columns.touch(self._state.nodes[name], ())
            return bool(ended)
        return False

    @property
    def due(self) -> int:
        """Return when to search again without a new event, in microseconds since 1970, or 0."""
        return self._gang_room.dry_run.safe_until

    def look_again(self) -> None:
        """Search again without a new event, because of the time or the set of pending pods."""
        self._as_of = self._searched_at = self._searched_for = -1
        self._gang_room.dry_run.safe_until = 0
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

    def decide(self) -> tuple[list[PodEvicted | PodRefused], bool]:
        """Return the evictions for one pod or gang, or refusals. True if more may follow."""
        if self._as_of == self._state.revision:
            return [], False
        if self._highest <= self._least and not self._gang_room.dry_run.lends:
            return [], False
        refused = self._given_up()
        if refused:
            return refused, True
        if self._searched_for != self._state.revision:
            self._searched_for = self._state.revision
            self._searched.clear()
        for shape_queue in self._hopeful():
            if shape_queue.gang:
                columns = self._finder.columns
                columns.sync()
                vain, as_of = self._in_vain.get(shape_queue.key), self._generation()
                if vain and (vain.generation, vain.seen) == (as_of, columns.changed.end):
                    continue
                evicted = self._gang_room.make(shape_queue)
                if evicted:
                    return list(evicted), True
                self._remember(shape_queue, _Vain(0, b"", as_of, 0))
                continue
            pod = self._first_of(shape_queue)
            if pod is None or pod.uid in self._searched:
                continue
            found = self._look_for(shape_queue, pod)
            if self._search is not None:
                return [], True
            if found is not None:
                return [eviction(self._state, each, pod, found) for each in found.pods], True
            self._searched.add(pod.uid)
        self._as_of = self._state.revision
        return [], False

    def _generation(self) -> int:
        # What a gang's search depends on, apart from the nodes. With entitlements, that is all.
        return self._state.revision if self._gang_room.dry_run.lends else self._claims

    def _given_up(self) -> list[PodEvicted | PodRefused]:
        # Report pods that fit nowhere although all their victims have ended.
        found: list[PodEvicted | PodRefused] = []
        for uid in sorted(self._state.nominated):
            pod = self._state.pods.get(uid)
            if pod is None or not is_pending(self._state, pod) or not self._waiting.owns(pod):
                continue
            if awaited(self._state, uid):
                continue
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
            if self._gang_room.dry_run.lends or -head.rank > self._least:
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
            if -turn.rank <= self._least and not self._gang_room.dry_run.lends:
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
