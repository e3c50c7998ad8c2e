"""Track all pending pods, and queue those of our shard.

Invariant: the queue has exactly the pending pods of our shard."""

from collections.abc import Iterable, Iterator
from typing import Final

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PENDING, PodState, State
from apportion.core.placement.limits.limits import LIMITS_SET, Limits
from apportion.core.placement.queueing.queue import PendingQueue
from apportion.core.placement.queueing.shape_queue import is_pending, turn_of
from apportion.core.placement.queueing.sharding import WHOLE, Shard, key_of, part_of
from apportion_schemas import (
    PlacementVoided,
    PodChanged,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodResized,
    PodSubmitted,
    QuotaGone,
    QuotaObserved,
)
from apportion_schemas.quantities import Payload

# events that may change which scheduler decides for a pod
_MOVE_SHARDS: Final = LIMITS_SET | {PodGroupObserved}


class Waiting:
    """All pending pods, of our shard and of others."""

    def __init__(self, state: State, queue: PendingQueue, limits: Limits) -> None:
        self._state = state
        self.queue = queue  # pods of our shard
        self._limits = limits
        self._owners = limits.owners
        self._part: dict[str, int] = {}
        self._pods: dict[int, dict[str, None]] = {}
        self._others: dict[str, None] = {}
        self._limited = set(state.quotas)
        self.shard = WHOLE
        for pod in self._pending():
            self.queue.add(pod)

    def observe(self, change: Change) -> None:
        """Apply the fold's change: add or remove the pods that it concerns."""
        data, pod = change.data, change.pod
        kind = type(data)
        if kind is PodSubmitted and pod is not None:
            self.add(pod)
        elif kind is PodPlaced or kind is PlacementVoided:
            pod = pod or self._state.pods.get(data.pod)
            if pod is not None and pod.phase is PENDING:
                self.come_back(pod)
            elif pod is not None:
                self._forget(data.pod)
        elif kind is PodGone:
            self._forget(data.uid)
            if pod is not None and change.node is None:
                self.queue.leave(pod)
        elif kind is PodChanged or kind is PodResized:
            if pod is not None and change.before is not None:
                self.queue.leave(change.before)  # its shape queue may change with its requirements
                if pod.phase is PENDING:
                    self._forget(pod.uid)
                    self.add(pod)
        elif kind is PodRefused:
            self._others.pop(data.pod, None)
        elif kind in _MOVE_SHARDS:
            self._reshard(data)

    def add(self, pod: PodState) -> None:
        """Add a pending pod, unless another scheduler picks its node or the pod has gates."""
        if pod.submitted.chooser or pod.submitted.gates:
            return
        if self.shard is WHOLE or self._note(pod) in self.shard.parts:
            self.queue.add(pod)
        elif pod.refusal is None:
            self._others[pod.uid] = None

    def come_back(self, pod: PodState) -> None:
        """Queue a pod that is pending again, after removing it from any other shape queue."""
        self.queue.leave(pod)
        self.add(pod)

    def tell_time(self, now: int) -> bool:
        """Queue the pods whose backoff ended by `now`, and retry their gangs. True if any ended."""
        self.queue.now = now
        due = self.queue.due()
        for pod in due:
            self.add(pod)
            if pod.submitted.group:  # refused as incomplete while it lacked this pod
                self.queue.wake_gang(pod.submitted.group)
        return bool(due)

    def _pending(self) -> Iterator[PodState]:
        for pod in sorted(self._state.pods.values(), key=turn_of):
            if is_pending(self._state, pod) and not pod.submitted.chooser:
                yield pod

    def _note(self, pod: PodState) -> int:
        part = self._part.get(pod.uid, -1)
        if part < 0:
            part = self._part[pod.uid] = part_of(self._key_of(pod))
            self._pods.setdefault(part, {})[pod.uid] = None
        return part

    @property
    def others_wait(self) -> bool:
        """Return True if another scheduler has a pending pod that it has not refused yet."""
        return bool(self._others)

    def _forget(self, uid: str) -> None:
        if not self._others and not self._part:
            return
        self._others.pop(uid, None)
        part = self._part.pop(uid, None)
        if part is not None:
            pods = self._pods[part]
            del pods[uid]
            if not pods:
                del self._pods[part]

    def own(self, shard: Shard) -> None:
        """Set our shard: queue the pending pods that belong to it, and remove all others."""
        before, self.shard = self.shard, shard
        if before is WHOLE and shard is not WHOLE:
            for pod in self._pending():
                self._note(pod)
        for part in sorted(before.parts - shard.parts):
            for uid in self._pods.get(part, ()):
                pod = self._state.pods[uid]
                self.queue.leave(pod)
                if pod.refusal is None:
                    self._others[uid] = None
        for part in sorted(shard.parts - before.parts):
            for uid in self._pods.get(part, ()):
                self._others.pop(uid, None)
                pod = self._state.pods[uid]
                self.queue.add(pod, pod.refusal is not None)
        if shard is WHOLE:
            self._part.clear()
            self._pods.clear()

    def owns(self, pod: PodState) -> bool:
        """Return True if the pod belongs to our shard, pending or not."""
        return self.shard is WHOLE or self.shard.owns(self._key_of(pod))

    def _key_of(self, pod: PodState) -> str:
        return key_of(pod, limited=self._limits.owner_key(pod))

    def _reshard(self, data: Payload) -> None:
        # Limits may be others now, or the gang's queue, and so the pods' scheduler.
        if isinstance(data, QuotaObserved | QuotaGone):
            self._regroup(data.namespace)
        owners, before = self._limits.owners, self._owners
        self._owners = owners
        if self.shard is WHOLE:
            return
        if isinstance(data, PodGroupObserved):
            self._move(self._state.groups[data.group].pods)
        elif owners != before:
            self._move(self._part)

    def _move(self, uids: Iterable[str]) -> None:
        for uid in list(uids):
            part, pod = self._part.get(uid), self._state.pods[uid]
            if part is not None and part != part_of(self._key_of(pod)):
                self.queue.leave(pod)
                self._forget(uid)
                self.add(pod)

    def _regroup(self, namespace: str) -> None:
        # While a namespace has a quota, its pods have their own shape queues.
        if (namespace in self._state.quotas) == (namespace in self._limited):
            return
        self._limited ^= {namespace}
        for pod in self._pending():
            if pod.submitted.namespace == namespace:
                self.queue.leave(pod)
                self._forget(pod.uid)
                self.add(pod)
