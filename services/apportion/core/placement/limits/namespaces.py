"""What the pods of each namespace hold of devices, where a ResourceQuota limits that.

A namespace without such a quota costs one look into a map. Like a queue, a quota is the scheduler's
rule and no invariant of the ledger: the fold takes what goes beyond it.
"""

from collections.abc import Sequence

from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.limits import quotas
from apportion.core.placement.limits.quotas import Amounts, LimitExceeded, NamespaceQuota
from apportion.core.placement.limits.usage import NOTHING, Holdings
from apportion_schemas import (
    ConfigurationChanged,
    Device,
    PodPlaced,
    QuotaGone,
    QuotaObserved,
    Shape,
    Share,
)


class Namespaces(Holdings):
    """The amounts that every namespace with a quota of devices holds."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._quotas: dict[str, tuple[NamespaceQuota, ...]] = {}
        self._learn(*state.quotas)

    @property
    def active(self) -> bool:
        """Whether there is any such namespace."""
        return bool(self._quotas)

    def account_of(self, pod: PodState) -> str:
        """The pod's namespace, by which quotas count."""
        return pod.submitted.namespace

    def amounts_of(self, shape: Shape, shares: tuple[Share, ...], node: NodeState) -> Amounts:
        """Devices alone: of the rest the API server takes care."""
        return quotas.of_devices(shape, shares, node)

    def note(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
        """See `Holdings`."""
        if pod.submitted.namespace not in self._quotas:
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

    def exceeded(
        self, pod: PodState, node: str = "", shares: Sequence[Share] = ()
    ) -> LimitExceeded | None:
        """Why the namespace may not take the pod with these shares, or, with none named, at all."""
        name = pod.submitted.namespace
        limits = self._quotas.get(name)
        if limits is None:
            return None
        self.count_all()
        if node:
            more = quotas.of_devices(pod.submitted.shape, shares, self._state.nodes[node])
        else:
            more = quotas.devices_at_least(pod.submitted.shape)
        return _exceeded(limits, self._held.get(name, NOTHING), more)

    def kinds_beyond(
        self, pod: PodState, asks: Sequence[AskColumns], kinds: Sequence[Device]
    ) -> frozenset[int]:
        """The kinds of device of which one of the asks alone is more than is allowed."""
        name = pod.submitted.namespace
        limits = self._quotas.get(name)
        if limits is None:
            return frozenset()
        self.count_all()
        held = self._held.get(name, NOTHING)
        return quotas.kinds_beyond(
            asks, kinds, lambda more: _exceeded(limits, held, more) is not None
        )

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
            others |= bool(limits) != (name in self._quotas)
            if limits:
                self._quotas[name] = limits
            elif self._quotas.pop(name, None) is not None:
                self._held.pop(name, None)
                self._ended[name] += 1
        if others:
            self._uncounted = list(self._state.pods.values())


def _exceeded(
    limits: tuple[NamespaceQuota, ...], held: Amounts, more: Amounts
) -> LimitExceeded | None:
    for quota in limits:
        exceeded = quota.exceeded(held, more)
        if exceeded is not None:
            return exceeded
    return None
