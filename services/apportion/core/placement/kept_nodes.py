"""Find the nodes that are kept from a pod: those nominated or reserved for other pods.

Reserved nodes have a promised start. A pod may use them if it certainly ends before, or if there is
room for it next to the pods for which they are reserved. Invariant: the result follows from the
state and the time."""

from collections.abc import Collection
from typing import Final

from apportion.core.configuration.checks import reserve_after_s
from apportion.core.ledger.fold import shares_of
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.state import PENDING, NodeState, PodState, State, queue_of
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.queueing.queue import NO_CLOCK
from apportion.core.placement.queueing.shape_queue import ShapeQueue, Turn, still_waits

MARGIN_S: Final = 60  # between the deadline of a pod and the promised start
OVERDUE: Final = 15 * 60 * SECOND  # how long a pod may take to end after its deadline


class KeptNodes:
    """The nominated and reserved nodes of one state. Call `follow` after a reservation changed."""

    def __init__(self, state: State, limits: Limits) -> None:
        self._state = state
        self._limits = limits
        self.now = NO_CLOCK  # microseconds since 1970
        self.follow()

    def follow(self) -> None:
        """Read the reservation, and after how many microseconds pods get one (0 for never)."""
        reserved = self._state.reserved
        self.after = reserve_after_s(self._state.configuration.queues) * SECOND
        self.starts = micros_of(reserved.starts) or 0 if reserved is not None else 0

    def all(self) -> dict[str, str]:
        """Return the kept node of each pod that has one, by uid."""
        reserved = self._state.reserved
        found = {} if reserved is None else {each.pod: each.node for each in reserved.kept}
        return found | self._state.nominated

    def of(self, pod: PodState) -> tuple[str, ...]:
        """Return the nodes kept from this pod, for others of at least equal priority.

        Pods of the same gang do not count. If a queue has `deserved`, include the nodes kept for
        lower-priority pods of other queues. If no pod is being evicted from a node, omit the node
        if it has room for the pod as well."""
        found: dict[str, dict[str, PodState]] = {}
        nominated = self._state.nominated
        kept = nominated if self.in_time(pod) else self.all()
        for uid, node in kept.items():
            other = self._state.pods.get(uid)
            if other is None or other is pod or other.phase is not PENDING:
                continue
            if not self.yields(pod, other):
                continue
            if not other.submitted.group or other.submitted.group != pod.submitted.group:
                found.setdefault(node, {})[uid] = other
        if not found:
            return ()
        leaving = {each.node for each in self._state.evictions.values()}
        return tuple(
            sorted(
                name
                for name, others in found.items()
                if name in leaving or not self._has_both(name, others, pod)
            )
        )

    def yields(self, pod: PodState, other: PodState) -> bool:
        """Return True if the pod leaves alone the nodes that are kept for `other`."""
        if other.submitted.priority >= pod.submitted.priority:
            return True
        state = self._state
        return self._limits.lends and queue_of(state, other) != queue_of(state, pod)

    def in_time(self, pod: PodState) -> bool:
        """Return True if no node is reserved, or the pod certainly ends before the start."""
        if self._state.reserved is None:
            return True
        deadline_s, now = pod.submitted.deadline_s, self.now
        if now == NO_CLOCK:  # in a plan, for example
            now = micros_of(pod.submitted_time) or NO_CLOCK
        return bool(deadline_s) and now + (deadline_s + MARGIN_S) * SECOND <= self.starts

    def first_in_time(self, shape_queue: ShapeQueue) -> PodState | None:
        """Return the first pending pod that ends before the promised start, or None."""
        found: list[Turn] = []
        for turn in shape_queue.waiting if self.starts else ():
            pod = self._state.pods.get(turn.uid)
            if pod is not None and shape_queue.has(turn) and still_waits(self._state, turn):
                found += [turn] if self.in_time(pod) else []
        return self._state.pods[min(found).uid] if found else None

    def end_of(self, pod: PodState) -> int:
        """Return when a running pod ends at the latest, in microseconds since 1970.

        Return 0 if that is unknown, because it has no deadline or outlived it."""
        placed, deadline_s = micros_of(pod.placed_time), pod.submitted.deadline_s
        if placed is None or pod.placement is None or not deadline_s:
            return 0
        end = placed + deadline_s * SECOND
        return 0 if end + OVERDUE < self.now < NO_CLOCK else end

    def _has_both(self, name: str, others: dict[str, PodState], pod: PodState) -> bool:
        # Whether the node surely has room for the pod next to those for which it is kept.
        node = self._state.nodes.get(name)
        if node is None:
            return False
        shapes = [each.submitted.shape for each in (*others.values(), pod)]
        idle = {held.device.id for held in node.devices if held.open and held.idle}
        if sum(ask.count for ask in pod.submitted.shape.asks) > len(idle):
            return False
        starts = 0 if self._state.nominated.keys() & others else self.starts
        leaving = [each for each in node.pods.values() if 0 < self.end_of(each) <= starts]
        if leaving:
            idle |= _freed(node, leaving)
        needs = [each.submitted.shape.node for each in leaving]
        cpu = node.host.cpu_milli - node.cpu_used_milli + sum(need.cpu_milli for need in needs)
        memory = node.host.memory_mib - node.memory_used_mib
        memory += sum(need.memory_mib for need in needs)
        return (
            sum(ask.count for shape in shapes for ask in shape.asks) <= len(idle)
            and sum(shape.node.cpu_milli for shape in shapes) <= cpu
            and sum(shape.node.memory_mib for shape in shapes) <= memory
        )


def _freed(node: NodeState, leaving: Collection[PodState]) -> set[str]:
    # The open devices that these pods use alone.
    stay = [pod for pod in node.pods.values() if pod not in leaving]
    used = {share.device for pod in stay for share in shares_of(pod)}
    freed = {share.device for pod in leaving for share in shares_of(pod)} - used
    return {each for each in freed if node.by_id[each].open}
