"""Decide for a gang: place all pods that it still needs, or none.

Required affinity may bind pods of a gang to each other. The first of them to be placed fixes the
topology domain for all. If the others lack room there, the next try starts in another domain. In
the same way, the first pod fixes the device model (see `gang_models`). A gang that is too large for
one batch is planned as a whole in each decision. Each decision places as many pods as fit in a
batch. These pods are held until the last decision releases them. Invariant: a refused gang leaves
no reservation. The number of its tries has a limit."""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from apportion.core.ledger.state import GroupState, PodState, State
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gang_levels import ANYWHERE, GangLevels
from apportion.core.placement.gang_models import Choice
from apportion.core.placement.gangs import GangDeficit, deficit_of, held
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.limits.holdings import NEVER_SEEN
from apportion.core.placement.queueing.keys import wants_key
from apportion.core.placement.queueing.shape_queue import UNDECLARED, Reasons, ShapeQueue
from apportion.core.placement.refusals import Refusing
from apportion.core.placement.reservations import Placed, Reservations
from apportion_schemas import GangShortage, PodTerm, RefusalCode
from apportion_schemas.quantities import GANG_BATCH_MAX

LIMIT: Final = 4  # tries for each domain, if there are several sets
# Tries of one gang in one decision. Each evaluates every node, and delays all other pods: with a
# domain per host, 3,200 tries took 19 s. With more domains a gang may wait although a later one
# would fit.
TRIES_MAX: Final = 64
# Finds of all failed tries in one decision for a gang with parts. A find looks for a node for one
# pod. Once so many have failed, each part is tried in one domain only.
PART_FINDS_MAX: Final = 512
OTHER_MODEL: Final = RefusalCode.GANG_MODEL_MISMATCH
APART: Final = (RefusalCode.POD_ANTI_AFFINITY, RefusalCode.TOPOLOGY_SPREAD_EXCEEDED)

# What was placed, and the first pod that was not, if too few were.
Tried = tuple[list[Placed], PodState | None]
Place = Callable[[GangLevels, list[PodState], GangDeficit, int], Tried]


class BoundPods:
    """Gang pods that affinity binds to one topology domain."""

    def __init__(self, domains: NDArray[np.int64], allowed: NDArray[np.bool_]) -> None:
        self.domains = domains
        self.allowed = allowed
        self.open = allowed.copy()  # rows that the first pod may use
        self.begun = False


class GangDomains:
    """The topology domains to try for one gang."""

    def __init__(
        self,
        finder: PlaceFinder,
        neighbours: Neighbours,
        waiting: list[PodState],
        deficit: GangDeficit,
        tries_max: int,
    ) -> None:
        self._finder = finder
        self._neighbours = neighbours
        self._lacking = deficit.pods - len(waiting)
        self._sets: list[BoundPods] = []
        self.of: dict[str, BoundPods] = {}  # by uid
        for pods in self._bound(waiting):
            bound = self._begin(pods)
            self._sets.append(bound)
            self.of.update((pod.uid, bound) for pod in pods)
        domains = sum(len(np.unique(each.domains[each.allowed])) for each in self._sets)
        tries = domains if len(self._sets) == 1 else LIMIT * domains
        self._tries_left = min(tries, tries_max)

    def next(self, placed: list[Placed]) -> bool:
        """Choose the topology domain for the next try. Return False if none is left.

        `placed` has the placements of the last try. The last set of bound pods in it gets another
        domain."""
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
        # Groups pods that a term selects with those that have the term, ordered by first pod.
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
        # Allow only domains with room for all that is lacking.
        terms = {term: None for pod in pods for term in pod.submitted.shape.pods.affinity}
        domains = self._finder.domains_by(sorted({term.topology_key for term in terms}))
        allowed = np.ones(len(domains), np.bool_)
        all_in_one = all(
            set(pod.submitted.shape.pods.affinity) == set(terms)
            and all(self._neighbours.selects(term.pods, pod.submitted) for term in terms)
            for pod in pods
        ) and not any(self._neighbours.counts(term.pods).by_node for term in terms)
        if all_in_one:
            lacking = self._lacking + len(pods)
            alike = Counter(wants_key(pod) for pod in pods)
            one_of = {wants_key(pod): pod for pod in pods}
            for key, pod in one_of.items():
                room = self._finder.capacity(pod)
                fitting = np.bincount(domains, np.minimum(room, len(pods)))
                allowed &= (fitting >= lacking - len(pods) + alike[key])[domains]
        return BoundPods(domains, allowed)


