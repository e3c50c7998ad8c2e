"""What keeps a pod out though nodes have room: the limits of its queue and of its namespace.

Nothing is counted while nobody is limited. Several schedulers each keep to the limits as far as
they have read the ledger; what keeps them from going beyond together: `queueing.sharding`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.limits.namespaces import Namespaces
from apportion.core.placement.limits.queues import Queues
from apportion.core.placement.limits.quotas import LimitExceeded
from apportion_schemas import Device, Share

NEVER_SEEN: Final = -1
"""What tells of a limit that it may allow more now, whatever has happened."""


class Kept(NamedTuple):
    """Why a limit kept a pod out: of devices of some kinds only, or (None) of any node.

    Where devices of other kinds would be too much together, `without` does not name them: another
    node may have others beside them. `seen` tells whether the limit may allow more now.
    """

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

        `shares`: and nodes, for what they offer together.
        """
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
