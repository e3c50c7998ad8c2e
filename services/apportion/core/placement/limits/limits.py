"""What keeps a pod out though nodes have room: the limits of its queue and of its namespace.

Where there is one queue and no limit, nothing is counted at all. A limit is the scheduler's rule
and no invariant of the ledger: the fold takes what goes beyond it. Several schedulers each keep to
the limits as far as they have read the ledger; what keeps them from going beyond together:
`queueing.sharding`."""

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

OFFERS: Final = (NodeReported, NodeObserved, NodeGone)
NOTHING: Final[Amounts] = {}
NEVER_SEEN: Final = -1
"""What tells of a limit that it may allow more now, whatever has happened."""

Limit = Quota | NamespaceQuota
Taken = Callable[[Shape, Sequence[Share], NodeState], Amounts]


class Holdings:
    """The amounts of each account, and what it may hold; which a pod's is, a subclass says.

    Kept up by the pod: one that comes or goes changes the amounts of its own account. When a limit
    is set where there was none, all pods stand to be counted: `count` does it in parts, for a
    caller that cannot wait for all at once, and one that asks before it is done has it done.

    A derived structure: it can be dropped and made again from the `State`. Invariant: after `note`
    of every pod that was placed or left, an account holds what a walk over its placed pods would
    give."""

    def __init__(self, state: State, taken: Taken, least: Callable[[Shape], Amounts]) -> None:
        self._state = state
        self._taken, self._least = taken, least  # by a pod with its shares, and on any node
        self._limits: dict[str, tuple[Limit, ...]] = {}
        self._at: dict[str, tuple[str, Placement, Amounts, int]] = {}
        self._ended: Counter[str] = Counter()  # how often an account was forgotten
        self._uncounted: list[PodState] = []
        self._held: dict[str, Counter[Amount]] = {}
        self._freed: Counter[str] = Counter()
        self._epoch = 0

    def account_of(self, pod: PodState) -> str:
        """The account of a pod."""
        raise NotImplementedError

    def note(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
        """The pod was placed or taken away; whether its account may hold more than before.

        `undone`: nobody has been told no because of it. `again`: what its shares come to may be
        otherwise than it was."""
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
        """What the account holds has changed."""

    def follow(self, change: Change) -> bool:
        """Note the pods of which the event says more; whether an account may hold more."""
        freed = False
        if change.node is not None and type(change.data) in OFFERS:
            for pod in change.node.pods.values():
                freed |= self.note(pod, again=True)
        if change.pod is not None:
            freed |= self.note(change.pod, again=type(change.data) is PodChanged)
        return freed

    def count(self, pods: int) -> bool:
        """Count up to so many of those that stand to be counted; whether all are."""
        for _ in range(min(pods, len(self._uncounted))):
            pod = self._uncounted.pop()
            if self._state.pods.get(pod.uid) is pod:  # one that has gone may have left its uid
                self.note(pod)
        return not self._uncounted

    def count_all(self) -> None:
        """Count all that stand to be counted."""
        self.count(len(self._uncounted))

    def note_freed(self) -> None:
        """Something that was counted on did not come about: every account may hold more."""
        self._epoch += 1

    def exceeded(
        self, pod: PodState, node: str = "", shares: Sequence[Share] = ()
    ) -> LimitExceeded | None:
        """Why the account may not take the pod with these shares, or, with none named, anywhere."""
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
        """The kinds of device of which one of the asks alone is more than the account may take."""
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
        """What is another once the pod's account may hold more than now."""
        return self._epoch + self._freed[self.account_of(pod)]

    def held(self, name: str) -> Amounts:
        """What the account holds, without the amounts of which it holds nothing."""
        self.count_all()
        return {amount: much for amount, much in self._held.get(name, NOTHING).items() if much}


def _exceeded(limits: tuple[Limit, ...], held: Amounts, more: Amounts) -> LimitExceeded | None:
    for limit in limits:
        exceeded = limit.exceeded(held, more)
        if exceeded is not None:
            return exceeded
    return None


class Queues(Holdings):
    """The amounts that every queue holds, from when one has a limit or somebody asks for shares.

    Of the host and of devices: a capability may limit either."""

    def __init__(self, state: State) -> None:
        super().__init__(state, quotas.of_shares, quotas.at_least)
        self.active = False
        self._totals = _Totals(state)
        self._shares: dict[str, float] = {}
        for queue in state.queues.values():
            self._learn(queue)

    def account_of(self, pod: PodState) -> str:
        """The queue of the pod."""
        return queue_of(self._state, pod)

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
        self._limits.pop(queue.queue, None)
        self._shares.pop(queue.queue, None)
        self._freed[queue.queue] += 1
        if quota.limits:
            self._limits[queue.queue] = (quota,)
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


class Namespaces(Holdings):
    """The amounts that every namespace with a quota of devices holds: of devices alone, since the
    API server takes care of the rest. A namespace without such a quota costs one look into a map.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state, quotas.of_devices, quotas.devices_at_least)
        self._learn(*state.quotas)

    @property
    def active(self) -> bool:
        """Whether there is any such namespace."""
        return bool(self._limits)

    def account_of(self, pod: PodState) -> str:
        """The pod's namespace, by which quotas count."""
        return pod.submitted.namespace

    def note(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
        """See `Holdings`."""
        if pod.submitted.namespace not in self._limits:
            self._at.pop(pod.uid, None)
            return False
        return super().note(pod, undone=undone, again=again)

    def observe(self, change: Change) -> bool:
        """Take note of what the fold changed; whether a namespace may now hold more than before."""
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
        """Read the quotas of these namespaces anew, and count what is limited only now."""
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
    """Why a limit kept a pod out: of devices of some kinds only, or (None) of any node.

    Where devices of other kinds would be too much together, `without` does not name them: another
    node may have others beside them. `seen` tells whether the limit may allow more now."""

    exceeded: LimitExceeded
    without: frozenset[int] | None
    seen: int


class Limits:
    """The limits over one state; a pod must be within all of those that it has."""

    def __init__(self, state: State) -> None:
        self._queues = Queues(state)
        self._namespaces = Namespaces(state)
        self.active = self._queues.active or self._namespaces.active

    def activate(self) -> None:
        """Count what queues hold from now on: whose turn it is depends on it."""
        self._queues.activate()
        self.active = True

    def count(self, most: int, *, shares: bool = False) -> bool:
        """Count up to so many pods that a limit concerns only now; whether all are.

        `shares`: and nodes, for what they offer together."""
        counted = self._queues.count(most) and self._namespaces.count(most)
        return counted and not (shares and not self._queues.count_offers(most))

    def share(self, queue: str) -> float:
        """The part of the cluster that the queue holds, over its weight."""
        self.active = True
        return self._queues.share(queue)

    def observe(self, change: Change) -> bool:
        """Take note of what the fold changed; whether anybody may now hold more than before."""
        freed = self._queues.observe(change)
        freed |= self._namespaces.observe(change)
        self.active = self._queues.active or self._namespaces.active
        return freed

    def note(self, pod: PodState, *, undone: bool = False) -> None:
        """The pod was placed or taken away; `undone`: nobody has been told no because of it."""
        if self._queues.active:
            self._queues.note(pod, undone=undone)
        self._namespaces.note(pod, undone=undone)

    def note_freed(self) -> None:
        """Something that was counted on did not come about: everybody may hold more."""
        self._queues.note_freed()
        self._namespaces.note_freed()

    def exceeded(
        self, pod: PodState, node: str = "", shares: Sequence[Share] = ()
    ) -> LimitExceeded | None:
        """Why the pod may not have these shares, or, with none named, any."""
        exceeded = self._queues.exceeded(pod, node, shares)
        return exceeded if exceeded is not None else self._namespaces.exceeded(pod, node, shares)

    def kinds_beyond(
        self, pod: PodState, asks: Sequence[AskColumns], kinds: Sequence[Device]
    ) -> frozenset[int]:
        """The kinds of device of which one of the asks alone is more than the pod may have."""
        of_namespace = self._namespaces.kinds_beyond(pod, asks, kinds)
        return self._queues.kinds_beyond(pod, asks, kinds) | of_namespace

    def remembered(
        self, pod: PodState, exceeded: LimitExceeded, without: frozenset[int] | None
    ) -> Kept:
        """What is exceeded, and what tells later whether the limits may allow more."""
        return Kept(exceeded, without, self._seen(pod))

    def freed(self, pod: PodState, kept: Kept) -> bool:
        """Whether the pod may have more than when it was kept out."""
        return kept.seen != self._seen(pod)

    def _seen(self, pod: PodState) -> int:
        return self._queues.seen(pod) + self._namespaces.seen(pod)
