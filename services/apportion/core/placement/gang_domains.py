"""Where the pods of a gang may begin that required affinity binds to one another.

The first of them to be placed decides the domain for all. When the gang then lacks room, the next
try starts in another domain, in the order of the best node of each, until no domain is left.

Where there are several sets of such pods, the choices of the first pods are tried in combination.

Invariant: one set has no more tries than there are domains; several sets have no more than `LIMIT`
tries for each domain of each set; and no gang has more than `TRIES_MAX`.
"""

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.ledger.state import PodState
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import GangDeficit
from apportion.core.placement.queueing.keys import wants_key
from apportion.core.placement.reservations import Placed
from apportion_schemas import PodTerm

LIMIT: Final = 4
"""Tries for each domain, where there are several sets."""
TRIES_MAX: Final = 64
"""Tries of one gang in one decision: each looks at every node, and no other pod is decided in the
meantime. With more domains that have room for a pod a gang may wait though a later one could hold
it; by host, 3,200 tries took 19 s."""


class BoundPods:
    """Pods of one gang that are bound to each other.

    `domains` has the domain of each row. `allowed` are the rows where the first pod may go at all,
    `open` those that are left to try.
    """

    def __init__(self, domains: NDArray[np.int64], allowed: NDArray[np.bool_]) -> None:
        self.domains = domains
        self.allowed = allowed
        self.open = allowed.copy()
        self.begun = False


class GangDomains:
    """The domains that one gang tries; `of` has the bound pods by uid, none where none is bound."""

    def __init__(
        self,
        finder: PlaceFinder,
        neighbours: Neighbours,
        waiting: list[PodState],
        deficit: GangDeficit,
    ) -> None:
        self._finder = finder
        self._neighbours = neighbours
        self._lacking = deficit.pods - len(waiting)
        self._sets: list[BoundPods] = []
        self.of: dict[str, BoundPods] = {}
        for pods in self._bound(waiting):
            bound = self._begin(pods)
            self._sets.append(bound)
            self.of.update((pod.uid, bound) for pod in pods)
        domains = sum(len(np.unique(each.domains[each.allowed])) for each in self._sets)
        tries = domains if len(self._sets) == 1 else LIMIT * domains
        self._tries_left = min(tries, TRIES_MAX)

    def next(self, placed: list[Placed]) -> bool:
        """Choose where the next try begins, after one that placed these. False if no try is left.

        Of the sets that began, the last one leaves its domain out, and for those behind it all
        domains are open again.
        """
        begun: dict[BoundPods, int] = {}
        for pod, found in placed:
            if pod.uid in self.of:
                begun.setdefault(self.of[pod.uid], self._finder.columns.row_of(found.node))
        if not begun or self._tries_left <= 0:
            return False
        self._tries_left -= 1
        first_try = not all(bound.allowed[row] for bound, row in begun.items())
        for each in self._sets:
            each.begun = False
        for each in () if first_try else reversed(self._sets):
            if each in begun:  # do not begin in the domain of this row again
                each.open &= each.domains != each.domains[begun[each]]
                break
            each.open = each.allowed.copy()
        return True

    def _bound(self, waiting: list[PodState]) -> list[list[PodState]]:
        """The waiting pods by what binds them: a term's pods, and those that have the term.

        The set whose first pod comes first is the first one.
        """
        by_term: dict[PodTerm, list[PodState]] = {}
        for pod in waiting:
            for term in pod.submitted.shape.pods.affinity:
                by_term.setdefault(term, []).append(pod)
        found: list[dict[str, PodState]] = []
        for term, owners in by_term.items():
            meant = (pod for pod in waiting if self._neighbours.selects(term.pods, pod.submitted))
            joined = {pod.uid: pod for pod in (*owners, *meant)}
            for other in [each for each in found if not joined.keys().isdisjoint(each)]:
                found.remove(other)
                joined.update(other)
            found.append(joined)
        place = {pod.uid: at for at, pod in enumerate(waiting)}
        found.sort(key=lambda pods: min(place[uid] for uid in pods))
        return [list(pods.values()) for pods in found]

    def _begin(self, pods: list[PodState]) -> BoundPods:
        """No domain was tried; those that cannot hold all that is lacking are left out."""
        terms = {term: None for pod in pods for term in pod.submitted.shape.pods.affinity}
        domains = self._finder.domains_by(sorted({term.topology_key for term in terms}))
        allowed = np.ones(len(domains), np.bool_)
        if self._all_in_one(pods, list(terms)):
            lacking = self._lacking + len(pods)
            alike = Counter(wants_key(pod) for pod in pods)
            one_of = {wants_key(pod): pod for pod in pods}
            for key, pod in one_of.items():
                room = self._finder.class_of(pod).capacity(self._finder.columns)
                fitting = np.bincount(domains, np.minimum(room, len(pods)))
                allowed &= (fitting >= lacking - len(pods) + alike[key])[domains]
        return BoundPods(domains, allowed)

    def _all_in_one(self, pods: list[PodState], terms: list[PodTerm]) -> bool:
        """Whether no two of them may be in different domains: each has all terms, each is meant by
        all, and no pod that is placed is.
        """
        return all(
            set(pod.submitted.shape.pods.affinity) == set(terms)
            and all(self._neighbours.selects(term.pods, pod.submitted) for term in terms)
            for pod in pods
        ) and not any(self._neighbours.counts(term.pods).by_node for term in terms)
