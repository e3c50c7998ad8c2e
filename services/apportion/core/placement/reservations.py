"""Assume placements within one decision, before they are in the ledger.

Invariant: `roll_back()` restores the state and all indexes."""

from apportion.core.ledger import fold
from apportion.core.ledger.state import Placement, PodState, State
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.limits.limits import Limits
from apportion_schemas import PodPlaced

Placed = tuple[PodState, PodPlaced]


class Reservations:
    """The placements that the current decision assumes, oldest first.

    Call `charge` before reading free amounts: it subtracts the newest placement from them."""

    def __init__(
        self, state: State, columns: Columns, limits: Limits, neighbours: Neighbours | None
    ) -> None:
        self._state = state
        self.columns = columns
        self._limits = limits
        self._neighbours = neighbours
        self.charged: list[PodState] = []  # only this class changes it
        self._newest: Placed | None = None
        self.met = False  # a reserved pod is one that others have affinity to
        self.version = 0  # changes with every charge or undo
        self.undone = 0  # how many charges were undone

    def reserve(self, pod: PodState, placed: PodPlaced) -> None:
        """Assume this placement of the pod for the rest of the decision."""
        self.charge()
        self._newest = (pod, placed)

    def charge(self) -> None:
        """Subtract the newest reservation from the free amounts.

        Raises `Oversold` if its devices are in use."""
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
        self.charged.append(pod)
        self.version += 1

    def checkpoint(self) -> Int64:
        """Charge all reservations, and return their number, for a later `roll_back`."""
        self.charge()
        return len(self.charged)

    def roll_back(self, checkpoint: Int64 = 0) -> None:
        """Undo the reservations made since the checkpoint, newest first; by default all."""
        self._newest = None
        self.version += 1
        while len(self.charged) > checkpoint:
            pod = self.charged.pop()
            self.undone += 1
            shares = fold.shares_of(pod)
            node = fold.unplace(self._state, pod)
            if self._neighbours is not None:
                self._neighbours.note(pod)
            if self._limits.active:
                self._limits.note(pod, undone=True)
            if node is not None:
                self.columns.touch(node, shares)
