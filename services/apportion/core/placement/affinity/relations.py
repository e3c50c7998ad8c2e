"""Refuse or prefer nodes for pods of one shape because of the pods already placed.

The rules are kube-scheduler's for pod affinity, anti-affinity and topology spread. One exception:
the preferred terms of pods that are already placed have no effect."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.placement.affinity.neighbours import Concern, Counts, Neighbours
from apportion.core.placement.feasibility.evaluator import FITS, RANK
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.facts import Eligible
from apportion.core.placement.index.labels import NO_VALUE, LabelColumns
from apportion.core.placement.index.packed import POINTS
from apportion_schemas import PodConstraints, PodTerm, RefusalCode, SpreadConstraint

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class _Here(NamedTuple):
    """The topology domain of each node (row), and the number of pods in the domain."""

    ids: Numbers
    pods: Numbers


class Relations:
    """The affinity and spread rules for pods of one shape, evaluated for every node."""

    def __init__(
        self,
        wishes: PodConstraints,
        concern: Concern,
        neighbours: Neighbours,
        domains: LabelColumns,
    ) -> None:
        self._wishes = wishes
        self._guards = concern.guards
        self._itself = concern.itself
        self._neighbours = neighbours
        self._domains = domains
        self._watched: list[Counts] = []
        self._epoch = -1
        self._seen: tuple[int, ...] = ()
        self.ranks: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.points: NDArray[np.int32] | None = None

    def refresh(self, columns: Columns, eligible: Eligible) -> bool:
        """Recompute all rows if a pod count or a node changed; return True in that case."""
        if self._epoch != self._neighbours.epoch:
            self._epoch = self._neighbours.epoch
            wishes, counts = self._wishes, self._neighbours.counts
            terms = (*wishes.affinity, *wishes.anti_affinity, *(p.term for p in wishes.preferred))
            self._watched = [counts(term.pods) for term in terms]
            self._watched += [counts(spread.pods, spread=True) for spread in wishes.spread]
        guards = [self._neighbours.owners(term) for term in self._guards]
        seen = (
            columns.generation,
            columns.facts_changed.end,
            *(counts.version for counts in (*self._watched, *guards)),
        )
        if seen == self._seen:
            return False
        self._seen = seen
        self._refuse(columns, eligible)
        self._prefer(columns, eligible)
        return True

    def _counted(self, columns: Columns, spread: SpreadConstraint, eligible: Eligible) -> Flags:
        # A node must have the labels of all required constraints to count for one of them.
        counted = eligible.counted(spread) & ~columns.vacant
        keys = (
            {spread.topology_key}
            if not spread.required
            else {each.topology_key for each in self._wishes.spread if each.required}
        )
        for key in sorted(keys):
            counted &= self._domains.ids(columns, key) != NO_VALUE
        return counted

    def _refuse(self, columns: Columns, eligible: Eligible) -> None:
        self.ranks = np.full(len(columns.names), FITS, np.uint8)
        offset = len(self._wishes.affinity)
        for at, spread in enumerate(self._wishes.spread, offset):
            if spread.required:
                # The pod leaves the domain at most `max_skew` above the one with the fewest.
                counted = self._counted(columns, spread, eligible)
                ids = self._domains.ids(columns, spread.topology_key)
                pods = self._neighbours.counts(spread.pods, spread=True).rows(columns)
                sums = _sums(ids, pods, counted)
                least = sums.least if sums.domains >= spread.min_domains else 0
                fits = counted & (sums.here + int(self._itself[at]) - least <= spread.max_skew)
                self._stop(~fits, RefusalCode.TOPOLOGY_SPREAD_EXCEEDED)
        for term in self._wishes.anti_affinity:
            self._stop(self._at(columns, term).pods > 0, RefusalCode.POD_ANTI_AFFINITY)
        for term in self._guards:
            kept = self._in_domain(columns, term.topology_key, self._neighbours.owners(term))
            self._stop(kept.pods > 0, RefusalCode.POD_ANTI_AFFINITY)
        if self._wishes.affinity:
            # Each term needs a pod in the domain; the first pod of a group needs only the label.
            terms = [self._at(columns, term) for term in self._wishes.affinity]
            labelled = np.logical_and.reduce([here.ids != NO_VALUE for here in terms])
            near = np.logical_and.reduce([here.pods > 0 for here in terms])
            is_first = not any(here.pods.any() for here in terms)
            is_first = is_first and all(self._itself[: len(terms)])
            self._stop(~(labelled & (near | is_first)), RefusalCode.POD_AFFINITY_MISMATCH)

    def _stop(self, where: Flags, code: RefusalCode) -> None:
        # Filters are called last first, so that the code of the first one remains.
        self.ranks[where] = RANK[code]

    def _prefer(self, columns: Columns, eligible: Eligible) -> None:
        parts: list[Numbers] = []
        if self._wishes.preferred:
            gained = np.zeros(len(columns.names), np.int64)
            for each in self._wishes.preferred:
                gained += each.weight * self._at(columns, each.term).pods
            among = eligible.present & eligible.allowed & ~columns.vacant
            parts.append(_normal(gained, among))
        for spread in self._wishes.spread:
            if not spread.required:
                ids = self._domains.ids(columns, spread.topology_key)
                counted = self._counted(columns, spread, eligible)
                pods = self._neighbours.counts(spread.pods, spread=True).rows(columns)
                here = _sums(ids, pods, counted).here
                parts.append(np.where(counted, _normal(-here, counted), 0))
        self.points = None
        if parts:
            self.points = (np.add.reduce(parts) // len(parts)).astype(np.int32)

    def _at(self, columns: Columns, term: PodTerm) -> _Here:
        return self._in_domain(columns, term.topology_key, self._neighbours.counts(term.pods))

    def _in_domain(self, columns: Columns, key: str, counts: Counts) -> _Here:
        ids = self._domains.ids(columns, key)
        return _Here(ids, _sums(ids, counts.rows(columns), ids != NO_VALUE).here)


class _Sums(NamedTuple):
    """The number of pods in each topology domain."""

    here: Numbers  # of the row's domain
    least: int  # of all domains
    domains: int


def _sums(ids: Numbers, pods: Numbers, counted: Flags) -> _Sums:
    domains = ids[counted]
    if not len(domains):
        return _Sums(np.zeros(len(ids), np.int64), 0, 0)
    size = int(domains.max()) + 2  # the last bin is for rows without a domain: `NO_VALUE` is -1
    sums = np.bincount(domains, pods[counted], size).astype(np.int64)
    there = np.bincount(domains, minlength=size) > 0
    known = np.where(ids < size - 1, ids, NO_VALUE)
    return _Sums(sums.take(known, mode="wrap"), int(sums[there].min()), int(there.sum()))


def _normal(values: Numbers, counted: Flags) -> Numbers:
    """Scale the counted values linearly, from 0 for the lowest to `POINTS` for the highest."""
    among = values[counted]
    if not len(among) or among.min() == among.max():
        return np.zeros(len(values), np.int64)
    least, most = int(among.min()), int(among.max())
    found: Numbers = (np.clip(values, least, most) - least) * POINTS // (most - least)
    return found
