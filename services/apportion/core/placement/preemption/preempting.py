"""For whom pods of lower priority are evicted, and when: the last thing that a decision looks at.

A pod that fits nowhere may have room made for it on one node. Its victims are told to go, each by
an event; until they have gone it is nominated to the node, nobody of its priority or less is placed
there, and nobody else goes for it. It then takes its place like any other pod; where it cannot, it
is refused again, which ends the nomination, and the search begins anew.

Source of the rules: kube-scheduler's plugin DefaultPreemption. Invariant: nobody is evicted twice,
nor while those who leave already make room enough; without news nobody is evicted at all."""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.handlers.departures import awaited
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.feasibility import FITS
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import deficit_of
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.preemption.victims import DryRun, Lifted, Victims, eviction
from apportion.core.placement.queueing.keys import gang_key, wants_key
from apportion.core.placement.queueing.shape_queue import ShapeQueue, Turn, is_pending, refusal_of
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
    VolumeClaimGone,
    VolumeClaimObserved,
)
from apportion_schemas.quantities import GANG_PODS_MAX

TRIES_MAX: Final = 64
"""Nodes that one decision tries: some five milliseconds."""
REMEMBERED_MAX: Final = 4_096
COMPARED_MAX: Final = 100
"""kube-scheduler's `minCandidateNodesAbsolute`."""
_COMES: Final = frozenset((PodSubmitted, PodAdopted))
_OF_CLAIMS: Final = frozenset((VolumeClaimObserved, VolumeClaimGone))
_SETTLES: Final = frozenset((PodGone, PodPlaced, PodRefused, PodEvicted, PlacementVoided))
"""Events that begin or end a nomination."""
FOUND_MAX: Final = 8
"""Nodes that are compared for each pod of a gang."""


class Search:
    """The node on which making room for one pod costs least, found a few nodes at a time.

    As kube-scheduler it compares what it finds on so many nodes and no more. `rows` are the nodes
    that it has not tried. Invariant: without a change of the state the answer is the same, in
    however many parts it was looked for."""

    def __init__(self, dry_run: DryRun, pod: PodState, rows: Iterable[int]) -> None:
        self._dry_run = dry_run
        self.pod = pod
        self.rows = deque(rows)
        self.best: Victims | None = None
        self._compared = 0

    def go_on(self, tries_max: Int64) -> bool:
        """Try so many nodes; whether that was all that there is to try."""
        while self.rows:
            best = self.best
            if self._compared >= COMPARED_MAX and best is not None and not best.budgets:
                break  # so many were found that more would not be compared
            if tries_max <= 0:
                return False
            tries_max -= 1
            found = self._dry_run.victims(self.pod, self.rows.popleft())
            if found is None:
                continue
            self._compared += 1
            if best is None or found.better_than(best):
                self.best = found
            if not found.units:  # nobody has to go: there is room once those go who leave already
                self.rows.clear()
        return True


class _Vain(NamedTuple):
    """A search that found nothing: for whom, and what it had seen.

    `generation` is that of the columns; of a gang, how often the ledger was told of claims."""

    priority: int
    key: bytes
    generation: int
    seen: int


