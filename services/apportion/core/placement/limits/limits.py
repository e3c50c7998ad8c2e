"""Enforce queue and namespace limits, which refuse a pod although nodes have room.

A limit is a rule of the scheduler, not an invariant of the ledger: the fold accepts more."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from apportion.core.devices.demand import Demand
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import NodeState, Placement, PodState, State, queue_of
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.index.device_kinds import FIRST_KIND
from apportion.core.placement.limits import quotas
from apportion.core.placement.limits.quotas import (
    Amount,
    Amounts,
    LimitExceeded,
    NamespaceQuota,
    Quota,
)
from apportion.core.workloads.dialects.dialect import CORES, DEVICE_MEMORY, SHARES
from apportion_schemas import (
    ConfigurationChanged,
    Device,
    DevicesRegistered,
    NodeGone,
    NodeObserved,
    NodeReported,
    PodChanged,
    PodGroupObserved,
    PodPlaced,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    Shape,
    Share,
)

OFFERS: Final = (NodeReported, NodeObserved, DevicesRegistered, NodeGone)
NOTHING: Final[Amounts] = {}
NEVER_SEEN: Final = -1  # compares as changed: the limit may allow more now, whatever happened

Limit = Quota | NamespaceQuota
Taken = Callable[[Shape, Sequence[Share], NodeState], Amounts]


class Holdings:
    """The allocated amounts and the limits of each account, which is a queue or a namespace.

    Invariant: the amounts of an account are the sum over its placed pods."""

    def __init__(self, state: State, taken: Taken, least: Callable[[Shape], Amounts]) -> None:
        self._state = state
        self._taken, self._least = taken, least  # by a pod with its shares, and on any node
        self._limits: dict[str, tuple[Limit, ...]] = {}
        self._at: dict[str, tuple[str, Placement, Amounts, int]] = {}
        self._ended: Counter[str] = Counter()  # how often an account was dropped
        self._uncounted: list[PodState] = []
        self._held: dict[str, Counter[Amount]] = {}
        self._freed: Counter[str] = Counter()
        self._epoch = 0

    def account_of(self, pod: PodState) -> str:
        """Return the name of the pod's account; each subclass defines it."""
        raise NotImplementedError

    def note(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
        """Count a placed pod, or stop counting a released one. Return True if room was freed.

        `undone`: the placement was only assumed. `again`: the share amounts may have changed."""
        before, placed = self._at.get(pod.uid), pod.placement
        if before is not None and before[3] != self._ended[before[0]]:
            before = None
            del self._at[pod.uid]
        if before is None and placed is None:
            return False
        name = self.account_of(pod)
        if before is not None and not again and before[1] is placed and before[0] == name:
            return False
        if before is not None:
            del self._at[pod.uid]
            self._held[before[0]].subtract(before[2])
            self.moved(before[0])
        if placed is not None:
            node = self._state.nodes[placed.node]
            taken = self._taken(pod.submitted.shape, placed.shares, node)
            self._at[pod.uid] = (name, placed, taken, self._ended[name])
            self._held.setdefault(name, Counter()).update(taken)
            self.moved(name)
        if before is None or undone:
            return False
        self._freed[before[0]] += 1
        return True

    def moved(self, name: str) -> None:
        """Called when an account's amounts change; subclasses may drop what they cached."""

    def follow(self, change: Change) -> bool:
        """Count again the pods that the event concerns. Return True if an account has more room."""
        freed = False
        if change.node is not None and type(change.data) in OFFERS:
            for pod in change.node.pods.values():
                freed |= self.note(pod, again=True)
        if change.pod is not None:
            freed |= self.note(change.pod, again=type(change.data) is PodChanged)
        return freed

    def count(self, pods: int) -> bool:
        """Count at most `pods` of the uncounted pods. Return True if none is left."""
        for _ in range(min(pods, len(self._uncounted))):
            pod = self._uncounted.pop()
            # a later pod may have the uid of a deleted one
            if self._state.pods.get(pod.uid) is pod:
                self.note(pod)
        return not self._uncounted

    def count_all(self) -> None:
        """Count all pods that are not counted yet."""
        self.count(len(self._uncounted))

    def note_freed(self) -> None:
        """Mark every account as having room, because an assumed placement was undone."""
        self._epoch += 1

    def exceeded(
        self, pod: PodState, node: str = "", shares: Sequence[Share] = ()
    ) -> LimitExceeded | None:
        """Return the limit that the pod exceeds with these shares on `node`, or None.

        Without `node`, return a limit that it exceeds wherever it is placed."""
        name, shape = self.account_of(pod), pod.submitted.shape
        limits = self._limits.get(name)
        if limits is None:
            return None
        self.count_all()
        more = self._taken(shape, shares, self._state.nodes[node]) if node else self._least(shape)
        return _exceeded(limits, self._held.get(name, NOTHING), more)

    def kinds_beyond(
        self, pod: PodState, asks: Sequence[AskColumns], kinds: Sequence[Device]
    ) -> frozenset[int]:
        """Return the kinds of device on which the pod would exceed a limit of its account."""
        name = self.account_of(pod)
        limits = self._limits.get(name)
        if limits is None:
            return frozenset()
        self.count_all()
        held, found = self._held.get(name, NOTHING), set()
        for kind, device in enumerate(kinds, FIRST_KIND):
            for ask in asks:
                wanted = ask.demands[kind]
                if isinstance(wanted, Demand):
                    more = quotas.of_demand(wanted, device, ask.ask.count)
                    if _exceeded(limits, held, more) is not None:
                        found.add(kind)
        return frozenset(found)

    def seen(self, pod: PodState) -> int:
        """Return a number that changes when the pod's queue or namespace may have more room."""
        return self._epoch + self._freed[self.account_of(pod)]

    def held(self, name: str) -> Amounts:
        """Return the amounts that the account has allocated, without zeros."""
        self.count_all()
        return {amount: much for amount, much in self._held.get(name, NOTHING).items() if much}


def _exceeded(limits: tuple[Limit, ...], held: Amounts, more: Amounts) -> LimitExceeded | None:
    for limit in limits:
        exceeded = limit.exceeded(held, more)
        if exceeded is not None:
            return exceeded
    return None


class Queues(Holdings):
    """The amounts of hosts and devices that the pods of each queue have allocated."""

    def __init__(self, state: State) -> None:
        super().__init__(state, quotas.of_shares, quotas.at_least)
        self.active = False
        self._totals = _Totals(state)
        self._shares: dict[str, float] = {}
        for queue in state.queues.values():
            self._learn(queue)

    def account_of(self, pod: PodState) -> str:
        """Return the queue of the pod."""
        return queue_of(self._state, pod)

    def moved(self, name: str) -> None:
        """Drop the cached share of the queue, because its amounts changed."""
        self._shares.pop(name, None)

    def activate(self) -> None:
        """Start counting what queues have allocated."""
        if not self.active:
            self.active = True
            self._uncounted = list(self._state.pods.values())

    def count_offers(self, nodes: int) -> bool:
        """Add up the capacity of at most `nodes` more nodes. Return True if none is left."""
        return self._totals.count(nodes)

    def observe(self, change: Change) -> bool:
        """Apply the fold's change. Return True if a queue may have more room."""
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
            self._totals.touched[change.node.name] = change.node
        if isinstance(data, PodGroupObserved):
            for pod in self._state.groups[data.group].pods.values():
                freed |= self.note(pod)
        return self.follow(change) or freed

    def share(self, name: str) -> float:
        """Return the queue's dominant share of the cluster, divided by its weight."""
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
        self._limits.pop(queue.queue, None)
        self._shares.pop(queue.queue, None)
        self._freed[queue.queue] += 1
        if quota.limits:
            self._limits[queue.queue] = (quota,)
            self.activate()


class _Totals:
    """The capacity of the cluster, updated as nodes change."""

    def __init__(self, state: State) -> None:
        self._sum: Counter[Amount] = Counter()
        self._of: dict[str, Counter[Amount]] = {}
        self.touched: dict[str, NodeState] = {}
        self._state: State | None = state  # until its nodes are queued to be counted
        self._moved = False

    def refresh(self) -> bool:
        """Recount all changed nodes. Return True if the totals changed since the last call."""
        self.count(0)
        self.count(len(self.touched))
        moved, self._moved = self._moved, False
        return moved

    def count(self, nodes: int) -> bool:
        """Recount at most `nodes` changed nodes. Return True if none is left."""
        if self._state is not None:
            self.touched = dict(self._state.nodes)
            self._state = None
        for _ in range(min(nodes, len(self.touched))):
            name, node = self.touched.popitem()
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
        return not self.touched

    def dominant(self, held: Amounts) -> float:
        """Return the largest of these amounts as a fraction of the cluster's total."""
        parts = (held.get(amount, 0) / much for amount, much in self._sum.items() if much > 0)
        return max(parts, default=0.0)


class Namespaces(Holdings):
    """The amounts allocated in each namespace that has a device quota."""

    def __init__(self, state: State) -> None:
        super().__init__(state, quotas.of_devices, quotas.devices_at_least)
        self._learn(*state.quotas)

    @property
    def active(self) -> bool:
        """Return True if any namespace has a device quota."""
        return bool(self._limits)

    def account_of(self, pod: PodState) -> str:
        """Return the namespace of the pod."""
        return pod.submitted.namespace

    def note(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
        """Count a placed pod, or stop counting a released one, if a quota limits its namespace."""
        if pod.submitted.namespace not in self._limits:
            self._at.pop(pod.uid, None)
            return False
        return super().note(pod, undone=undone, again=again)

    def observe(self, change: Change) -> bool:
        """Apply the fold's change. Return True if a namespace may have more room."""
        data, kind, freed = change.data, type(change.data), False
        if kind is QuotaObserved or kind is QuotaGone:
            self._learn(data.namespace)
            freed = True
        elif kind is ConfigurationChanged:
            self._learn(*self._state.quotas)
            freed = True
        elif change.refused and kind is PodPlaced:
            self.note_freed()
            freed = self.active
        return (self.active and self.follow(change)) or freed

    def _learn(self, *namespaces: str) -> None:
        # Read the quotas of these namespaces, and count pods of newly limited ones.
        others = False
        for name in namespaces:
            known = self._state.quotas.get(name, {})
            read = [
                NamespaceQuota(known[each], self._state.configuration) for each in sorted(known)
            ]
            limits = tuple(each for each in read if each.limits)
            self._freed[name] += 1
            others |= bool(limits) != (name in self._limits)
            if limits:
                self._limits[name] = limits
            elif self._limits.pop(name, None) is not None:
                self._held.pop(name, None)
                self._ended[name] += 1
        if others:
            self._uncounted = list(self._state.pods.values())


class Kept(NamedTuple):
    """A limit that refused a pod, on every node or on some kinds of device."""

    exceeded: LimitExceeded
    without: frozenset[int] | None  # device kinds; None is every node
    seen: int


class Limits:
    """All queue and namespace limits of one state; a pod must stay within each that applies."""

    def __init__(self, state: State) -> None:
        self._queues = Queues(state)
        self._namespaces = Namespaces(state)
        self.active = self._queues.active or self._namespaces.active

    def activate(self) -> None:
        """Start counting what each queue has allocated, because the order of pods depends on it."""
        self._queues.activate()
        self.active = True

    def count(self, most: int, *, shares: bool = False) -> bool:
        """Count at most `most` pods, and with `shares` also nodes. Return True if none is left."""
        counted = self._queues.count(most) and self._namespaces.count(most)
        return counted and not (shares and not self._queues.count_offers(most))

    def share(self, queue: str) -> float:
        """Return the queue's share of the cluster, divided by its weight."""
        self.active = True
        return self._queues.share(queue)

    def observe(self, change: Change) -> bool:
        """Apply the fold's change. Return True if a limit may allow more than before."""
        freed = self._queues.observe(change)
        freed |= self._namespaces.observe(change)
        self.active = self._queues.active or self._namespaces.active
        return freed

    def note(self, pod: PodState, *, undone: bool = False) -> None:
        """Count a placed pod, or stop counting a released one."""
        if self._queues.active:
            self._queues.note(pod, undone=undone)
        self._namespaces.note(pod, undone=undone)

    def note_freed(self) -> None:
        """Mark all limits as having room, because an assumed placement was undone."""
        self._queues.note_freed()
        self._namespaces.note_freed()

    def exceeded(
        self, pod: PodState, node: str = "", shares: Sequence[Share] = ()
    ) -> LimitExceeded | None:
        """Return the limit that the pod exceeds with these shares on `node`, or None.

        Without `node`, return a limit that it exceeds wherever it is placed."""
        found = self._queues.exceeded(pod, node, shares)
        return found or self._namespaces.exceeded(pod, node, shares)

    def kinds_beyond(
        self, pod: PodState, asks: Sequence[AskColumns], kinds: Sequence[Device]
    ) -> frozenset[int]:
        """Return the kinds of device on which the pod would exceed a limit."""
        of_namespace = self._namespaces.kinds_beyond(pod, asks, kinds)
        return self._queues.kinds_beyond(pod, asks, kinds) | of_namespace

    def seen(self, pod: PodState) -> int:
        """Return a number that changes when a limit may admit more of the pod's requests."""
        return self._queues.seen(pod) + self._namespaces.seen(pod)
