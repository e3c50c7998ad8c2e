"""Apply the filters of cluster facts (labels, taints, volumes) for one shape to every node."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.feasibility.evaluator import FITS, RANK, facts_refusal
from apportion.core.placement.feasibility.nodes import discouraged, taints
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.labels import Flags
from apportion.core.placement.index.packed import POINTS, Int32s, UInt8s
from apportion.core.placement.index.row_log import Rows
from apportion.core.placement.volumes import Terms
from apportion_schemas import RefusalCode, Shape, SpreadConstraint

# weights of preferred node affinity and of taints: kube-scheduler's defaults
AFFINITY_WEIGHT: Final = 2
TAINT_WEIGHT: Final = 3
_LABELS_MISMATCH: Final = RANK[RefusalCode.NODE_LABELS_MISMATCH]
_VOLUME_ELSEWHERE: Final = RANK[RefusalCode.VOLUME_NODE_MISMATCH]
_NODE_GONE: Final = RANK[RefusalCode.NODE_GONE]


class Eligible(NamedTuple):
    """The facts that decide whether a node counts for topology spread constraints."""

    present: Flags
    allowed: Flags
    tolerated: Flags

    def counted(self, spread: SpreadConstraint) -> Flags:
        """Return the rows that count under the constraint's node inclusion policies."""
        found: Flags = self.present if spread.any_node else self.present & self.allowed
        return found & self.tolerated if spread.untainted else found


class FactColumns:
    """The results of the label, taint and volume filters on every node, for one shape."""

    def __init__(self, shape: Shape, places: tuple[Terms, ...] = ()) -> None:
        self._shape = shape
        self._places = places
        self._spreads = bool(shape.pods.spread)
        self._untainted = self._spreads and any(each.untainted for each in shape.pods.spread)
        self.resize(0)

    def resize(self, rows: int) -> None:
        """Reset to `rows` rows that all pass, until they are evaluated."""
        self.ranks: NDArray[np.uint8] = np.full(rows, FITS, np.uint8)  # of the refusing filter
        self.eligible = Eligible(*[np.ones(rows, np.bool_) for _ in range(3)])  # for spread
        self._node_ok: Flags = np.ones(rows, np.bool_)
        self._discouraged: set[int] = set()
        self.node_ok: UInt8s = self._node_ok.view(np.uint8).data
        self._prefer_among(rows if self.prefers else 0)

    def rebuild(self, columns: Columns, rows: Rows) -> bool:
        """Apply the filters of facts, such as labels, taints and volumes, to these rows.

        Return True if this also changes the preference points of all other rows."""
        needs, vacant = self._shape.node, columns.vacant[rows]
        allowed = columns.labels.allowed(columns, needs, rows)
        self.ranks[rows] = np.where(allowed, FITS, _LABELS_MISMATCH)
        self.ranks[rows[vacant]] = _NODE_GONE
        for row in rows[~(vacant | columns.schedulable[rows])].tolist():
            code = facts_refusal(self._shape, columns.nodes[row])
            self.ranks[row] = FITS if code is None else RANK[code]
        if self._places:  # its volumes are not accessible from other nodes
            there: Flags = np.ones(len(rows), np.bool_)
            for terms in self._places:
                matches = [columns.labels.match(columns, term, rows) for term in terms]
                there &= np.logical_or.reduce(matches) if matches else False
            away = rows[~there]
            self.ranks[away[self.ranks[away] == FITS]] = _VOLUME_ELSEWHERE
        self._node_ok[rows] = self.ranks[rows] == FITS
        if self._spreads:  # closed nodes count as well
            nodes = [columns.nodes[row] for row in rows.tolist()]
            self.eligible.present[rows] = [node.present for node in nodes]
            self.eligible.allowed[rows] = allowed
            if self._untainted:
                amounts = [taints(self._shape, node) for node in nodes]
                self.eligible.tolerated[rows] = [has >= needed for needed, has in amounts]
        return self._look_at_preferences(columns, rows)

    @property
    def prefers(self) -> bool:
        """Return True if the shape prefers some nodes because of labels or taints."""
        return bool(self._shape.node.preferred or self._discouraged)

    def _prefer_among(self, rows: int) -> None:
        self._preferred: NDArray[np.int32] = np.zeros(rows, np.int32)
        self.preferred: Int32s = self._preferred.data  # points

    def _look_at_preferences(self, columns: Columns, rows: Rows) -> bool:
        # All rows get new points once the first node is discouraged, or the last no longer is.
        shunned_before = bool(self._discouraged)
        self._discouraged.difference_update(rows.tolist() if shunned_before else ())
        for row in rows[columns.discouraging[rows] & ~columns.vacant[rows]].tolist():
            if discouraged(self._shape, columns.nodes[row]):
                self._discouraged.add(row)
        all_others = shunned_before != bool(self._discouraged)
        if not self.prefers:
            return all_others
        if all_others:
            self._prefer_among(len(columns.names))
            rows = columns.every
        # Weights as in kube-scheduler's NodeAffinity and TaintToleration.
        parts: list[tuple[int, NDArray[np.int64]]] = []
        preferred = self._shape.node.preferred
        if preferred:
            gained = np.zeros(len(rows), np.int64)
            for each in preferred:
                gained += each.weight * columns.labels.match(columns, each.term, rows)
            whole = sum([each.weight for each in preferred])  # noqa: C419 - a generator would cost the C signature
            parts.append((AFFINITY_WEIGHT, gained * POINTS // whole))
        if self._discouraged:
            shunned = np.isin(rows, list(self._discouraged))
            parts.append((TAINT_WEIGHT, np.where(shunned, 0, POINTS)))
        total = np.add.reduce([weight * points for weight, points in parts])
        self._preferred[rows] = total // sum(weight for weight, _ in parts)
        return all_others