class GangRoom:
    """Asks, for the gangs of one state, whom to evict so that all of a gang fits, or evicts nobody.

    Its pods take places one after the other, as if they were placed; one that fits nowhere evicts
    as a pod alone would, upon what the others take and have freed. Invariant: what was thought away
    and reserved is put back before the answer is given."""

    def __init__(
        self, state: State, finder: PlaceFinder, reservations: Reservations, dry_run: DryRun
    ) -> None:
        self._state = state
        self._finder = finder
        self._reservations = reservations
        self.dry_run = dry_run

    def make(self, shape_queue: ShapeQueue) -> list[PodEvicted]:
        """Whom to evict for the gang; nobody if that would not be enough, or some leave already."""
        waiting = [self._state.pods[turn.uid] for turn in shape_queue.live(self._state)]
        deficit = deficit_of(self._state.groups[shape_queue.gang])
        if deficit is None or deficit.pods > GANG_PODS_MAX or not deficit.met_by(waiting):
            return []
        if any(pod.uid in self._state.nominated for pod in waiting):
            return []
        before = self._reservations.checkpoint()
        lifted: list[Lifted] = []
        evicted: list[PodEvicted] = []
        rows: dict[bytes, list[int]] = {}
        for pod in waiting:
            rest = deficit.less(pod)
            if rest is None:
                continue
            if not self._place(pod, rows, lifted, evicted):
                break
            deficit = rest
            if not deficit.pods:
                break
        self._reservations.roll_back(before)
        self._reservations.met = False
        for each in reversed(lifted):
            self.dry_run.put_back(each)
        return [] if deficit.pods else evicted

    def _place(
        self,
        pod: PodState,
        rows: dict[bytes, list[int]],
        lifted: list[Lifted],
        evicted: list[PodEvicted],
    ) -> bool:
        """Reserve a place for the pod, where others go if they must; whether there is one."""
        self._reservations.charge()
        found = self._finder.find(pod)
        if found is None:
            victims = self._victims(pod, rows)
            if victims is None:
                return False
            evicted += [eviction(each, pod, victims) for each in victims.pods]
            lifted += [self.dry_run.lift(each) for each in victims.pods]
            found = self._finder.find(pod)
            if found is None:
                return False
        self._reservations.reserve(pod, found)
        return True

    def _victims(self, pod: PodState, rows: dict[bytes, list[int]]) -> Victims | None:
        """Who would go for the pod; nodes that are no good for it are not tried for those alike."""
        if not pod.submitted.preempts:
            return None
        key = wants_key(pod)
        if key not in rows:
            right = self._finder.class_of(pod).facts.ranks == FITS
            rows[key] = np.flatnonzero(right).tolist()
        left = rows[key]
        best: Victims | None = None
        found = 0
        for row in list(left):
            victims = self.dry_run.victims(pod, row)
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
    """Makes room over one state, for the pods of one queue."""

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
        self._in_vain: dict[bytes, _Vain] = {}
        self._claims = 0
        self._as_of = -1

    def observe(self, change: Change) -> bool:
        """Take note of what the fold changed; whether a node is kept for somebody no longer."""
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

    def look_again(self) -> None:
        """Search again at this revision: the pods that wait here are no longer the same."""
        self._as_of = -1

    def _forget_gang(self, change: Change) -> None:
        """What was in vain for a gang may not be now; nor for others, where who is the most
        important of a gang that could go is another."""
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
        """Whom to evict now, for one pod or gang; and whether there is more to look for.

        Nothing may be reserved, and nobody wait who was not asked."""
        if self._highest <= self._least or self._as_of == self._state.revision:
            return [], False
        refused = self._given_up()
        if refused:
            return refused, True
        for shape_queue in self._hopeful():
            if shape_queue.gang:
                for_gang = self._for_gang(shape_queue)
                if for_gang:
                    return for_gang, True
                continue
            pod = self._first_of(shape_queue)
            if pod is None:
                continue
            found = self._look_for(shape_queue, pod)
            if self._search is not None:
                return [], True
            if found is not None:
                return [eviction(each, pod, found) for each in found.pods], True
        self._as_of = self._state.revision
        return [], False

    def _given_up(self) -> list[PodEvicted | PodRefused]:
        """Tell those who fit nowhere although nobody has to go for them any more."""
        found: list[PodEvicted | PodRefused] = []
        for uid in sorted(self._state.nominated):
            pod = self._state.pods.get(uid)
            if pod is None or not is_pending(self._state, pod) or not self._waiting.owns(pod):
                continue
            if awaited(self._state, uid):
                continue
            alone = self._refusing.reasons(pod)
            if pod.refusal is not None and (pod.submitted.group or not alone.counts):
                found.append(
                    pod.refusal
                )  # one of a gang that would fit alone waits for what it did
            else:
                found.append(refusal_of(pod, alone))
        return found

    def _hopeful(self) -> list[ShapeQueue]:
        """Unschedulable shape queues, in the order of their heads, that no limit keeps out."""
        found: list[tuple[Turn, bytes, ShapeQueue]] = []
        for shape_queue in self._waiting.queue.unschedulable():
            head, reasons = shape_queue.head(self._state), shape_queue.reasons
            if head is None or reasons is None or reasons.limit is not None:
                continue
            if -head.rank > self._least:
                found.append((head, shape_queue.key, shape_queue))
        return [shape_queue for _, _, shape_queue in sorted(found, key=lambda each: each[:2])]

    def _for_gang(self, shape_queue: ShapeQueue) -> list[PodEvicted | PodRefused]:
        """Whom to evict for the gang, unless nothing has changed since that was in vain."""
        columns = self._finder.columns
        columns.sync()
        vain = self._in_vain.get(shape_queue.key)
        if vain is not None and (vain.generation, vain.seen) == (self._claims, columns.changed.end):
            return []
        evicted = self._gang_room.make(shape_queue)
        if not evicted:
            self._remember(shape_queue, _Vain(0, b"", self._claims, 0))
        return list(evicted)

    def _first_of(self, shape_queue: ShapeQueue) -> PodState | None:
        """The first of a shape queue for which others may have to go."""
        head = shape_queue.head(self._state)
        if head is None or self._hopes(head):  # of most the head is the one
            return None if head is None else self._state.pods[head.uid]
        for turn in shape_queue.live(self._state):
            if -turn.rank <= self._least:
                return None  # nor does anybody behind it
            if self._hopes(turn):
                return self._state.pods[turn.uid]
        return None

    def _hopes(self, turn: Turn) -> bool:
        """Whether others may have to go for the pod: nobody goes yet."""
        about = self._state.pods[turn.uid].submitted
        return about.preempts and turn.uid not in self._state.nominated

    def _look_for(self, shape_queue: ShapeQueue, pod: PodState) -> Victims | None:
        """Whom to evict for the pod; while `_search` is there it is not known yet."""
        search = self._search
        if search is None or search.pod is not pod or self._searched_at != self._state.revision:
            search = self._search = Search(
                self._gang_room.dry_run, pod, self._rows_for(shape_queue, pod)
            )
            self._searched_at = self._state.revision
        if not search.go_on(TRIES_MAX):
            return None
        self._search = None
        if search.best is None or not search.best.units:
            generation, key = self._finder.columns.generation, self._finder.key_of(pod)
            self._remember(shape_queue, _Vain(pod.submitted.priority, key, generation, 0))
            return None
        return search.best

    def _rows_for(self, shape_queue: ShapeQueue, pod: PodState) -> list[int]:
        """The nodes to try: all whose facts are right, or of these what changed since in vain."""
        class_, columns = self._finder.class_of(pod), self._finder.columns
        right = class_.facts.ranks == FITS
        vain = self._in_vain.get(shape_queue.key)
        if vain is not None and class_.relations is None and not self._finder.limited:
            same = (vain.key, vain.generation) == (self._finder.key_of(pod), columns.generation)
            rows = columns.changed.since(vain.seen) if same else None
            if rows is not None and pod.submitted.priority <= vain.priority:
                return [row for row in sorted(set(rows.tolist())) if right[row]]
        found: list[int] = np.flatnonzero(right).tolist()
        return found

    def _remember(self, shape_queue: ShapeQueue, vain: _Vain) -> None:
        columns = self._finder.columns
        columns.sync()  # what was thought away and put back has changed nothing
        self._in_vain.pop(shape_queue.key, None)
        if len(self._in_vain) >= REMEMBERED_MAX:
            del self._in_vain[next(iter(self._in_vain))]
        self._in_vain[shape_queue.key] = vain._replace(seen=columns.changed.end)
