"""Decide when to retry unschedulable shape queues (groups of identical pods).

Invariant: a shape queue stays unschedulable only while none of its pods can be placed. A gang is
the exception: it is retried only after a release, and if all nodes together may have room."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.devices.demand import NO_FACTS, FleetFacts
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.feasibility.descriptors import GANG, REORDERED, SOME
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import deficit_of
from apportion.core.placement.index import ask_loops, packed
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.device_kinds import FIRST_KIND
from apportion.core.placement.index.packed import Int64, Int64s
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.queueing.hints import asked
from apportion.core.placement.queueing.keys import plain_key, wants_key
from apportion.core.placement.queueing.queue import PendingQueue
from apportion.core.placement.queueing.shape_queue import Reasons, ShapeQueue, turn_of
from apportion.core.placement.refusals import KEPT
from apportion.core.placement.reservations import Reservations

SLACK: Final = 64  # growth beyond twice the number of unschedulable ones, before all are retried


class Unschedulable:
    """Index of unschedulable shape queues by what they need.

    Invariant: a queue that `helped` does not return fits on none of the nodes that changed."""

    def __init__(self) -> None:
        self._as_of: tuple[int, int, FleetFacts] = (-1, 0, NO_FACTS)  # of rows, kinds, fleet
        self._seen = 0
        self.clear()

    def __len__(self) -> int:
        return len(self._slots) + len(self._always)

    def clear(self) -> None:
        """Forget all shape queues; the caller rechecks them."""
        self._slots: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        self._vacant: list[int] = []
        self._keep(np.full((0, FIRST_KIND), packed.NEVER, np.int64), np.zeros(0, np.int64))
        self._always: dict[bytes, None] = {}
        self._ordered: dict[bytes, None] = {}
        self._most = 0

    def add(self, key: bytes, ask: AskColumns | None, ordered: bool) -> None:  # noqa: FBT001
        """Add a shape queue to recheck when `ask` fits; without an ask, always recheck it."""
        self.forget(key)
        if ordered:
            self._ordered[key] = None
        if ask is None:
            self._always[key] = None
            return
        if not self._vacant:
            self._grow(2 * len(self._keys) + 1, self._needs.shape[1])
        if len(ask.needs) > self._needs.shape[1]:
            self._grow(len(self._keys), len(ask.needs))
        slot = self._slots[key] = self._vacant.pop()
        self._keys[slot] = key
        self._needs[slot] = packed.NEVER
        self._needs[slot, : len(ask.needs)] = ask.needs
        self._counts[slot] = ask.ask.count

    def forget(self, key: bytes) -> None:
        """Remove a shape queue, because it is retried or empty."""
        self._always.pop(key, None)
        self._ordered.pop(key, None)
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._needs[slot] = packed.NEVER
            self._vacant.append(slot)

    def helped(self, columns: Columns, reordered: bool) -> list[bytes] | None:  # noqa: FBT001
        """Return the keys of the shape queues that changed nodes may help; None means all."""
        seen, self._seen = self._seen, columns.changed.end
        before = self._as_of
        self._as_of = (columns.generation, len(columns.kinds), columns.fleet)
        if not len(self):
            return []
        rows = columns.changed.since(seen)
        if rows is not None and len(rows) > len(columns.every):
            rows = columns.every  # fewer
        self._most = self._most or 2 * len(self) + SLACK
        if before != self._as_of or rows is None or len(self) > self._most:
            return None
        count: Int64 = ask_loops.helped(
            rows.data,
            columns.flat_free,
            columns.flat_kind,
            self._flat_needs,
            self._flat_counts,
            columns.width,
            self._kinds,
            self._found,
        )
        if not count and not self._always and not reordered:
            return []
        keys = [self._keys[self._found[at]] for at in range(count)]
        return list(dict.fromkeys((*keys, *self._always, *(self._ordered if reordered else ()))))

    def _grow(self, slots: int, kinds: int) -> None:
        needs = np.full((slots, kinds), packed.NEVER, np.int64)
        needs[: self._needs.shape[0], : self._needs.shape[1]] = self._needs
        self._vacant += range(len(self._keys), slots)
        self._keys += [b""] * (slots - len(self._keys))
        self._keep(needs, np.resize(self._counts, slots))

    def _keep(self, needs: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        # What each slot needs, by kind of device, and how many devices.
        self._needs, self._counts = needs, counts
        self._kinds: Int64 = needs.shape[1]
        self._flat_needs: Int64s = needs.reshape(-1).data
        self._flat_counts: Int64s = counts.data
        self._found: Int64s = np.zeros(len(counts), np.int64).data


class Waking:
    """Marks shape queues as unschedulable, and wakes those that an event may help."""

    def __init__(
        self,
        state: State,
        queue: PendingQueue,
        finder: PlaceFinder,
        limits: Limits,
        reservations: Reservations,
    ) -> None:
        self._state = state
        self._queue = queue
        self._finder = finder
        self._limits = limits
        self._reservations = reservations
        self._unschedulable = Unschedulable()
        self._hints = 0
        self._hints_seen = 0
        self._reordered = False  # devices are tried in another order since the last check
        self._doubted: list[ShapeQueue] = []  # to be rechecked, the first one last
        self._anew = False  # True if their needs are to be noted again

    def mark_unschedulable(self, shape_queue: ShapeQueue, reasons: Reasons) -> None:
        """Record that the first pod fits nowhere; skip the shape queue until an event may help."""
        self._queue.mark_unschedulable(shape_queue, reasons)
        shape_queue.facts = self._finder.columns.facts_changed.end
        self._note_needs(shape_queue)

    def note_freed(self) -> None:
        """Recheck shape queues, because an assumed placement was undone."""
        self._hints += 1

    def observe(self, change: Change, moved: bool, freed: bool) -> None:  # noqa: FBT001 - hot path
        """Apply the fold's change: recheck the shape queues that it may help.

        `moved`: a pod count for affinity changed; `freed`: a queue or namespace has more room."""
        asks: Int64 = asked(change, moved, freed)
        if asks & (SOME | REORDERED):
            self._hints += 1
        if asks & REORDERED:
            self._reordered = True
        if asks & GANG:
            pod = change.pod
            gang = change.data.group if pod is None else pod.submitted.group
            if gang:
                self._queue.wake_gang(gang)

    def wake(self, looks_max: int) -> bool:
        """Recheck the shape queues whose first pod may fit since the latest events.

        Stop after about `looks_max` rows, and return False if shape queues are left to check."""
        self._finder.classes.looks = 0
        columns = self._finder.columns
        for shape_queue in self._queue.with_unreported() if self._queue.to_report else ():
            columns.sync()  # a new pod is refused for the causes of now
            if shape_queue.facts != columns.facts_changed.end:
                self._queue.wake(shape_queue)
                self._unschedulable.forget(shape_queue.key)
        if self._hints != self._hints_seen:
            self._hints_seen = self._hints
            columns.sync()
            left = [each.key for each in self._doubted]
            keys = self._unschedulable.helped(columns, self._reordered)
            self._reordered = False
            if not left and keys is not None and not keys:
                return True
            self._anew = keys is None or (self._anew and bool(left))
            if keys is None:
                self._unschedulable.clear()
            self._doubted = self._queue.unschedulable(None if keys is None else {*keys, *left})
            # A list: a function with a generator expression gets no C signature.
            for key in set(keys or ()).difference([each.key for each in self._doubted]):
                self._unschedulable.forget(key)
            self._doubted.reverse()
        return self._ask_doubted(looks_max)

    def wake_affinity(self, looks_max: int) -> bool:
        """Recheck shape queues with affinity or spread terms that match a pod just reserved.

        Return False if some are left; the next `wake` rechecks them."""
        self._reservations.charge()
        if self._reservations.met:
            self._reservations.met = self._anew = False
            near = (x for x in self._queue.unschedulable() if x.looks_for_others(self._state))
            self._doubted = list(near)
        if self._ask_doubted(looks_max):
            return True
        self._doubted.clear()
        self._hints += 1
        return False

    def _note_needs(self, shape_queue: ShapeQueue) -> None:
        # What must be free before a pod of the shape queue fits, if its shape alone decides.
        head = shape_queue.head(self._state)
        if head is None:
            return
        pod = self._state.pods[head.uid]
        limit = shape_queue.reasons is not None and shape_queue.reasons.limit is not None
        asks: list[AskColumns] = []
        ordered = False
        if (
            not limit
            and not pod.submitted.volume_claims  # which its shape does not include
            and not _minds_kept(shape_queue)
            and shape_queue.key == plain_key(self._state, pod)
        ):
            class_ = self._finder.class_of(pod, alone=True)
            asks, ordered = class_.asks, class_.may_collide
        self._unschedulable.add(shape_queue.key, asks[0] if asks else None, ordered)

    def _ask_doubted(self, looks_max: int) -> bool:
        # Wake the doubted ones of which a pod could fit. True if all were checked.
        answers: dict[bytes, bool] = {}
        room: dict[bytes, int] = {}
        while self._doubted:
            if self._finder.classes.looks >= looks_max:
                return False
            shape_queue = self._doubted.pop()
            if not shape_queue.unschedulable or shape_queue.head(self._state) is None:
                continue
            pods = self._to_ask(shape_queue)
            if self._outdated(shape_queue, pods) or (
                any(self._could_fit(shape_queue, pod, answers) for pod in pods)
                and self._whole_could_fit(shape_queue, pods, room)
            ):
                self._queue.wake(shape_queue)
                self._unschedulable.forget(shape_queue.key)
            elif self._anew:
                self._note_needs(shape_queue)
        return True

    def _to_ask(self, shape_queue: ShapeQueue) -> list[PodState]:
        # One pod of each shape of a gang; or the head, the first pod that ends in time to use
        # reserved nodes, and nominated pods, which may fit alone.
        pods, nominated = self._state.pods, self._state.nominated
        turns = shape_queue.live(self._state) if shape_queue.gang else shape_queue.waiting[:1]
        found = {wants_key(pods[turn.uid]): pods[turn.uid] for turn in turns}
        if shape_queue.gang or not (nominated or self._finder.reserving):
            return list(found.values())
        others = (pods[uid] for uid in nominated if uid in pods)
        room = [pod for pod in others if shape_queue.has(turn_of(pod))]
        if self._finder.reserving:
            room += filter(None, [self._finder.kept.first_in_time(shape_queue)])
        return [*found.values(), *room]

    def _outdated(self, shape_queue: ShapeQueue, pods: Iterable[PodState]) -> bool:
        # True if no nominated node is kept from these pods any more, or their claims changed.
        reported = shape_queue.reasons.volume if shape_queue.reasons is not None else None
        if reported is not None:
            return all(self._finder.volumes.shortage(pod) != reported for pod in pods)
        if not _minds_kept(shape_queue):
            return False
        keeps = self._state.nominated or self._finder.reserving
        return not keeps or not any(self._finder.kept.of(pod) for pod in pods)

    def _could_fit(
        self, shape_queue: ShapeQueue, pod: PodState, answers: dict[bytes, bool]
    ) -> bool:
        # If its pods have different labels, ignore labels. `answers` caches results of this round.
        alone = shape_queue.key == plain_key(self._state, pod)
        kept = shape_queue.reasons.limit if shape_queue.reasons is not None else None
        if kept is not None and kept.seen == self._limits.seen(pod):
            if kept.without is None:
                return False
            return self._finder.class_of(pod, alone=alone, without=kept.without).fits_somewhere
        if kept is not None and self._limits.exceeded(pod) is not None:
            return False
        one_answer = alone and not (self._state.nominated or self._finder.reserving)
        key = shape_queue.key if one_answer else self._finder.key_of(pod)
        if key not in answers:
            answers[key] = self._finder.class_of(pod, alone=alone).fits_somewhere
        return answers[key]

    def _whole_could_fit(
        self, shape_queue: ShapeQueue, pods: list[PodState], room: dict[bytes, int]
    ) -> bool:
        # False if all nodes together surely have no room for a gang of identical pods. A limit that
        # refused the gang may have gone, and then evictions may help it. `room` caches in how many
        # places such a pod fits.
        group = self._state.groups.get(shape_queue.gang)
        limit = shape_queue.reasons is not None and shape_queue.reasons.limit is not None
        if (
            group is None
            or group.observed is None
            or group.observed.parts
            or len(pods) > 1
            or limit
        ):
            return True
        key = self._finder.key_of(pods[0])
        if key not in room:
            capacity = self._finder.class_of(pods[0]).capacity(self._finder.columns)
            room[key] = int(capacity.sum())
        deficit = deficit_of(group)
        return deficit is None or room[key] >= deficit.pods


def _minds_kept(shape_queue: ShapeQueue) -> bool:
    # It was refused for a node kept for other pods, so it is retried when that ends.
    reasons = shape_queue.reasons
    return reasons is not None and not reasons.counts.keys().isdisjoint(KEPT)
