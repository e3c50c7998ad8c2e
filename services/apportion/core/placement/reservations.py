"""Placements that count before the ledger has them: reserved for the length of one decision.

What one pod takes must count for the next, and be undone before the decision is handed on, for the
state changes only when the decision comes back and is folded. So each placement is charged to the
state as the fold would, up to a checkpoint that can be gone back to.

Invariant: after `roll_back()` the state, the columns, the limits and the neighbours are as they
were before the first reservation."""

from apportion.core.ledger import fold
from apportion.core.ledger.state import Placement, PodState, State
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.limits.limits import Limits
from apportion_schemas import PodPlaced

Placed = tuple[PodState, PodPlaced]


class Reservations:
    """The placements that are assumed now, the newest last.

    The newest is charged only when `charge` is called, before anybody looks at what is left: after
    the last pod of a decision nobody does, and most decisions are about one pod.

    `columns` are those that follow; whoever makes new ones puts them here. `neighbours` is None
    where nobody asks which pods stand beside each other. `met` is set by a reservation of a pod
    that others look for, and taken back by whoever has seen to them. `version` is another after
    whatever was charged or undone."""

    def __init__(
        self, state: State, columns: Columns, limits: Limits, neighbours: Neighbours | None
    ) -> None:
        self._state = state
        self.columns = columns
        self._limits = limits
        self._neighbours = neighbours
        self._charged: list[PodState] = []
        self._newest: Placed | None = None
        self.met = False
        self.version = 0

    def reserve(self, pod: PodState, placed: PodPlaced) -> None:
        """The pod has this place, as far as this decision goes."""
        self.charge()
        self._newest = (pod, placed)

    def charge(self) -> None:
        """Let the newest reservation count, if it does not yet.

        Raises Oversold: the place is not free; nothing was charged."""
        if self._newest is None:
            return
        pod, placed = self._newest
        self._newest = None
        node = self._state.nodes[placed.node]
        fold.place(pod, node, Placement(placed.node, placed.attempt, placed.shares))
        if self._neighbours is not None and self._neighbours.note(pod):
            self.met = True
        if self._limits.active:
            self._limits.note(pod)
        self.columns.touch(node, placed.shares)
        self._charged.append(pod)
        self.version += 1

    def checkpoint(self) -> Int64:
        """The point at which all that is reserved now is, and nothing else."""
        self.charge()
        return len(self._charged)

    def roll_back(self, checkpoint: Int64 = 0) -> None:
        """Undo what was reserved since the checkpoint, the newest first; by default everything."""
        self._newest = None
        self.version += 1
        while len(self._charged) > checkpoint:
            pod = self._charged.pop()
            shares = fold.shares_of(pod)
            node = fold.unplace(self._state, pod)
            if self._neighbours is not None:
                self._neighbours.note(pod)
            if self._limits.active:
                self._limits.note(pod, undone=True)
            if node is not None:
                self.columns.touch(node, shares)
