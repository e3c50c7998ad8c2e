"""Keep the pods of a gang in one topology domain, such as a rack, if its PodGroup asks for that.

A level is a label key, and the nodes with the same value are a domain. The domain with the least
room is tried first, so that a large one stays whole. If a gang lacks at most one pod to start, the
domain with the most room is tried first, because further pods may follow. If no domain of the
preferred level has room for all, each coarser level of the topology is tried. In a domain of such a
level, the pods fill the domains of the preferred level one after the other, and so use few of them.
Parts of a gang may have levels of their own, within the domain of the whole.
Invariant: while a gang has placed pods, further pods only get nodes of their domain."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apportion.core.ledger.state import GroupState, PodState
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import GangDeficit
from apportion.core.placement.index.labels import NO_VALUE, Domains
from apportion.core.placement.queueing.keys import wants_key
from apportion_schemas import GangPart, GangShortage, PodPlaced

# Domains tried for one gang in one decision: half of them with the least room, half with the most.
# They are fewer if the gang has many pods, because each try looks for a node for each pod.
DOMAINS_MAX: Final = 64
FINDS_MAX: Final = 2_048
PART_DOMAINS_MAX: Final = 8  # if a gang has parts, because each try of the whole tries each part
INNER_MAX: Final = 32  # domains of the preferred level that are filled one after the other


class Domain:
    """Nodes on which all pods of a gang may be: those with this number, or all nodes."""

    def __init__(
        self, domains: Domains | None = None, number: int = 0, *, finest: bool = False
    ) -> None:
        self.name = "" if domains is None else domains.names[number]
        self.finest = finest  # of the preferred level
        self._domains, self._number = domains, number

    @cached_property
    def rows(self) -> NDArray[np.bool_] | None:
        """A flag per row; None is all nodes."""
        return None if self._domains is None else self._domains.ids == self._number


class Room(NamedTuple):
    """How many waiting pods fit into each domain at most, and how many if there were more."""

    fitting: NDArray[np.int64]
    most: NDArray[np.int64]


ANYWHERE: Final = Domain()


class GangLevels:
    """The topology levels of a gang or of a part of it, and the domain in which it is tried now."""

    def __init__(
        self,
        finder: PlaceFinder,
        group: GroupState,
        part: GangPart | None = None,
        *,
        pods: Iterable[PodState] | None = None,
        parts: Sequence[GangPart] = (),
        within: Domain = ANYWHERE,
    ) -> None:
        whole = group.observed
        said = whole if part is None else part
        self.required = said.required_level if said is not None else ""
        self.size = part.size if part is not None else 0
        self._said = part
        self._preferred = said.preferred_level if said is not None else ""
        self._topology = list(part.levels) if part is not None else []
        if not self._topology and whole is not None:
            self._topology = list(whole.levels)
        self._finder = finder
        self._group = group
        self._pods = group.pods.values() if pods is None else pods
        self._parts = parts
        self._within = within
        self.is_part = part is not None
        self._domains_max = PART_DOMAINS_MAX if parts or self.is_part else DOMAINS_MAX
        self._waiting: list[PodState] = []
        self._inner: list[NDArray[np.bool_]] = []
        self._full: dict[bytes, int] = {}  # how many of `_inner` have no room for such pods
        self.domain = within

    def __bool__(self) -> bool:
        """Return True if the gang, or this part of it, has any level."""
        return bool(self.required or self._preferred)

    @property
    def divided(self) -> bool:
        """Return True if parts of the gang have levels of their own."""
        return bool(self._parts)

    @property
    def bounded(self) -> bool:
        """Return True if the gang or a part of it must be in one domain."""
        return bool(self.required or any(part.required_level for part in self._parts))

    @property
    def largest(self) -> int:
        """Return how many pods of a part are placed together at most; 0 if no part has a size."""
        return max((part.size for part in self._parts), default=0)

    def parts(
        self, waiting: list[PodState], deficit: GangDeficit
    ) -> list[tuple["GangLevels", list[PodState]]]:
        """Divide the waiting pods among the parts of the gang.

        The parts with pods that the deficit names are first, and then those with most pods. Pods in
        no part are a part of their own, after the others."""
        found: list[tuple[GangLevels, list[PodState]]] = []
        rest = list(self._parts)
        while rest:
            part, *rest = rest
            tasks = frozenset(part.tasks)
            inside = [each for each in rest if tasks.issuperset(each.tasks)]
            rest = [each for each in rest if not tasks.issuperset(each.tasks)]
            mine = _by_value(waiting, part)
            whole = _by_value(self._pods, part)
            waiting = [pod for pod in waiting if pod.submitted.task not in tasks]
            for value, pods in mine.items():
                found.append((self._part(part, whole[value], inside), pods))
        found.sort(key=lambda each: -len(each[1]))
        if waiting:
            found.append((self._part(GangPart(tasks=("",)), waiting, ()), waiting))
        found.sort(key=lambda each: not any(deficit.tasks[pod.submitted.task] for pod in each[1]))
        return found

    def _part(
        self, part: GangPart, pods: list[PodState], inside: Sequence[GangPart]
    ) -> "GangLevels":
        return GangLevels(
            self._finder, self._group, part, pods=pods, parts=inside, within=self.domain
        )

    @property
    def _here(self) -> int:
        return sum(pod.placement is not None for pod in self._pods)

    def alike(self, waiting: list[PodState]) -> Hashable:
        """Return a key that is equal for parts that fit into the same domains.

        Return None if the part need not be placed as a whole, or has placed pods."""
        if not self.size or self._here:
            return None
        return self._said, tuple(sorted(Counter(map(wants_key, waiting)).items()))

    def shortage(self, wanted: GangDeficit, waiting: list[PodState]) -> GangShortage:
        """Return what this part lacks before any of its waiting pods is placed."""
        here = self._here
        return GangShortage(
            needed=here + wanted.pods,
            present=here + len(waiting),
            fitting=here,
            level=self.required,
        )

    def deficit(self, waiting: list[PodState], deficit: GangDeficit) -> GangDeficit:
        """Return what this part has to place if the gang has this deficit."""
        tasks = deficit.tasks & Counter(pod.submitted.task for pod in waiting)
        others = min(deficit.others, len(waiting) - tasks.total())
        if self.size and (pods := tasks.total() + others):
            return GangDeficit(Counter(), max(self.size - self._here, pods))
        return GangDeficit(tasks, others)

    def domains(self, waiting: list[PodState], deficit: GangDeficit) -> list[Domain]:
        """Return the domains to try, in order: preferred level, coarser levels, required level.

        If no domain of the required level has room for the whole gang, return only the one with
        the most room. If no node has the label of the required level, return an empty list."""
        self._waiting = waiting
        wide = self._of(self.required, deficit) if self.required else [self._within]
        if not wide:
            return []
        levels = self._narrower()
        most = FINDS_MAX // max(len(levels), 1)
        found = [domain for level in levels for domain in self._of(level, deficit, most)]
        return [*found, *wide]

    def to_clear(self, waiting: list[PodState], most: int) -> list[list[Domain]]:
        """Return the domains in which evictions may make room, by level, the finest first.

        Each level has at most `most` of them, those with most free room. All nodes are last, if no
        level is required."""
        self._waiting = waiting
        found: list[list[Domain]] = []
        for level in [*self._narrower(), *filter(None, [self.required])]:
            domains = self._domains(level)
            placed, room = self._placed(domains), self._room(domains)
            del placed[NO_VALUE]
            numbers = sorted(
                (-int(room.fitting[each]), domains.names[each], each)
                for each in _inhabited(domains)
                if not placed or each in placed
            )
            found.append([self._domain(level, domains, each[-1]) for each in numbers[:most]])
        return found if self.required else [*found, [self._within]]

    def enter(self, domain: Domain) -> None:
        """Try the pods in this domain from now on."""
        self.domain = domain
        self._inner = []
        if self._preferred and not domain.finest and self._preferred != self.required:
            self._inner = self._inner_of(domain)

    def begin(self) -> None:
        """Start to place the gang's pods in the domain."""
        self._full = {}

    def find(self, pod: PodState, among: NDArray[np.bool_] | None) -> PodPlaced | None:
        """Return the best placement in the domain, if possible where the others of the gang are.

        `among` restricts the nodes."""
        rows = self.domain.rows
        if rows is not None:
            among = rows if among is None else among & rows
        key = self._finder.key_of(pod) if self._inner else b""
        for part in self._inner[self._full.get(key, 0) :]:
            found = self._finder.find(pod, part if among is None else part & among)
            if found is not None:
                return found
            self._full[key] = self._full.get(key, 0) + 1
        return self._finder.find(pod, among)

    def _narrower(self) -> list[str]:
        # The levels to try before the required one, the finest first.
        tree, preferred = self._topology, self._preferred
        if not preferred or preferred == self.required:
            return []
        if preferred not in tree:
            return [preferred]
        top = tree.index(self.required) + 1 if self.required in tree else 0
        return tree[top : tree.index(preferred) + 1][::-1]

    def _domains(self, level: str) -> Domains:
        # Domains are apart if a coarser level differs, too.
        tree = self._topology
        path = tree[: tree.index(level) + 1] if level in tree else [level]
        if self.required and self.required not in path:
            path = [self.required, *path]
        found = self._finder.domains(path, level, self.required)
        rows = self._within.rows
        return found if rows is None else found.within(rows)

    def _room(self, domains: Domains) -> Room:
        # Pods that need a common model count only on the model with most room for them.
        fitting = np.zeros(len(domains.names), np.int64)
        left = {pod.uid: pod for pod in self._waiting}
        most = sum((self._fitting(domains, pod) for pod in _one_of_each(left.values())), fitting)
        models, begun = self._finder.models, self._finder.models.begin
        for kin, pods in models.open(self._waiting).items():
            mine = [left.pop(pod.uid) for pod in pods if pod.uid in left and kin not in begun]
            on_model = np.zeros(len(domains.names), np.int64)
            for model in models.of_family(kin[1]) if mine else ():
                models.begin = begun | {kin: model}
                on_model = np.maximum(on_model, self._fitting_of(domains, mine))
            fitting = fitting + on_model
        models.begin = begun
        return Room(fitting + self._fitting_of(domains, list(left.values())), most)

    def _fitting_of(self, domains: Domains, pods: Sequence[PodState]) -> NDArray[np.int64]:
        # How many of these pods fit into each domain at most.
        alike = Counter(wants_key(pod) for pod in pods)
        found = np.zeros(len(domains.names), np.int64)
        for pod in _one_of_each(pods):
            found += np.minimum(self._fitting(domains, pod), alike[wants_key(pod)])
        return found

    def _fitting(self, domains: Domains, pod: PodState) -> NDArray[np.int64]:
        # How many pods like this fit into each domain at most.
        capacity = self._finder.capacity(pod)
        by_domain = np.bincount(domains.ids - NO_VALUE, capacity, len(domains.names) + 1)
        return by_domain[1:].astype(np.int64)

    def _placed(self, domains: Domains) -> Counter[int]:
        columns = self._finder.columns
        return Counter(
            int(domains.ids[columns.row_of(pod.placement.node)])
            for pod in self._pods
            if pod.placement is not None and pod.placement.node in columns
        )

    def _of(self, level: str, deficit: GangDeficit, most: int = FINDS_MAX) -> list[Domain]:
        # The domains of a level in the order in which they are tried. A required level has one,
        # even if no domain has room for all.
        domains = self._domains(level)
        placed = self._placed(domains)
        if placed:
            del placed[NO_VALUE]  # where nodes lost the label
            if not placed or (len(placed) > 1 and self._group.held):
                return []
            (number, _), *_ = placed.most_common(1)
            return [self._domain(level, domains, number)]
        room = self._room(domains)
        # If more pods may come, the domain with most room is first.
        elastic = deficit.pods <= 1 and not (self.size or (self.is_part and deficit.tasks))
        room_first = -room.most if elastic else room.most
        lacks = np.maximum(deficit.pods - room.fitting, 0)
        order = np.lexsort((domains.by_name, room_first, -room.fitting, lacks))
        found = order[room.fitting[order] > 0].tolist()
        if found and lacks[found[0]]:
            return [self._domain(level, domains, found[0])] if level == self.required else []
        found = [each for each in found if not lacks[each]]
        most = min(max(most // len(self._waiting), 2), self._domains_max)
        if len(found) > most:
            found = found[: most - most // 2] + found[-(most // 2) :]
        return [self._domain(level, domains, each) for each in found]

    def _domain(self, level: str, domains: Domains, number: int) -> Domain:
        return Domain(domains, number, finest=level == self._preferred)

    def _inner_of(self, domain: Domain) -> list[NDArray[np.bool_]]:
        # The domains of the preferred level in this one: first those with pods of the gang, then
        # those with most room.
        domains = self._domains(self._preferred)
        room, placed = self._room(domains), self._placed(domains)
        inside = domains if domain.rows is None else domains.within(domain.rows)
        found = sorted(
            (-placed[each], -int(room.most[each]), domains.names[each], each)
            for each in _inhabited(inside)
        )
        return [inside.ids == each for *_, each in found[:INNER_MAX]]


def _by_value(pods: Iterable[PodState], part: GangPart) -> dict[str, list[PodState]]:
    # The pods of the part's tasks, by their value of the label that splits them.
    tasks, key = frozenset(part.tasks), part.split_by
    found: dict[str, list[PodState]] = {}
    for pod in pods:
        if pod.submitted.task in tasks:
            found.setdefault(pod.submitted.labels.get(key, "") if key else "", []).append(pod)
    return found


def _one_of_each(pods: Iterable[PodState]) -> list[PodState]:
    # One pod for each set of equal pods.
    return list({wants_key(pod): pod for pod in pods}.values())


def _inhabited(domains: Domains) -> list[int]:
    # The numbers of the domains that have nodes.
    return np.flatnonzero(domains.first != NO_VALUE).tolist()
