"""The pods that wait in the whole cluster, by part, and in the queue those that are ours to decide.

Invariant: a pending pod of our shard stands in the queue, and no other does. What a change of the
shard costs follows the number of pods that it moves."""

from collections.abc import Iterator

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PENDING, PodState, State
from apportion.core.placement.queueing.queue import PendingQueue
from apportion.core.placement.queueing.shape_queue import is_pending, turn_of
from apportion.core.placement.queueing.sharding import WHOLE, Shard, key_of, part_of
from apportion_schemas import (
    PlacementVoided,
    PodChanged,
    PodGone,
    PodPlaced,
    PodRefused,
    PodResized,
    PodSubmitted,
    QuotaGone,
    QuotaObserved,
)


class Waiting:
    """Which pods wait, for us or for another scheduler; at first all are ours, in `queue`.

    As long as all are, nobody asks into which part a pod falls."""

    def __init__(self, state: State, queue: PendingQueue) -> None:
        self._state = state
        self.queue = queue
        self._part: dict[str, int] = {}
        self._pods: dict[int, dict[str, None]] = {}
        self._others: dict[str, None] = {}
        self._limited = set(state.quotas)
        self.shard = WHOLE
        for pod in self._pending():
            self.queue.add(pod)

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed."""
        data, pod = change.data, change.pod
        kind = type(data)
        if kind is PodSubmitted:
            if pod is not None:
                self.add(pod)
        elif kind is PodPlaced or kind is PlacementVoided:
            if pod is None:
                pod = self._state.pods.get(data.pod)
            if pod is not None and pod.phase is PENDING:
                self.come_back(pod)
            elif pod is not None:
                self._forget(data.pod)
        elif kind is PodGone:
            self._forget(data.uid)
            if pod is not None and change.node is None:
                self.queue.leave(pod)
        elif kind is PodChanged or kind is PodResized:
            self._change(change)
        elif kind is PodRefused:
            self._others.pop(data.pod, None)
        elif kind is QuotaObserved or kind is QuotaGone:
            self._regroup(data.namespace)

    def add(self, pod: PodState) -> None:
        """The pod waits, or waits again; one whose node somebody else chooses waits for him, and
        one with gates for whoever takes them away."""
        if pod.submitted.chooser or pod.submitted.gates:
            return
        if self.shard is WHOLE or self._note(pod) in self.shard.parts:
            self.queue.add(pod)
        elif pod.refusal is None:
            self._others[pod.uid] = None

    def come_back(self, pod: PodState) -> None:
        """It waits again, for whoever owns it by now.

        It may stand where it stood before still: one that another scheduler placed, as it did when
        it was ours, or its namespace had no quota; one whose refusal was lost, with those that mind
        others. There it leaves."""
        self.queue.leave(pod)
        self.add(pod)

    def tell_time(self, now: int) -> bool:
        """Queue the pods that were held back until `now`, and wake their gangs; True if any was."""
        self.queue.now = now
        due = self.queue.due()
        for pod in due:
            self.add(pod)
            if pod.submitted.group:  # refused as incomplete while it lacked this pod
                self.queue.wake_gang(pod.submitted.group)
        return bool(due)

    def _change(self, change: Change) -> None:
        """What it wants may be another question now, so it is asked in its turn.

        One that another scheduler placed may stand where it stood before still, and may come back.
        """
        pod, before = change.pod, change.before
        if pod is None or before is None:
            return
        self.queue.leave(before)
        if pod.phase is PENDING:
            self._forget(pod.uid)
            self.add(pod)

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
        """Whether pods wait for other schedulers that have not been told that they fit nowhere."""
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
        """Decide for these parts from now on: what became ours waits here, what did not leaves."""
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
        """Whether the pod is ours, whatever it does."""
        return self.shard is WHOLE or self.shard.owns(self._key_of(pod))

    def _key_of(self, pod: PodState) -> str:
        return key_of(pod, limited=pod.submitted.namespace in self._state.quotas)

    def _regroup(self, namespace: str) -> None:
        """While it has a quota its pods have shape queues of their own, and one scheduler."""
        if (namespace in self._state.quotas) == (namespace in self._limited):
            return
        self._limited ^= {namespace}
        for pod in self._pending():
            if pod.submitted.namespace == namespace:
                self.queue.leave(pod)
                self._forget(pod.uid)
                self.add(pod)
