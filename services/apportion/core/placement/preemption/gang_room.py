"""Room for a whole gang: for all that it lacks, or nobody is evicted for it.

Its pods take places one after the other, as if they were placed; one that fits nowhere evicts as a
pod alone would, upon what the others take and have freed. Invariant: what was thought away and
reserved is put back before the answer is given.
"""

from typing import Final

import numpy as np

from apportion.core.ledger.state import PodState, State
from apportion.core.placement.feasibility import FITS
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import deficit_of
from apportion.core.placement.preemption.victims import DryRun, Lifted, Victims, eviction
from apportion.core.placement.queueing.keys import wants_key
from apportion.core.placement.queueing.shape_queue import ShapeQueue
from apportion.core.placement.reservations import Reservations
from apportion_schemas import PodEvicted
from apportion_schemas.quantities import GANG_PODS_MAX

FOUND_MAX: Final = 8
"""Nodes that are compared for each pod of a gang."""


class GangRoom:
    """Asks, for the gangs of one state, whom to evict so that all of it fits."""

    def __init__(
        self, state: State, finder: PlaceFinder, reservations: Reservations, dry_run: DryRun
    ) -> None:
        self._state = state
        self._finder = finder
        self._reservations = reservations
        self.dry_run = dry_run

    def make(self, shape_queue: ShapeQueue) -> list[PodEvicted]:
        """Whom to evict for the gang; nobody if that would not be enough, or some leave already."""
        waiting = [self._state.pods[turn.uid] for turn in shape_queue.live(self._state)]
        deficit = deficit_of(self._state.groups[shape_queue.gang])
        if deficit is None or deficit.pods > GANG_PODS_MAX or not deficit.met_by(waiting):
            return []
        if any(pod.uid in self._state.nominated for pod in waiting):
            return []
        before = self._reservations.checkpoint()
        lifted: list[Lifted] = []
        evicted: list[PodEvicted] = []
        rows: dict[bytes, list[int]] = {}
        for pod in waiting:
            rest = deficit.less(pod)
            if rest is None:
                continue
            if not self._place(pod, rows, lifted, evicted):
                break
            deficit = rest
            if not deficit.pods:
                break
        self._reservations.roll_back(before)
        self._reservations.met = False
        for each in reversed(lifted):
            self.dry_run.put_back(each)
        return [] if deficit.pods else evicted

    def _place(
        self,
        pod: PodState,
        rows: dict[bytes, list[int]],
        lifted: list[Lifted],
        evicted: list[PodEvicted],
    ) -> bool:
        """Reserve a place for the pod, where others go if they must; whether there is one."""
        self._reservations.charge()
        found = self._finder.find(pod)
        if found is None:
            victims = self._victims(pod, rows)
            if victims is None:
                return False
            evicted += [eviction(each, pod, victims) for each in victims.pods]
            lifted += [self.dry_run.lift(each) for each in victims.pods]
            found = self._finder.find(pod)
            if found is None:
                return False
        self._reservations.reserve(pod, found)
        return True

    def _victims(self, pod: PodState, rows: dict[bytes, list[int]]) -> Victims | None:
        """Who would go for the pod; nodes that are no good for it are not tried for those alike."""
        if not pod.submitted.preempts:
            return None
        key = wants_key(pod)
        if key not in rows:
            right = self._finder.class_of(pod).facts.ranks == FITS
            rows[key] = np.flatnonzero(right).tolist()
        left = rows[key]
        best: Victims | None = None
        found = 0
        for row in list(left):
            victims = self.dry_run.victims(pod, row)
            if victims is None or not victims.units:
                left.remove(row)
                continue
            found += 1
            if best is None or victims.better_than(best):
                best = victims
            if found >= FOUND_MAX:
                break
        return best
