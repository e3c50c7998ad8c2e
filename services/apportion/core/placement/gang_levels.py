"""Keep the pods of a gang in one topology domain, such as a rack, if its PodGroup asks for that.

A level is a label key, and the nodes with the same value are a domain. Domains are tried in the
order of their room, the one with the least first, so that a large one stays whole. Invariant: while
a gang has placed pods, further pods only get nodes of their domain."""

from collections import Counter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.ledger.state import GroupState, PodState
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import GangDeficit
from apportion.core.placement.index.labels import NO_VALUE
from apportion.core.placement.queueing.keys import wants_key

DOMAINS_MAX: Final = 64  # tried for one gang in one decision


class Domain(NamedTuple):
    """Nodes on which all pods of a gang may be, as a flag per row; None is all nodes."""

    rows: NDArray[np.bool_] | None = None
    name: str = ""


ANYWHERE: Final = Domain()


class GangLevels:
    """The topology levels of one gang, and the domain in which its pods are tried now."""

    def __init__(self, finder: PlaceFinder, group: GroupState) -> None:
        said = group.observed
        self.required = said.required_level if said is not None else ""
        self._preferred = said.preferred_level if said is not None else ""
        self._finder = finder
        self._group = group
        self.domain = ANYWHERE

    def __bool__(self) -> bool:
        """Return True if the gang has any level."""
        return bool(self.required or self._preferred)

    def domains(self, waiting: list[PodState], deficit: GangDeficit) -> list[Domain]:
        """Return the domains to try: those of the preferred level, then of the required one.

        If no domain has room for all, return only the one with room for most; none if no node has
        the label."""
        wide = self._of(self.required, waiting, deficit) if self.required else [ANYWHERE]
        if not self._preferred or self._preferred == self.required:
            return wide
        return [*self._of(self._preferred, waiting, deficit), *wide]

    def _of(self, level: str, waiting: list[PodState], deficit: GangDeficit) -> list[Domain]:
        columns = self._finder.columns
        ids = self._finder.domain_ids(level)
        rows = [
            columns.row_of(pod.placement.node)
            for pod in self._group.pods.values()
            if pod.placement is not None and pod.placement.node in columns
        ]
        if rows:  # stay where most pods are
            counted = Counter(int(ids[row]) for row in rows)
            (number, _), *_ = counted.most_common(1)
            return [] if number == NO_VALUE else [self._domain(level, ids, number)]
        labelled = ids != NO_VALUE
        count = int(ids.max(initial=NO_VALUE)) + 1
        fitting, room = np.zeros(count, np.int64), np.zeros(count, np.int64)
        alike = Counter(wants_key(pod) for pod in waiting)
        one_of = {wants_key(pod): pod for pod in waiting}
        for key, pod in one_of.items():
            capacity = self._finder.class_of(pod).capacity(columns)[labelled]
            by_domain = np.bincount(ids[labelled], capacity, count).astype(np.int64)
            fitting += np.minimum(by_domain, alike[key])
            room += by_domain
        numbers = np.flatnonzero(fitting >= deficit.pods)
        if not len(numbers):
            numbers = np.array([fitting.argmax()]) if count and fitting.any() else numbers
        # those with room also for pods beyond the minimum, then those with room for most
        found = []
        for each in numbers.tolist():
            beyond = len(waiting) - int(fitting[each])
            domain = self._domain(level, ids, each)
            found.append((beyond, int(room[each]), domain.name, domain))
        found.sort(key=lambda each: each[:3])
        return [each[3] for each in found[:DOMAINS_MAX]]

    def _domain(self, level: str, ids: NDArray[np.int64], number: int) -> Domain:
        rows = ids == number
        return Domain(rows, self._finder.domain_name(level, int(rows.argmax())))
