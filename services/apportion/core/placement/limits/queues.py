"""What each queue holds, and so what it may still take and whose turn it is.

Where there is one queue and no limit, nothing is counted at all. A queue is the scheduler's rule
and no invariant of the ledger: the fold takes what goes beyond it.
"""

from collections import Counter
from collections.abc import Sequence

from apportion.core.ledger.belonging import queue_of
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.limits import quotas
from apportion.core.placement.limits.quotas import Amount, Amounts, LimitExceeded, Quota
from apportion.core.placement.limits.usage import NOTHING, OFFERS, Holdings
from apportion.core.workloads.dialects.dialect import CORES, DEVICE_MEMORY, SHARES
from apportion_schemas import (
    ConfigurationChanged,
    Device,
    PodGroupObserved,
    PodPlaced,
    QueueObserved,
    Shape,
    Share,
)


class Queues(Holdings):
    """The amounts that every queue holds, from when one has a limit or somebody asks for shares."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.active = False
        self._quotas: dict[str, Quota] = {}
        self._totals = _Totals(state)
        self._shares: dict[str, float] = {}
        for queue in state.queues.values():
            self._learn(queue)

    def account_of(self, pod: PodState) -> str:
        """The queue of the pod."""
        return queue_of(self._state, pod)

    def amounts_of(self, shape: Shape, shares: tuple[Share, ...], node: NodeState) -> Amounts:
        """What a pod takes of the host and of devices: a capability may limit either."""
        return quotas.of_shares(shape, shares, node)

    def moved(self, name: str) -> None:
        """Its share is to be worked out anew."""
        self._shares.pop(name, None)

    def activate(self) -> None:
        """Count what queues hold, from now on."""
        if not self.active:
            self.active = True
            self._uncounted = list(self._state.pods.values())

    def count_offers(self, nodes: int) -> bool:
        """Count what up to so many nodes offer, which shares are parts of; whether all are."""
        return self._totals.count(nodes)

    def observe(self, change: Change) -> bool:
        """Take note of what the fold changed; whether a queue may now hold more than before."""
        data = change.data
        freed = isinstance(data, QueueObserved)
        if isinstance(data, QueueObserved):
            self._learn(data)
        if not self.active:
            return False
        if isinstance(data, ConfigurationChanged) or (change.refused and type(data) is PodPlaced):
            self.note_freed()
            freed = True
        if isinstance(data, ConfigurationChanged):
            for queue in self._state.queues.values():
                self._learn(queue)
        if change.node is not None and isinstance(data, OFFERS):
            self._totals.touch(change.node)
        if isinstance(data, PodGroupObserved):
            for pod in self._state.groups[data.group].pods.values():
                freed |= self.note(pod)
        return self.follow(change) or freed

    def exceeded(
        self, pod: PodState, node: str = "", shares: Sequence[Share] = ()
    ) -> LimitExceeded | None:
        """Why the queue may not take the pod with these shares, or, with none named, anywhere."""
        name, shape = queue_of(self._state, pod), pod.submitted.shape
        quota = self._quotas.get(name)
        if quota is None:
            return None
        self.count_all()
        more = quotas.at_least(shape)
        if node:
            more = quotas.of_shares(shape, shares, self._state.nodes[node])
        return quota.exceeded(self._held.get(name, NOTHING), more)

    def kinds_beyond(
        self, pod: PodState, asks: Sequence[AskColumns], kinds: Sequence[Device]
    ) -> frozenset[int]:
        """The kinds of device of which one of the asks alone is more than the queue may take."""
        name = queue_of(self._state, pod)
        quota = self._quotas.get(name)
        if quota is None:
            return frozenset()
        self.count_all()
        held = self._held.get(name, NOTHING)
        return quotas.kinds_beyond(asks, kinds, lambda more: quota.exceeded(held, more) is not None)

    def share(self, name: str) -> float:
        """The part of the cluster that the queue holds, of what it holds most, over its weight."""
        self.activate()
        self.count_all()
        if self._totals.refresh():
            self._shares.clear()
        found = self._shares.get(name)
        if found is None:
            held, observed = self._held.get(name, NOTHING), self._state.queues.get(name)
            part = self._totals.dominant(held)
            found = self._shares[name] = part / max(observed.weight if observed else 1, 1)
        return found

    def _learn(self, queue: QueueObserved) -> None:
        quota = Quota(queue, self._state.configuration)
        self._quotas.pop(queue.queue, None)
        self._shares.pop(queue.queue, None)
        self._freed[queue.queue] += 1
        if quota.limits:
            self._quotas[queue.queue] = quota
            self.activate()


class _Totals:
    """What the cluster offers; a node that is told of anew is counted anew."""

    def __init__(self, state: State) -> None:
        self._sum: Counter[Amount] = Counter()
        self._of: dict[str, Counter[Amount]] = {}
        self._touched: dict[str, NodeState] = {}
        self._state: State | None = state  # until its nodes stand to be counted
        self._moved = False

    def touch(self, node: NodeState) -> None:
        """The node may offer something else."""
        self._touched[node.name] = node

    def refresh(self) -> bool:
        """Count what was touched; whether anything was, since the last time."""
        self.count(0)
        self.count(len(self._touched))
        moved, self._moved = self._moved, False
        return moved

    def count(self, nodes: int) -> bool:
        """Count up to so many of the nodes that were touched; whether all are."""
        if self._state is not None:
            self._touched = dict(self._state.nodes)
            self._state = None
        for _ in range(min(nodes, len(self._touched))):
            name, node = self._touched.popitem()
            self._sum.subtract(self._of.get(name, {}))
            offered = self._of[name] = Counter()
            if node.present:
                offered[quotas.CPU] = node.host.cpu_milli
                offered[quotas.MEMORY] = node.host.memory_mib
            for device in (each.device for each in node.devices if node.present and each.present):
                offered[SHARES, device.family] += device.slots
                offered[DEVICE_MEMORY, device.family] += device.memory_mib
                offered[CORES, device.family] += device.cores
            self._sum.update(offered)
            self._moved = True
        return not self._touched

    def dominant(self, held: Amounts) -> float:
        """The greatest part that this is of what the cluster offers."""
        parts = (held.get(amount, 0) / much for amount, much in self._sum.items() if much > 0)
        return max(parts, default=0.0)
