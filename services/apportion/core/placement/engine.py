"""The engine, which turns pending pods into decisions.

The state changes only when a decision comes back from the ledger, so a refused append needs only
`retry`. Invariants: `decide` leaves the state as it was. The same state gives the same placements;
only those of pending gangs may also depend on earlier events."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.backfill import Backfill
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gang_turn import GangTurn
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.limits.holdings import COUNTED_MAX
from apportion.core.placement.limits.limits import LIMITS_SET, Limits
from apportion.core.placement.preemption.preempting import GangRoom, Preempting
from apportion.core.placement.preemption.victims import DryRun
from apportion.core.placement.queueing.keys import affinity_key, plain_key
from apportion.core.placement.queueing.queue import NO_CLOCK, PendingQueue
from apportion.core.placement.queueing.shape_queue import (
    Reasons,
    ShapeQueue,
    behind,
    is_pending,
    reason_key_of,
    refusal_of,
    turn_of,
)
from apportion.core.placement.queueing.sharding import Shard
from apportion.core.placement.queueing.waiting import Waiting
from apportion.core.placement.refusals import Refusing
from apportion.core.placement.reservations import Placed, Reservations
from apportion.core.placement.resizing import Resizing
from apportion.core.placement.volumes import OF_VOLUMES
from apportion.core.placement.waking import Waking
from apportion_schemas import (
    LimitsChecked,
    NamespaceGone,
    NamespaceObserved,
    NodeGone,
    NodeObserved,
    NodesReserved,
    PlacementVoided,
    PodAdopted,
    PodChanged,
    PodEvicted,
    PodPlaced,
    PodRefused,
    PodResized,
    PodSubmitted,
    ResizeRefused,
)

# Per decision, which is one atomic batch. A gang may take more, in the proportion of `batch_max`.
EVENTS_MAX: Final = 512
LOOKS_MAX: Final = 1 << 15  # per decision, twice: first to recheck waiting pods, then to place
NOT_WHOLE: Final = "the rest of its gang does not fit any more"

# events that are not about a pod; one look at a set for most events, instead of one for each set
_OF_CLUSTER: Final = OF_VOLUMES | LIMITS_SET

DecisionEvent = (
    PodPlaced
    | PodRefused
    | PlacementVoided
    | PodEvicted
    | PodResized
    | ResizeRefused
    | NodesReserved
)


class Decision(Struct):
    """Events to append together or not at all; those of `fences` come last.

    So a reader that has folded the fence of a limit has also folded all placements within that
    limit."""

    events: list[DecisionEvent] = []
    fences: dict[LimitsChecked, None] = {}
    placed: list[PodState] = []
    reported: list[PodState] = []
    more: bool = False  # the decision ended early; call `decide` again


class Engine:
    """The placement engine of one state, with indexes that make the next decision cheap."""

    def __init__(self, state: State, *, now: int = NO_CLOCK) -> None:
        """Index the state, and end the backoffs due by `now`, in microseconds since 1970."""
        self._state = state
        self._neighbours = Neighbours(state)
        self._limits = Limits(state)
        self._reservations = Reservations(state, Columns(state), self._limits, self._neighbours)
        self._finder = PlaceFinder(state, self._limits, self._neighbours, self._reservations)
        self._finder.kept.now = now
        self._refusing = Refusing(self._finder, self._limits, self._reservations)
        self._gangs = GangTurn(
            state, self._finder, self._neighbours, self._reservations, self._refusing
        )
        self._queue = PendingQueue(state, self._limits.turn, now)
        self._waiting = Waiting(state, self._queue, self._limits)
        # gangs that may have held pods, and whether those are being taken back
        self._assembled = {name: False for name, group in state.groups.items() if group.held}
        self._waking = Waking(state, self._queue, self._finder, self._limits, self._reservations)
        self._resizing = Resizing(state, self._limits, self._waiting)
        dry_run = DryRun(state, self._finder, self._limits, self._neighbours, self._queue)
        self._preempting = Preempting(
            state,
            self._waiting,
            self._finder,
            self._refusing,
            GangRoom(state, self._finder, self._reservations, dry_run),
        )
        places = self._finder, self._gangs, self._reservations
        self._backfill = Backfill(state, self._waiting, self._limits, dry_run, places)

    @property
    def columns(self) -> Columns:
        """Return the index of nodes; it may lag behind the state until the next decision."""
        return self._finder.columns

    @property
    def pending(self) -> int:
        """Return how many pending pods this engine decides for, including unschedulable ones."""
        return len(self._queue)

    @property
    def held_until(self) -> int:
        """Return when `tell_time` is due next, in microseconds since 1970; 0 for never.

        At that time, a pod's backoff ends, a pod is no longer safe from eviction, past use is
        counted again, or a pod has waited for a reservation of nodes."""
        of_limits = self._limits.due if self.pending else 0
        reserves = self._backfill.due if self._finder.reserves else 0
        times = self._queue.held_until, self._preempting.due, of_limits, reserves
        return min((each for each in times if each), default=0)

    @property
    def needs_time(self) -> bool:
        """Return True if decisions depend on the time: `tell_time` is due before each of them."""
        limits = self._limits
        timed = self._queue.held_until or self._preempting.due or self._preempting.takes_idle
        return limits.lends or limits.remembers or self._finder.reserves or bool(timed)

    def tell_time(self, now: int) -> None:
        """Queue the pods whose backoff ends by `now`, in microseconds since 1970."""
        due = self._preempting.due
        moved = self._limits.tell_time(now)
        if self._waiting.tell_time(now) or moved or (due and due <= now):
            self._preempting.look_again()
        if self._finder.reserves:
            self._finder.kept.now = now
            if self._backfill.due and self._backfill.due <= now:
                self._backfill.look_again()

    @property
    def others_wait(self) -> bool:
        """Return True if another scheduler has a pending pod that it has not refused yet."""
        return self._waiting.others_wait

    def own(self, shard: Shard) -> None:
        """Decide only for this shard's pods from now on; a new engine decides for all pods."""
        self._waiting.own(shard)
        self._finder.own(shard)
        self._preempting.look_again()
        self._backfill.look_again()

    def owns(self, pod: PodState) -> bool:
        """Return True if the pod belongs to this engine's shard."""
        return self._waiting.owns(pod)

    def limit_batches(self, gang_pods_max: int) -> None:
        """Place at most this many pods of one gang in a batch, even if servers accept more."""
        self._gangs.batch_max = gang_pods_max

    def keep_apart(self, *, apart: bool) -> None:
        """Set whether to try this shard's nodes first, to avoid conflicts with other schedulers."""
        self._finder.apart = apart

    def observe(self, change: Change) -> None:
        """Apply the fold's change to the indexes."""
        pod, node, kind, state = change.pod, change.node, type(change.data), self._state
        if node is not None:
            self._finder.columns.touch(node, change.shares)
        for forgotten in change.forgotten:
            self._finder.columns.forget(forgotten)
        of_cluster = kind in _OF_CLUSTER
        comes = kind is PodSubmitted or kind is PodAdopted  # maybe the first with affinity terms
        claims = pod is not None and pod.submitted.volume_claims
        if claims or (of_cluster and kind in OF_VOLUMES):
            self._finder.volumes.observe(change)
        moved = False
        if kind is PodChanged and pod is not None:
            moved = self._neighbours.rename(pod)
        elif pod is not None and (self._neighbours.active or comes):
            moved = self._neighbours.note(pod)
        elif kind is NamespaceObserved or kind is NamespaceGone:
            moved = self._neighbours.relabel(change.data.namespace)
        elif kind is NodeObserved or kind is NodeGone:  # its foreign pods may have changed
            moved = node is not None and self._neighbours.look_at(node)
        if kind is PodPlaced and change.data.held and pod is not None:
            self._assembled[pod.submitted.group] = False
        counts = self._limits.active or (of_cluster and kind in LIMITS_SET)
        freed = counts and self._limits.observe(change)
        if (
            pod is None
            or pod.submitted.group
            or state.nominated
            or state.idle is not None
            or self._preempting.nominated
            or (comes and not self._preempting.knows(pod.submitted.priority))
        ):
            freed = self._preempting.observe(change) or freed
        self._waiting.observe(change)
        self._waking.observe(change, moved, freed)

    @property
    def limited(self) -> bool:
        """Return True if placements may need fences of limits."""
        return self._limits.active

    def fence(self, decision: Decision, pods: Iterable[PodState]) -> None:
        """Fence the limits that the decision about these pods depends on."""
        if self._limits.active:
            for pod in pods:
                decision.fences.update(dict.fromkeys(self._limits.fences(pod)))

    def retry(self, decision: Decision) -> None:
        """Queue the pods of a decision again, because the decision could not be appended."""
        self._waking.note_freed()  # other pods may wait for the room that it had assumed
        self._limits.note_freed()
        for pod in decision.placed + decision.reported:
            if is_pending(self._state, pod):
                self._waiting.come_back(pod)
                if pod.submitted.group:
                    self._queue.wake_gang(pod.submitted.group)

    def decide(self, *, events_max: int = EVENTS_MAX, looks_max: int = LOOKS_MAX) -> Decision:
        """Decide for as many pending pods as one batch allows; empty if no pod needs a decision.

        The call ends early, with `more`, after evaluating about `looks_max` nodes or while indexes
        are not ready."""
        counted = not self._limits.active or self._limits.count(COUNTED_MAX)
        counted = counted and self._neighbours.count(COUNTED_MAX)
        if not (counted and self._finder.classes.prepare()):  # done in parts, because it takes long
            return Decision(more=True)
        answer = self._resizing.decide() if self._state.resizes else None
        if answer is not None:
            decision = Decision(events=[answer])
            if isinstance(answer, PodResized):
                self.fence(decision, [self._state.pods[answer.pod]])
            return decision
        decision = Decision(events=self._voids(events_max))
        if self._assembled and not decision.events and self._assemble(decision, events_max):
            return decision
        if not self._waking.wake(looks_max):
            decision.more = True
            return decision
        self._finder.classes.looks = 0
        if self._queue.contested:
            self._queue.drop_idle()
        while len(decision.events) + len(decision.fences) < events_max:
            if not self._choose_queue(looks_max):
                decision.more = True
                break
            shape_queue: ShapeQueue | None = self._queue.next_shape_queue()
            if shape_queue is None or not self._serve(shape_queue, decision, events_max):
                break
            if self._finder.classes.looks >= looks_max:
                decision.more = True
                break
        self._reservations.roll_back()
        self._report(decision, events_max)
        if not decision.events and not decision.more:
            self._make_room(decision, events_max)
        return decision

    def _make_room(self, decision: Decision, events_max: int) -> None:
        # Evicts pods, or reserves nodes, for pods that fit nowhere.
        evicted, decision.more = self._preempting.decide(events_max)
        decision.events.extend(evicted)
        wanting = {each.beneficiary for each in evicted if isinstance(each, PodEvicted)}
        self.fence(decision, [self._state.pods[uid] for uid in sorted(wanting)])
        if self._finder.reserves and not evicted and not decision.more:
            decision.events.extend(filter(None, [self._backfill.decide()]))

    def _assemble(self, decision: Decision, events_max: int) -> bool:
        # Continues with one gang of which only some batches are placed, before all other pods. If
        # the rest does not fit any more, takes back what is placed, in several decisions if needed.
        # Then the gang is tried once more as a whole. True if there is such a gang.
        for name in sorted(self._assembled):
            group = self._state.groups.get(name)
            if group is None or not group.held:
                del self._assembled[name]
                continue
            placed = [self._state.pods[uid] for uid in group.held]
            if not self._waiting.owns(placed[0]):
                continue
            self._queue.wake_gang(name)
            shape_queue = self._queue.of_gang(name)
            if shape_queue is not None and not self._assembled[name]:
                self._serve(shape_queue, decision, events_max)
            self._reservations.roll_back()
            if not decision.events:
                self._assembled[name] = True
                decision.events.extend(_void(pod, NOT_WHOLE) for pod in placed[:events_max])
            return True
        return False

    def _choose_queue(self, looks_max: int) -> bool:
        # Wakes shape queues with affinity to a reserved pod; False if this exceeds the decision.
        if self._neighbours.active and not self._waking.wake_affinity(looks_max):
            return False
        if self._queue.contested:
            self._limits.activate()
            if not self._limits.count(COUNTED_MAX, shares=True):
                return False
            self._reservations.charge()  # turns depend on what each queue has allocated
            self._queue.choose()
        return True

    def _serve(self, shape_queue: ShapeQueue, decision: Decision, events_max: int) -> bool:
        # False if the gang needs a batch of its own.
        ahead = self._queue.before(shape_queue) if self._state.queues else None
        if ahead is not None:
            self._waking.mark_unschedulable(shape_queue, behind(shape_queue.queue, ahead))
            return True
        if shape_queue.gang:
            # As `events_max`, it is smaller after the ledger refused a decision.
            most = max(self._gangs.batch_max * min(events_max, EVENTS_MAX) // EVENTS_MAX, 1)
            left = events_max - len(decision.events) if decision.events else most
            answer = self._gangs.take(shape_queue, left, most)  # for all that the gang lacks
            if answer is None:
                return False
            if isinstance(answer, Reasons):
                self._waking.mark_unschedulable(shape_queue, answer)
            else:
                self._settle(shape_queue, answer, decision)
                return not answer[-1][1].held  # the rest of the gang is in the next batch
            return True
        pod = self._state.pods[shape_queue.waiting[0].uid]
        found = None if self._refusing.refused_alike(pod) else self._finder.find(pod)
        if found is None and (self._state.nominated or self._finder.reserving):
            pod, found = self._where_room_is_made(shape_queue, pod)
        if found is None:
            if shape_queue.key == plain_key(self._state, pod) and self._finder.minds_others(pod):
                # The pods behind it may have other labels and may fit.
                shape_queue = self._queue.move(shape_queue, pod, affinity_key(pod))
                if shape_queue.unschedulable:
                    return True
            self._waking.mark_unschedulable(shape_queue, self._refusing.reasons_once(pod))
        else:
            self._reservations.reserve(pod, found)
            self._settle(shape_queue, [(pod, found)], decision)
        return True

    def _where_room_is_made(
        self, shape_queue: ShapeQueue, head: PodState
    ) -> tuple[PodState, PodPlaced | None]:
        # The first pod behind the head that fits on its nominated node; the head may never preempt.
        # Otherwise the first pod that ends in time to use reserved nodes, if it fits.
        for uid in sorted(self._state.nominated):
            pod = self._state.pods.get(uid)
            if pod is None or pod is head or not is_pending(self._state, pod):
                continue
            if not shape_queue.has(turn_of(pod)):
                continue
            found = self._finder.find(pod)
            if found is not None:
                return pod, found
        pod = self._finder.kept.first_in_time(shape_queue) if self._finder.reserving else None
        found = None if pod is None or pod is head else self._finder.find(pod)
        return (head, None) if pod is None or found is None else (pod, found)

    def _settle(self, shape_queue: ShapeQueue, placed: list[Placed], decision: Decision) -> None:
        taken: set[str] = set()
        for pod, found in placed:
            decision.placed.append(pod)
            decision.events.append(found)
            taken.add(found.pod)
        shape_queue.remove(taken)
        self._queue.wake(shape_queue)
        if self._limits.active:
            self.fence(decision, (pod for pod, _ in placed))

    def _report(self, decision: Decision, events_max: int) -> None:
        if len(decision.events) >= events_max or not self._queue.to_report:
            return
        placed = {pod.uid for pod in decision.placed}
        for pod, reasons in self._queue.unreported():
            known = pod.refusal is not None and reason_key_of(pod.refusal) == reasons.reason_key
            if known or pod.uid in placed:
                continue
            decision.events.append(refusal_of(pod, reasons))
            decision.reported.append(pod)
            if len(decision.events) >= events_max:
                return

    def _voids(self, events_max: int) -> list[DecisionEvent]:
        voids: list[DecisionEvent] = []
        if not self._state.failing:
            return voids
        for uid, cause in sorted(self._state.failing.items()):
            pod = self._state.pods[uid]
            if len(voids) < events_max and pod.placement is not None and self._waiting.owns(pod):
                voids.append(_void(pod, cause))
        return voids


def _void(pod: PodState, cause: str) -> PlacementVoided:
    placed = pod.placement
    if placed is None:
        raise ValueError(f"pod {pod.uid} has no placement")
    return PlacementVoided(pod=pod.uid, attempt=placed.attempt, node=placed.node, reason=cause)
