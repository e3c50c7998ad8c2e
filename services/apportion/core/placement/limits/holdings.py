"""Count what the pods of an account use, and compare it with the account's limits.

An account is a queue or a namespace. A limit is a rule of the scheduler, not an invariant of the
ledger: the fold accepts placements beyond it."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import NodeState, Placement, PodState, State
from apportion.core.placement.limits.quotas import (
    Amount,
    Amounts,
    LimitExceeded,
    NamespaceQuota,
    Quota,
    add,
)
from apportion_schemas import (
    DevicesRegistered,
    NodeGone,
    NodeObserved,
    NodeReported,
    PodChanged,
    PodResized,
    Shape,
    Share,
)

OFFERS: Final = frozenset((NodeReported, NodeObserved, DevicesRegistered, NodeGone))
NOTHING: Final[Amounts] = {}
COUNTED_MAX: Final = 256  # pods or nodes that one decision counts for derived data
FEW: Final = 1_024  # pods that it counts in one go if no others are left: as many as it may place
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
        self._uncounted: dict[str, PodState] = {}
        self._again: set[str] = set()  # those whose shares may take other amounts than before
        self.bounded = False  # True if a limit may keep out pods of any account
        self.assumed = 0  # how many of them, at most, because of assumed placements
        self._held: dict[str, Counter[Amount]] = {}
        self._freed: Counter[str] = Counter()
        self._epoch = 0

    def account_of(self, pod: PodState) -> str:
        """Return the name of the pod's account; each subclass defines it."""
        raise NotImplementedError

    def note(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
        """Count a pod as `count_pod` does; if no account has a limit, only before a read."""
        if self.bounded:
            return self.count_pod(pod, undone=undone, again=again)
        if self._state.pods.get(pod.uid) is pod:
            self._uncounted[pod.uid] = pod
            if again:
                self._again.add(pod.uid)
        else:
            self._uncounted.pop(pod.uid, None)
            self._again.discard(pod.uid)
            self.count_pod(pod)
        return False

    def count_pod(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
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
            for each in self.path_of(before[0]):
                add(self._held[each], before[2], -1)
            self.moved(before[0], before[2], -1)
        if placed is not None:
            node = self._state.nodes[placed.node]
            taken = self._taken(pod.submitted.shape, placed.shares, node)
            self._at[pod.uid] = (name, placed, taken, self._ended[name])
            for each in self.path_of(name):
                add(self._held.setdefault(each, Counter()), taken, 1)
            self.moved(name, taken, 1)
        if before is None or undone:
            return False
        self._freed.update(self.path_of(before[0]))
        return True

    def path_of(self, name: str) -> tuple[str, ...]:
        """Return the accounts in which a pod of this account counts: itself, and those above it."""
        return (name,)

    def moved(self, name: str, amounts: Amounts, times: int) -> None:
        """Called after `times` x `amounts` was added to an account and to those above it."""

    def follow(self, change: Change) -> bool:
        """Count again the pods that the event concerns. Return True if an account has more room."""
        freed, kind = False, type(change.data)
        if change.node is not None and kind in OFFERS:
            for pod in change.node.pods.values():
                freed |= self.note(pod, again=True)
        if change.pod is not None:
            freed |= self.note(change.pod, again=kind is PodChanged or kind is PodResized)
        return freed

    def count(self, pods: int) -> bool:
        """Count all uncounted pods if they are few, else only `pods`. Return True if none is left.

        The pods whose placements were assumed since the last call, the newest ones, are counted in
        any case: a decision that tries a large gang must not end before the other pods' turn."""
        left = self._uncounted
        most = len(left) if len(left) <= FEW else min(max(pods, self.assumed), len(left))
        self.assumed = 0
        for _ in range(most):
            uid, pod = left.popitem()
            # a later pod may have the uid of a deleted one
            if self._state.pods.get(uid) is pod:
                again = uid in self._again
                self.count_pod(pod, undone=True, again=again)  # `note` said what was freed
            self._again.discard(uid)
        return not left

    def count_later(self, pods: Iterable[PodState]) -> None:
        """Count these pods before amounts are next read; all others are counted or gone."""
        self._uncounted = {pod.uid: pod for pod in pods}
        self._again.clear()

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
        if not self.bounded:
            return None
        name, shape = self.account_of(pod), pod.submitted.shape
        if not self.limited(name):
            return None
        self.count_all()
        more = self._taken(shape, shares, self._state.nodes[node]) if node else self._least(shape)
        return self.beyond(name, more)

    def limited(self, name: str) -> bool:
        """Return True if the account, or one above it, has a limit."""
        return any(each in self._limits for each in self.path_of(name))

    def beyond(self, name: str, more: Amounts) -> LimitExceeded | None:
        """Return the first limit that the account would exceed with `more`, or None."""
        for each in self.path_of(name):
            held = self._held.get(each, NOTHING)
            for limit in self._limits.get(each, ()):
                exceeded = limit.exceeded(held, more)
                if exceeded is not None:
                    return exceeded
        return None

    def seen(self, pod: PodState) -> int:
        """Return a number that changes when the pod's queue or namespace may have more room."""
        return self._epoch + sum(self._freed[each] for each in self.path_of(self.account_of(pod)))

    def held(self, name: str) -> Amounts:
        """Return the amounts that the account has allocated, without zeros."""
        self.count_all()
        return {amount: much for amount, much in self._held.get(name, NOTHING).items() if much}
