"""What pods hold together, by an account of theirs: their queue, their namespace.

Kept up by the pod: one that comes or goes changes the amounts of its own account. When a limit is
set where there was none, all pods stand to be counted: `count` does it in parts, for whoever cannot
wait for all at once, and whoever asks before it is done has it done.

A derived structure: it can be dropped and made again from the `State`. Invariant: after `note` of
every pod that was placed or left, an account holds what a walk over its placed pods would give.
"""

from collections import Counter
from typing import Final

from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import NodeState, Placement, PodState, State
from apportion.core.placement.limits.quotas import Amount, Amounts
from apportion_schemas import NodeGone, NodeObserved, NodeReported, PodChanged, Shape, Share

OFFERS: Final = (NodeReported, NodeObserved, NodeGone)
NOTHING: Final[Amounts] = {}


class Holdings:
    """The amounts of each account; whoever derives from it says which a pod's is."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._at: dict[str, tuple[str, Placement, Amounts, int]] = {}
        self._ended: Counter[str] = Counter()  # how often an account was forgotten
        self._uncounted: list[PodState] = []
        self._held: dict[str, Counter[Amount]] = {}
        self._freed: Counter[str] = Counter()
        self._epoch = 0

    def account_of(self, pod: PodState) -> str:
        """The account of a pod."""
        raise NotImplementedError

    def amounts_of(self, shape: Shape, shares: tuple[Share, ...], node: NodeState) -> Amounts:
        """What a pod of this shape adds to its account with these shares of the node."""
        raise NotImplementedError

    def note(self, pod: PodState, *, undone: bool = False, again: bool = False) -> bool:
        """The pod was placed or taken away; whether its account may hold more than before.

        `undone`: nobody has been told no because of it. `again`: what its shares come to may be
        otherwise than it was.
        """
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
            taken = self.amounts_of(pod.submitted.shape, placed.shares, node)
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

    def seen(self, pod: PodState) -> int:
        """What is another once the pod's account may hold more than now."""
        return self._epoch + self._freed[self.account_of(pod)]

    def held(self, name: str) -> Amounts:
        """What the account holds, without the amounts of which it holds nothing."""
        self.count_all()
        return {amount: much for amount, much in self._held.get(name, NOTHING).items() if much}
