"""Keep the pods of a gang in one topology domain, such as a rack, if its PodGroup asks for that.

A level is a label key, and the nodes with the same value are a domain. The domain with the least
room is tried first, so that a large one stays whole. If a gang may start with one pod, the domain
with the most room is tried first, because further pods must follow. Invariant: while a gang has
placed pods, further pods only get nodes of their domain."""

from collections import Counter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.ledger.state import GroupState, PodState
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import GangDeficit
from apportion.core.placement.index.labels import NO_VALUE
from apportion.core.placement.queueing.keys import wants_key

# Domains tried for one gang in one decision: half of them with the least room, half with the most.
# They are fewer if the gang has many pods, because each try looks for a node for each pod.
DOMAINS_MAX: Final = 64
FINDS_MAX: Final = 2_048


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

        A preferred domain is within a required one. If no domain has room for all, return only the
        one with room for most; none if no node has the label of the required level."""
        wide = self._of([self.required], waiting, deficit) if self.required else [ANYWHERE]
        if not wide or not self._preferred or self._preferred == self.required:
            return wide
        levels = [each for each in (self.required, self._preferred) if each]
        return [*self._of(levels, waiting, deficit), *wide]

    def _of(self, levels: list[str], waiting: list[PodState], deficit: GangDeficit) -> list[Domain]:
        # The nodes of a domain have equal values of all these labels.
        columns, level = self._finder.columns, levels[-1]
        ids = self._finder.domain_ids(levels)
        placed = Counter(
            int(ids[columns.row_of(pod.placement.node)])
            for pod in self._group.pods.values()
            if pod.placement is not None and pod.placement.node in columns
        )
        if placed:
            del placed[NO_VALUE]  # where nodes lost the label
            if not placed or (len(placed) > 1 and self._group.held):
                return []
            (number, _), *_ = placed.most_common(1)
            return [self._domain(level, ids, number)]
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
        elastic = deficit.pods <= 1  # more pods may come: the domain with most room is first
        found = []
        for each in np.flatnonzero(fitting).tolist():
            domain, fits = self._domain(level, ids, each), int(fitting[each])
            order = -int(room[each]) if elastic else int(room[each])
            found.append((fits < deficit.pods, len(waiting) - fits, order, domain.name, domain))
        found.sort(key=lambda each: each[:4])
        if found and found[0][0]:
            return [found[0][-1]]
        domains = [each[-1] for each in found if not each[0]]
        most = min(max(FINDS_MAX // len(waiting), 2), DOMAINS_MAX)
        if len(domains) > most:
            domains = domains[: most - most // 2] + domains[-(most // 2) :]
        return domains

    def _domain(self, level: str, ids: NDArray[np.int64], number: int) -> Domain:
        rows = ids == number
        return Domain(rows, self._finder.domain_name(level, int(rows.argmax())))
