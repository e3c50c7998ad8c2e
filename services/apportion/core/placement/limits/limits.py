"""Enforce the limits of queues and namespaces, which refuse a pod although nodes have room."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from apportion.core.devices.demand import Demand
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import Placement, PodState, State
from apportion.core.placement.limits import quotas
from apportion.core.placement.limits.holdings import Holdings
from apportion.core.placement.limits.queues import Queues, Turn
from apportion.core.placement.limits.quotas import Amount, LimitExceeded, NamespaceQuota
from apportion.core.placement.limits.reclaiming import Reclaim
from apportion.core.placement.limits.tree import ROOT
from apportion_schemas import (
    ConfigurationChanged,
    Device,
    LimitsChecked,
    PodPlaced,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    Share,
)

# events that set limits, or change what existing ones mean
LIMITS_SET: Final = frozenset((QueueObserved, QuotaObserved, QuotaGone, ConfigurationChanged))

Kinds = Sequence[tuple[int, Device]]  # with their numbers


class Namespaces(Holdings):
    """The amounts allocated in each namespace that has a device quota."""

    def __init__(self, state: State) -> None:
        super().__init__(state, quotas.of_devices, quotas.devices_at_least)
        self._learn(*state.quotas)

    def account_of(self, pod: PodState) -> str:
        """Return the namespace of the pod."""
        return pod.submitted.namespace

    def count_pod(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
        """Count a placed pod, or stop counting a released one, if a quota limits its namespace."""
        if pod.submitted.namespace not in self._limits:
            self._at.pop(pod.uid, None)
            return False
        return super().count_pod(pod, undone=undone, again=again)

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
            freed = self.bounded
        return (self.bounded and self.follow(change)) or freed

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
        self.bounded = bool(self._limits)
        if others:
            self.count_later(self._state.pods.values())


class Kept(NamedTuple):
    """A limit that refused a pod, on every node or on some kinds of device."""

    exceeded: LimitExceeded
    without: frozenset[int] | None  # device kinds; None is every node
    seen: int


class Limits:
    """All queue and namespace limits of one state; a pod must stay within each that applies."""

    __slots__ = ("_namespaces", "_queues", "_state", "active", "bounded")

    def __init__(self, state: State) -> None:
        self._state = state
        self._queues = Queues(state)
        self._namespaces = Namespaces(state)
        self._look()

    def _look(self) -> None:
        # Whether anything is counted, and whether any limit may keep out a pod.
        self.active = self._queues.active or self._namespaces.bounded
        self.bounded = self._queues.bounded or self._namespaces.bounded

    def activate(self) -> None:
        """Start counting what each queue has allocated, because the order of pods depends on it."""
        self._queues.activate()
        self.active = True

    def count(self, most: int, *, shares: bool = False) -> bool:
        """Count at most `most` pods (or a few hundred), and with `shares` nodes too. Return True if
        none is left.

        `shares`: entitlements will be read. Without them, only limits need counts."""
        if not shares:  # a decision begins
            self._queues.assumed = 0
        queues = shares or self._queues.bounded
        counted = (not queues or self._queues.count(most)) and self._namespaces.count(most)
        return counted and not (shares and not self._queues.count_offers(most))

    def turn(self, queue: str) -> tuple[Turn, ...]:
        """Return the queue's position among the queues; the lowest turn is next."""
        self.active = True
        return self._queues.turn(queue)

    def entitles(self, pods: Sequence[PodState]) -> bool:
        """Return True if the queue of these pods is entitled to what they need."""
        self.activate()
        queues, needs = self._queues, Counter[Amount]()
        for pod in pods:
            needs.update(queues.needs(pod))
        return all(
            needs[amount] <= part.entitled
            for name in queues.path_of(queues.account_of(pods[0]))
            for amount, part in queues.parts(name).items()
        )

    @property
    def lends(self) -> bool:
        """Return True if a queue may reclaim what other queues use."""
        return self._queues.lends

    @property
    def remembers(self) -> bool:
        """Return True if entitlements depend on past use, so that they change with time."""
        return self._queues.past.memory is not None

    @property
    def due(self) -> int:
        """Return when past use counts again, in microseconds since 1970; 0 if it evicts no pod."""
        return self._queues.past.due if self._queues.lends and self.remembers else 0

    def tell_time(self, now: int) -> bool:
        """Count past use again if it is due by `now`. Return True if entitlements may change."""
        return self.remembers and self._queues.past.tell_time(now)

    def reclaim(
        self,
        pod: PodState,
        now: int,
        *,
        others: Sequence[PodState] = (),
        ahead: Sequence[PodState] = (),
    ) -> Reclaim | None:
        """Return what the pod may take back from other queues; None if nothing.

        `now` is in microseconds since 1970. `others` will be placed with the pod, and `ahead`
        before it."""
        if not self._queues.lends:
            return None
        return Reclaim(self._state, self._queues, pod, now, others=others, ahead=ahead) or None

    def observe(self, change: Change) -> bool:
        """Apply the fold's change. Return True if a limit may allow more than before."""
        freed = self._queues.observe(change)
        if self._namespaces.bounded or type(change.data) in LIMITS_SET:
            freed |= self._namespaces.observe(change)
            self._look()
        return freed

    def note(self, pod: PodState, *, undone: bool = False) -> None:
        """Count a pod whose placement is assumed, or is assumed no longer (`undone`)."""
        if self._queues.active:
            self._queues.assumed += 1
            self._queues.note(pod, undone=undone)
        if self._namespaces.bounded:
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

    def exceeded_with(
        self, pod: PodState, placed: Placement, shares: Sequence[Share]
    ) -> LimitExceeded | None:
        """Return the limit that the placed pod exceeds with these shares, as if it were new."""
        pod.placement = None
        self.note(pod, undone=True)
        try:
            return self.exceeded(pod, placed.node, shares)
        finally:
            pod.placement = placed
            self.note(pod, undone=True)

    @property
    def owners(self) -> tuple[dict[str, str], bool]:
        """Return a value that changes when `owner_key` of some pod may have changed."""
        return self._queues.owners, bool(self._state.quotas)

    def owner_key(self, pod: PodState) -> str:
        """Return a key that pods with a common limit share; empty for a pod without limits.

        If both queues and namespaces have limits, all limited pods share one."""
        namespace, queue = pod.submitted.namespace, self._queues.owner(pod)
        if self._state.quotas and self._queues.owners:
            return f"queue {ROOT}" if queue or namespace in self._state.quotas else ""
        if queue:
            return f"queue {queue}"
        return namespace if namespace in self._state.quotas else ""

    def fences(self, pod: PodState) -> list[LimitsChecked]:
        """Return one event per limit that applies to the pod, to append with its placement.

        So no other scheduler can use the same limits at the same time."""
        found = [LimitsChecked(kind="queue", name=queue) for queue in self._queues.fences(pod)]
        if self._namespaces.bounded and self._namespaces.limited(pod.submitted.namespace):
            found.append(LimitsChecked(kind="namespace", name=pod.submitted.namespace))
        return found

    def kinds_beyond(
        self, pod: PodState, asks: Sequence[tuple[Sequence[object], int]], kinds: Kinds
    ) -> frozenset[int]:
        """Return the numbers of the kinds of device on which the pod would exceed a limit.

        Each entry of `asks` has the ask's demand on each kind of device, by the kind's number, and
        the number of devices that the ask requests."""
        found = set[int]()
        for accounts in (self._queues, self._namespaces):
            name = accounts.account_of(pod) if accounts.bounded else ""
            if not accounts.bounded or not accounts.limited(name):
                continue
            accounts.count_all()
            for kind, device in kinds:
                for demands, count in asks:
                    wanted = demands[kind]
                    if isinstance(wanted, Demand):
                        more = quotas.of_demand(wanted, device, count)
                        if accounts.beyond(name, more) is not None:
                            found.add(kind)
        return frozenset(found)

    def seen(self, pod: PodState) -> int:
        """Return a number that changes when a limit may admit more of the pod's requests."""
        return self._queues.seen(pod) + self._namespaces.seen(pod)
