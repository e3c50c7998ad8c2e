"""Keep the pending pods in shape queues: one per group of identical pods, one per gang.

The queue that is furthest below its entitlement comes first (`limits.queues`). Its shape queues are
ordered by the priority, then the age, of their first pods, or of their gangs. Invariant: a pending
pod is in exactly one shape queue, or taken by the current decision."""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from apportion.core.ledger.handlers.departures import awaited
from apportion.core.ledger.state import DEFAULT_QUEUE, PENDING, PodState, State, queue_of
from apportion.core.placement.limits.queues import Turn as QueueTurn
from apportion.core.placement.queueing.keys import gang_key, keys_of, queue_key
from apportion.core.placement.queueing.shape_queue import (
    Reasons,
    ShapeQueue,
    Turn,
    still_waits,
    turn_of,
)

NO_CLOCK: Final = 1 << 62  # later than any time, so that no pod backs off


class PendingQueue:
    """All pending pods in the order in which they are scheduled."""

    def __init__(
        self,
        state: State,
        turn_of_queue: Callable[[str], tuple[QueueTurn, ...]] = lambda _: (),
        now: int = NO_CLOCK,
    ) -> None:
        self._state = state
        self.now = now  # microseconds since 1970
        self._held_back: list[tuple[int, str]] = []
        self._turn_of_queue = turn_of_queue
        self._shape_queues: dict[bytes, ShapeQueue] = {}
        self._order: list[tuple[Turn, bytes]] = []  # of the queue whose turn it is
        self._orders = {DEFAULT_QUEUE: self._order}
        self.contested = False  # more than one queue may have pending pods
        self.to_report: dict[bytes, None] = {}
        for pod in sorted(state.pods.values(), key=turn_of):
            if pod.phase is PENDING:
                self.add(pod)

    def __len__(self) -> int:
        """Return the number of pending pods; it may include pods that are no longer pending."""
        return sum(len(shape_queue) for shape_queue in self._shape_queues.values())

    def add(self, pod: PodState, reported: bool = False) -> None:  # noqa: FBT001, FBT002 - hot path
        """Add a pending pod, unless kube-scheduler chooses its node or it has scheduling gates.

        `reported`: the ledger already has a refusal of the pod by another scheduler."""
        about = pod.submitted
        if about.chooser or about.gates:
            return
        if pod.backoff is not None and pod.backoff.until > self.now:
            heappush(self._held_back, (pod.backoff.until, pod.uid))
            return
        gang = about.group
        key = gang_key(gang) if gang else queue_key(self._state, pod)
        shape_queue: ShapeQueue | None = self._shape_queues.get(key)
        if shape_queue is None:
            named = gang or about.queue
            queue = queue_of(self._state, pod) if named else DEFAULT_QUEUE
            shape_queue = self._shape_queues[key] = ShapeQueue(key, gang, queue)
        shape_queue.add(self._state, turn_of(pod), reported)
        if not shape_queue.unschedulable:
            self._enqueue(shape_queue)
        elif pod.uid in self._state.nominated and not awaited(self._state, pod.uid):
            self.wake(shape_queue)  # room was made on a node that is kept from similar pods
        elif self._state.reserved is not None and about.deadline_s:
            self.wake(shape_queue)  # it may end before those for which nodes are reserved start
        else:
            self.to_report[key] = None

    @property
    def held_until(self) -> int:
        """Return when the first backoff ends, in microseconds since 1970; 0 if no pod backs off."""
        return self._held_back[0][0] if self._held_back else 0

    def due(self) -> list[PodState]:
        """Remove and return the pods whose backoff has ended.

        A gang's pods are due only when every backoff in the gang has ended."""
        found: list[PodState] = []
        while self._held_back and self._held_back[0][0] <= self.now:
            pod = self._state.pods.get(heappop(self._held_back)[1])
            if pod is None or pod.phase is not PENDING or pod.backoff is None:
                continue
            group = self._state.groups.get(pod.submitted.group) if pod.submitted.group else None
            gang = group.pods.values() if group is not None else (pod,)
            pauses = [each.backoff.until for each in gang if each.phase is PENDING and each.backoff]
            latest = max(pauses)
            if latest > self.now:
                heappush(self._held_back, (latest, pod.uid))
            else:
                found.append(pod)
        return found

    def leave(self, pod: PodState) -> None:
        """Remove a pod, at any position, from its shape queue."""
        for key in keys_of(pod):
            shape_queue: ShapeQueue | None = self._shape_queues.get(key)
            if shape_queue is not None:
                shape_queue.leave(turn_of(pod))
                if not len(shape_queue):
                    del self._shape_queues[key]

    def mark_unschedulable(self, shape_queue: ShapeQueue, reasons: Reasons) -> None:
        """Record that the first pod fits nowhere; skip its shape queue until `wake` is called."""
        shape_queue.mark_unschedulable(self._state, reasons)
        if shape_queue.fresh and not reasons.silent:
            self.to_report[shape_queue.key] = None

    def move(self, shape_queue: ShapeQueue, pod: PodState, key: bytes) -> ShapeQueue:
        """Move the first pod to the shape queue of `key`, which is returned; wake its old one."""
        shape_queue.remove({pod.uid})
        self.wake(shape_queue)
        other = self._shape_queues.get(key)
        if other is None:
            other = self._shape_queues[key] = ShapeQueue(key, queue=shape_queue.queue)
        other.add(self._state, turn_of(pod), False)  # noqa: FBT003 - as above
        if other.unschedulable:
            self.to_report[key] = None
        return other

    def before(self, shape_queue: ShapeQueue) -> PodState | None:
        """Return the refused pod ahead of this shape queue if their queue is `fifo`, else None."""
        queue = self._state.queues.get(shape_queue.queue)
        if queue is None or not queue.fifo:
            return None
        turns = [
            turn
            for each in self._shape_queues.values()
            if each.queue == shape_queue.queue and each.unschedulable
            if (turn := each.place(self._state)) is not None
        ]
        first, own = min(turns, default=None), shape_queue.place(self._state)
        if first is None or own is None or first > own:
            return None
        return self._state.pods[first.uid]

    def with_unreported(self) -> list[ShapeQueue]:
        """Return the unschedulable shape queues whose pods have refusals that the ledger lacks."""
        found = map(self._shape_queues.get, self.to_report)
        return [each for each in found if each is not None and each.tells]

    def unreported(self) -> Iterator[tuple[PodState, Reasons]]:
        """Yield pods of unschedulable shape queues whose refusal the ledger lacks, with reasons."""
        for key in list(self.to_report):
            shape_queue = self._shape_queues.get(key)
            while shape_queue is not None and shape_queue.tells and shape_queue.fresh:
                turn, _ = shape_queue.fresh.popitem()
                if still_waits(self._state, turn) and shape_queue.reasons is not None:
                    yield self._state.pods[turn.uid], shape_queue.reasons
            del self.to_report[key]

    def drop_idle(self) -> None:
        """Forget the queues that have no schedulable pod, so that `contested` is exact."""
        for name in list(self._orders):
            self._order = self._orders[name]
            if self.next_shape_queue() is None:
                del self._orders[name]
        self.contested = len(self._orders) > 1
        self._order = next(iter(self._orders.values()), [])

    def choose(self) -> None:
        """Choose the next queue: the one with the lowest turn; the first name wins a tie."""
        while self.contested:
            name = min(self._orders, key=lambda each: (self._turn_of_queue(each), each))
            self._order = self._orders[name]
            if self.next_shape_queue() is not None:
                return
            del self._orders[name]
            self.contested = len(self._orders) > 1
            self._order = next(iter(self._orders.values()))

    def next_shape_queue(self) -> ShapeQueue | None:
        """Return the shape queue whose first pod is next; None if no queue is schedulable."""
        order = self._order
        while order:
            turn, key = order[0]
            shape_queue: ShapeQueue | None = self._shape_queues.get(key)
            if shape_queue is None or shape_queue.queued != turn:
                heappop(order)  # the shape queue has another entry, or is gone
                continue
            state = self._state
            place = shape_queue.place(state) if shape_queue.gang else shape_queue.head(state)
            if place == turn and not shape_queue.unschedulable:
                return shape_queue
            heappop(order)
            shape_queue.queued = None
            if place is None and not shape_queue.unschedulable:
                del self._shape_queues[key]
            elif not shape_queue.unschedulable:
                self._enqueue(shape_queue)
        return None

    def unschedulable(self, keys: Iterable[bytes] | None = None) -> list[ShapeQueue]:
        """Return the unschedulable shape queues, optionally only those of `keys`, sorted by key."""
        found = []
        for key in sorted(self._shape_queues if keys is None else keys):
            shape_queue = self._shape_queues.get(key)
            if shape_queue is not None and shape_queue.unschedulable:
                if shape_queue.head(self._state) is None:
                    del self._shape_queues[key]
                else:
                    found.append(shape_queue)
        return found

    def of_gang(self, gang: str) -> ShapeQueue | None:
        """Return the shape queue of a gang that has pending pods, or None."""
        shape_queue = self._shape_queues.get(gang_key(gang))
        return shape_queue if shape_queue is not None and shape_queue.head(self._state) else None

    def wake_gang(self, gang: str) -> None:
        """Make a gang's shape queue schedulable, also after the gang moved to another queue."""
        shape_queue = self._shape_queues.get(gang_key(gang))
        head = None if shape_queue is None else shape_queue.head(self._state)
        if shape_queue is None or head is None:
            return
        queue = queue_of(self._state, self._state.pods[head.uid])
        if queue != shape_queue.queue:
            order = self._orders.get(shape_queue.queue, [])
            order[:] = [entry for entry in order if entry[1] != shape_queue.key]
            heapify(order)
            shape_queue.queue, shape_queue.queued = queue, None
        self.wake(shape_queue)

    def wake(self, shape_queue: ShapeQueue) -> None:
        """Make this shape queue schedulable again."""
        shape_queue.reasons = None
        self._enqueue(shape_queue)

    def _enqueue(self, shape_queue: ShapeQueue) -> None:
        # Add the shape queue to the order; its entry of another place becomes invalid.
        state = self._state
        place = shape_queue.place(state) if shape_queue.gang else shape_queue.head(state)
        if place is not None and shape_queue.queued != place:
            shape_queue.queued = place
            order = self._orders.get(shape_queue.queue)
            if order is None:  # replace an exhausted order with this queue's own
                if not self.contested and not self._order:
                    self._orders.clear()
                order = self._orders[shape_queue.queue] = self._order = []
                self.contested = len(self._orders) > 1
            heappush(order, (place, shape_queue.key))
