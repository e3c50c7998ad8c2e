"""The turn of a gang: places for all that it lacks, or for none of it.

Invariant: a gang that is refused leaves no reservation behind.
"""

from typing import Final

from msgspec import structs

from apportion.core.ledger.state import PodState, State
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gang_domains import BoundPods, GangDomains
from apportion.core.placement.gangs import GangDeficit, deficit_of, held
from apportion.core.placement.limits.limits import NEVER_SEEN
from apportion.core.placement.queueing.shape_queue import UNDECLARED, Reasons, ShapeQueue
from apportion.core.placement.refusals import Refusing
from apportion.core.placement.reservations import Placed, Reservations
from apportion_schemas import GangShortage, RefusalCode
from apportion_schemas.quantities import GANG_PODS_MAX

APART: Final = (RefusalCode.POD_ANTI_AFFINITY, RefusalCode.TOPOLOGY_SPREAD_EXCEEDED)


class GangTurn:
    """Decides for gangs over one state, one after the other."""

    def __init__(
        self,
        state: State,
        finder: PlaceFinder,
        neighbours: Neighbours,
        reservations: Reservations,
        refusing: Refusing,
    ) -> None:
        self._state = state
        self._finder = finder
        self._neighbours = neighbours
        self._reservations = reservations
        self._refusing = refusing

    def take(self, shape_queue: ShapeQueue, events_left: int) -> list[Placed] | Reasons | None:
        """Places for what the gang lacks, which are reserved then, or why there are not enough.

        None where it lacks more pods than there may be events: it waits for a batch of its own.
        """
        before = self._reservations.checkpoint()  # the newest may be one of this gang, and counts
        group = self._state.groups[shape_queue.gang]
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
        if deficit.pods > GANG_PODS_MAX:
            return Reasons({RefusalCode.GANG_TOO_LARGE: 0}, (), 0, shortage)
        if deficit.pods > events_left:
            return None
        placed, refused = self._place(waiting, deficit, {})
        if refused is not None and self._neighbours.active:
            placed, refused = self._place_elsewhere(waiting, deficit, placed, refused)
        if refused is None:
            return placed
        reasons = self._refusing.reasons(refused)
        self._reservations.roll_back(before)
        self._reservations.met = False  # nobody was placed after all
        if placed and reasons.limit is None:
            # Without the gang's own places, which need no room that anyone could make. That pods of
            # the gang keep each other away, or apart, is said as it was beside them.
            alone = self._refusing.reasons(refused)
            among = {code: reasons.counts[code] for code in APART if code in reasons.counts}
            reasons = alone._replace(counts=among | alone.counts)
        if deficit.pods > 1:
            shortage = structs.replace(shortage, fitting=here + len(placed))
            reasons = reasons._replace(gang=shortage)
        if reasons.limit is not None and len({pod.shape_key for pod in waiting}) > 1:
            reasons = reasons._replace(limit=reasons.limit._replace(seen=NEVER_SEEN))
        return reasons

    def _place_elsewhere(
        self, waiting: list[PodState], deficit: GangDeficit, placed: list[Placed], refused: PodState
    ) -> tuple[list[Placed], PodState | None]:
        """Like `_place`, in one domain after the other where pods must be near one another.

        `placed` and `refused` are what came of the first try, whose reservations still count, and
        are the answer unless a later try places all.
        """
        if not any(pod.submitted.shape.pods.affinity for pod in waiting):
            return placed, refused
        before = self._reservations.checkpoint() - len(placed)
        self._reservations.roll_back(before)
        domains = GangDomains(self._finder, self._neighbours, waiting, deficit)
        tried = placed
        while domains.next(tried):
            tried, failed = self._place(waiting, deficit, domains.of)
            if failed is None:
                return tried, None
            self._reservations.roll_back(before)
        self._place(waiting, deficit, {})
        return placed, refused

    def _place(
        self, waiting: list[PodState], deficit: GangDeficit, near: dict[str, BoundPods]
    ) -> tuple[list[Placed], PodState | None]:
        """Reserve places for what a gang lacks, passing over pods that fit nowhere.

        With them comes the first pod that was passed over, if those that fit are too few. A pod
        that must be near another of the gang may fit once that has a place, and is tried again.
        Of pods that are bound to one another, as `near` has them by uid, the first goes only where
        that is open to it.
        """
        placed: list[Placed] = []
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
                key = self._finder.key_of(pod)
                among = bound.open if bound is not None and not bound.begun else None
                found = None if key in refused else self._finder.find(pod, among)
                if found is None:
                    refused.setdefault(key, pod)
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