class GangTurn:
    """Decides for one gang at a time, using the current reservations of one state."""

    def __init__(
        self,
        state: State,
        finder: PlaceFinder,
        neighbours: Neighbours,
        reservations: Reservations,
        refusing: Refusing,
    ) -> None:
        self.batch_max = GANG_BATCH_MAX
        self._state = state
        self._finder = finder
        self._neighbours = neighbours
        self._reservations = reservations
        self._refusing = refusing

    def take(
        self, shape_queue: ShapeQueue, events_left: int, most: int
    ) -> list[Placed] | Reasons | None:
        """Reserve and return placements for all pods that the gang needs, or reasons to refuse.

        Return None if the gang needs more pods than `events_left`, and an empty batch has more
        room: `most` events."""
        # the newest reservation may be of this gang, and counts
        before = self._reservations.checkpoint()
        group = self._state.groups[shape_queue.gang]
        levels = self._begin(group)
        waiting = [self._state.pods[turn.uid] for turn in shape_queue.live(self._state)]
        deficit = deficit_of(group)
        if deficit is None:
            return UNDECLARED
        here = len(held(group))
        shortage = GangShortage(
            needed=here + deficit.pods, present=here + len(waiting), fitting=here
        )
        if not deficit.met_by(waiting):
            return Reasons({RefusalCode.GANG_INCOMPLETE: 0}, (), 0, shortage)
        self._finds_left = PART_FINDS_MAX + len(waiting)
        if max(deficit.pods, levels.largest) > events_left and events_left < most:
            return None
        placed, refused = self._place_in_one_domain(
            levels, waiting, deficit, TRIES_MAX, self._place_on_one_model
        )
        if refused is None:
            self._finder.models.begin = {}
            return self._batch(group, placed, min(events_left, most))
        of_part = self._short
        if of_part is not None and of_part.present < of_part.needed:
            self._undo(before)
            return Reasons({RefusalCode.GANG_INCOMPLETE: 0}, (), 0, of_part)
        reasons = self._reasons(refused, before, alone=bool(placed))
        if of_part is not None:
            reasons = reasons._replace(gang=of_part)
        elif deficit.pods > 1 or levels.required:
            shortage = structs.replace(
                shortage,
                fitting=here + len(placed),
                level=levels.required,
                domain=levels.domain.name if levels.required else "",
            )
            reasons = reasons._replace(gang=shortage)
        if reasons.limit is not None and len({pod.shape_key for pod in waiting}) > 1:
            reasons = reasons._replace(limit=reasons.limit._replace(seen=NEVER_SEEN))
        return reasons

    def _begin(self, group: GroupState) -> GangLevels:
        parts = group.observed.parts if group.observed is not None else ()
        self._levels = self._innermost = GangLevels(self._finder, group, parts=parts)
        self._short: GangShortage | None = None  # what a part of the gang lacks
        return self._levels

    def _reasons(self, refused: PodState, before: Int64, *, alone: bool) -> Reasons:
        # Why the first pod of the gang that does not fit is refused; undoes all reservations since
        # `before`. With `alone`, leave out the room that the gang's own pods took.
        reasons = self._refusing.reasons(refused)
        if OTHER_MODEL in reasons.counts and self._finder.limited:
            self._finder.models.enforced = False
            mixed = self._refusing.reasons(refused)
            self._finder.models.enforced = True
            reasons = reasons if mixed.limit is None else mixed  # no other model would help
        others = self._refusing.nodes_refused(refused, OTHER_MODEL)
        counted = others.copy()
        bounded = self._levels.bounded
        for code in APART if bounded else ():
            counted |= self._refusing.nodes_refused(refused, code)
        self._undo(before)
        if not (alone or bounded) or reasons.limit is not None:
            return reasons
        # No eviction frees what the gang's own pods took. Keep the counts of anti-affinity and
        # spread, and count nodes with room, but of another model or in too small a domain.
        counts, reasons = reasons.counts, self._refusing.reasons(refused)
        among = dict[RefusalCode, int]({code: counts[code] for code in APART if code in counts})
        fits = self._finder.class_of(refused).board.points != REFUSED
        if count := int((fits & others).sum()):
            among[OTHER_MODEL] = count
        if bounded and (count := int((fits & ~counted & ~self._finder.columns.vacant).sum())):
            among[RefusalCode.GANG_DOMAIN_TOO_SMALL] = count
        return reasons._replace(counts=among | reasons.counts)

    def _undo(self, before: Int64) -> None:
        self._reservations.roll_back(before)
        self._reservations.met = False  # no pod was placed after all
        self._finder.models.begin = {}

    def _batch(self, group: GroupState, placed: list[Placed], most: int) -> list[Placed]:
        # The placements that the next batch can hold; takes back the reservations of the others.
        if len(placed) > most:
            self._reservations.roll_back(self._reservations.checkpoint() - len(placed) + most)
        elif not group.held:
            return placed
        held = [(pod, structs.replace(event, held=True)) for pod, event in placed[:most]]
        return held if len(placed) > most else [*held[:-1], placed[-1]]

    def _place_in_one_domain(
        self,
        levels: GangLevels,
        waiting: list[PodState],
        deficit: GangDeficit,
        tries_max: int,
        place: Place,
    ) -> Tried:
        # Tries one topology domain after the other, if the PodGroup names a level. If none has
        # room for all pods, the result and the reservations are those of the best one. A part is
        # not placed there again, because the time would double with each part around it.
        before = self._reservations.checkpoint()
        if not levels:
            return place(levels, waiting, deficit, tries_max)
        self._finds_left -= 1
        domains = levels.domains(waiting, deficit)
        tries_max = max(tries_max // max(len(domains), 1), 1)
        best, most = ANYWHERE, -1
        tried: Tried = [], waiting[0]
        short = self._short
        for domain in domains:
            if most >= 0 and self._finds_left <= 0 and (levels.is_part or levels.divided):
                break
            levels.enter(domain)
            self._finds_left -= 1
            placed, refused = place(levels, waiting, deficit, tries_max)
            if refused is None:
                return placed, None
            self._reservations.roll_back(before)
            if len(placed) >= most:
                best, most = domain, len(placed)
                tried, short = (placed, refused), self._short
        levels.enter(best)
        if most < 0:
            return tried
        if not levels.is_part:
            return place(levels, waiting, deficit, tries_max)
        for pod, found in tried[0]:
            self._reservations.reserve(pod, found)
        self._short = short
        return tried

    def _place_on_one_model(
        self, levels: GangLevels, waiting: list[PodState], deficit: GangDeficit, tries_max: int
    ) -> Tried:
        # Tries one device model after the other. If none has room for all pods, the result and the
        # reservations are those of the model with room for most of them.
        before = self._reservations.checkpoint()
        models = self._finder.models
        models.begin = {}
        placed, refused = self._place_inside(levels, waiting, deficit, tries_max)
        mixed = models.mixed(placed)  # the first pod itself may have several models
        if not placed or (refused is None and not mixed):
            return placed, refused
        best: Choice = {} if mixed else models.chosen(waiting)
        most = -1 if mixed else len(placed)
        tried = placed, refused
        self._reservations.roll_back(before)
        choices = self._finder.model_choices(waiting, deficit.pods, among=levels.domain.rows)
        for choice in choices:
            if most >= 0 and choice == best:
                continue  # tried already
            models.begin = choice
            placed, refused = self._place_inside(
                levels, waiting, deficit, tries_max // len(choices)
            )
            if refused is None:
                return placed, None
            self._reservations.roll_back(before)
            if len(placed) > most:
                best, most, tried = choice, len(placed), (placed, refused)
        models.begin = best
        if levels.divided:
            return self._place_parts(levels, waiting, deficit, tries_max)
        if most < 0:
            return self._place(waiting, deficit, {})
        for pod, found in tried[0]:
            self._reservations.reserve(pod, found)
        return tried

    def _place_inside(
        self, levels: GangLevels, waiting: list[PodState], deficit: GangDeficit, tries_max: int
    ) -> Tried:
        # Places the pods in the domain of `levels`.
        if levels.divided:
            return self._place_parts(levels, waiting, deficit, tries_max)
        self._innermost = levels
        placed, refused = self._place(waiting, deficit, {})
        if refused is None or not self._neighbours.active:
            return placed, refused
        return self._place_elsewhere(waiting, deficit, (placed, refused), tries_max)

    def _place_parts(
        self, levels: GangLevels, waiting: list[PodState], deficit: GangDeficit, tries_max: int
    ) -> Tried:
        # Places one part of the gang after the other. A part without a minimum may be left out, and
        # one with a size only as a whole.
        placed: list[Placed] = []
        failed: PodState | None = None
        incomplete: GangShortage | None = None
        failed_whole: set[Hashable] = set()
        for part, pods in levels.parts(waiting, deficit):
            wanted = part.deficit(pods, deficit)
            alike = part.alike(pods)
            if not wanted.pods or alike in failed_whole:
                continue
            short = part.shortage(wanted, pods)
            if not wanted.met_by(pods):
                incomplete = short
                continue
            before = self._reservations.checkpoint()
            found, refused = self._place_in_one_domain(
                part, pods, wanted, tries_max, self._place_inside
            )
            if refused is not None:
                failed = failed or refused
                if not part.divided:
                    fitting, domain = short.fitting + len(found), part.domain.name
                    short = structs.replace(short, fitting=fitting, domain=domain)
                    self._short = short if part.required else None
                if wanted.tasks:
                    return [*placed, *found], refused
                if part.size:
                    self._reservations.roll_back(before)
                    if alike is not None and not self._neighbours.active:
                        failed_whole.add(alike)
                    continue
            placed += found
            for pod, _ in found:
                deficit = deficit.less(pod) or deficit
            if not deficit.pods:
                self._short = None
                return placed, None
        if failed is None:
            self._short = incomplete
        return placed, failed or waiting[0]

    def _place_elsewhere(
        self, waiting: list[PodState], deficit: GangDeficit, first: Tried, tries_max: int
    ) -> Tried:
        # Tries one domain after the other. The first try's result is returned with its reservations
        # unless a later try places all.
        if not any(pod.submitted.shape.pods.affinity for pod in waiting):
            return first
        before = self._reservations.checkpoint() - len(first[0])
        self._reservations.roll_back(before)
        domains = GangDomains(self._finder, self._neighbours, waiting, deficit, tries_max)
        tried = first[0]
        while domains.next(tried):
            tried, failed = self._place(waiting, deficit, domains.of)
            if failed is None:
                return tried, None
            self._reservations.roll_back(before)
        self._place(waiting, deficit, {})
        return first

    def _place(
        self, waiting: list[PodState], deficit: GangDeficit, near: dict[str, BoundPods]
    ) -> Tried:
        """Reserve placements for the pods that a gang needs, skipping those that fit nowhere.

        If too few fit, also return the first skipped pod. Skipped pods are tried again, because a
        pod placed later may satisfy their affinity."""
        placed: list[Placed] = []
        self._innermost.begin()
        while True:
            refused: dict[bytes, PodState] = {}
            passed_over: list[PodState] = []
            before = len(placed)
            for pod in waiting:
                rest = deficit.less(pod)
                if rest is None:
                    continue
                bound = near.get(pod.uid)
                self._reservations.charge()
                self._finds_left -= 1
                among = bound.open if bound is not None and not bound.begun else None
                alike = refused and self._finder.key_of(pod) in refused
                found = None if alike else self._innermost.find(pod, among)
                if found is None:
                    refused.setdefault(self._finder.key_of(pod), pod)
                    passed_over.append(pod)
                    continue
                if bound is not None:
                    bound.begun = True
                self._reservations.reserve(pod, found)
                placed.append((pod, found))
                deficit = rest
                if not deficit.pods:
                    return placed, None
            if len(placed) == before or not self._neighbours.active:
                return placed, next(iter(refused.values()))
            waiting = passed_over
