"""Reserve nodes for the first gang, or pod with several devices, that has waited for long.

The scheduler chooses the nodes where all its pods can start first, if running pods end at their
deadlines. If too few have one, it takes the nodes with the most idle devices, and the start is not
known. Other pods may use reserved nodes as `kept_nodes` allows. Invariants: there is at most one
reservation; nothing is written unless the reservation changes."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from apportion.core.bounded import remember
from apportion.core.ledger.moments import micros_of, text_of
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.feasibility.evaluator import FITS
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gang_turn import GangTurn
from apportion.core.placement.gangs import deficit_of
from apportion.core.placement.kept_nodes import OVERDUE
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.preemption.preempting import REMEMBERED_MAX, next_batch
from apportion.core.placement.preemption.victims import DryRun, Lifted
from apportion.core.placement.queueing.queue import NO_CLOCK
from apportion.core.placement.queueing.shape_queue import ShapeQueue
from apportion.core.placement.queueing.waiting import Waiting
from apportion.core.placement.reservations import Placed, Reservations
from apportion_schemas import KeptNode, NodesReserved
from apportion_schemas.quantities import GANG_BATCH_MAX

SEVERAL: Final = 2  # devices of a pod that gets a reservation
STEPS: Final = 32  # ends of other pods that the search tries first


class _Step(NamedTuple):
    """Pods that end at the same time; at 0, which is unknown, those of one node."""

    end: int
    pods: list[PodState]


class Backfill:
    """Decides about the reservation of one engine."""

    def __init__(
        self, state: State, waiting: Waiting, limits: Limits, dry_run: DryRun,
        places: tuple[PlaceFinder, GangTurn, Reservations],
    ) -> None:  # fmt: skip
        self._state = state
        self._waiting = waiting
        self._limits = limits
        self._dry_run = dry_run
        self._finder, self._gangs, self._reservations = places
        self.due = 0  # when to decide without an event, in microseconds since 1970; 0 for never
        self._as_of = -1
        self._seen = -1  # changes of nodes that the last check of the reservation included
        # By key of a shape queue that fits nowhere even without other pods: the facts, and when to
        # look again.
        self._vain: dict[bytes, tuple[int, int, int]] = {}

    def look_again(self) -> None:
        """Decide again without a new event, because of the time or the set of pending pods."""
        self._as_of = -1

    def decide(self) -> NodesReserved | None:
        """Return a reservation that replaces the current one, or ends it; None if it stays."""
        state, now = self._state, self._waiting.queue.now
        if self._as_of == state.revision or now == NO_CLOCK:
            return None
        self._as_of, self.due = state.revision, 0
        reserved = state.reserved
        if reserved is None:
            return self._next(now)
        pods = [state.pods[each.pod] for each in reserved.kept]
        # If some are placed, the rest of the gang is in the next batch.
        if not self._waiting.owns(pods[0]) or any(pod.placement is not None for pod in pods):
            return None
        if self._stays(reserved, pods, now):
            return self._next(now, instead_of=pods[0])
        found = self._next(now) or NodesReserved()
        return None if found == reserved else found

    def _stays(self, reserved: NodesReserved, pods: list[PodState], now: int) -> bool:
        # Whether the reservation can still be met.
        kept = self._finder.kept
        self.due = kept.starts + OVERDUE if kept.starts else 0
        if self.due and self.due <= now:
            return False
        if any(pod.uid in self._state.nominated for pod in pods) or not self._is_entitled(pods):
            return False
        columns = self._finder.columns
        columns.sync()
        rows = {columns.row_of(each.node) for each in reserved.kept if each.node in columns}
        changed = columns.changed.since(self._seen)
        if changed is not None and rows.isdisjoint(changed.tolist()):
            return True
        steps = self._steps(sorted(rows), pods[0].submitted.group)
        ends = kept.starts or NO_CLOCK
        leaving = [pod for step in steps for pod in step.pods if (step.end or NO_CLOCK) <= ends]
        lifted = [self._dry_run.lift(pod) for pod in leaving]
        before = self._reservations.checkpoint()
        fits = all(
            self._fits(pod, each.node) for pod, each in zip(pods, reserved.kept, strict=True)
        )
        self._reservations.roll_back(before)
        self._reservations.met = False
        self._put_back(lifted)
        columns.sync()
        self._seen = columns.changed.end
        return fits

    def _fits(self, pod: PodState, node: str) -> bool:
        # Whether the pod fits on the node; reserves the placement.
        columns = self._finder.columns
        self._reservations.charge()
        columns.sync()
        if node not in columns:
            return False
        among = np.zeros(len(columns.names), np.bool_)
        among[columns.row_of(node)] = True
        found = self._finder.find(pod, among)
        if found is not None:
            self._reservations.reserve(pod, found)
        return found is not None

    def _is_entitled(self, pods: Sequence[PodState]) -> bool:
        return not self._state.queues or self._limits.entitles(pods)

    def _next(self, now: int, instead_of: PodState | None = None) -> NodesReserved | None:
        # The reservation for the first pod or gang that has waited for long, could ever fit, and
        # need not leave the nodes to `instead_of`. It does not borrow while a queue within its
        # entitlement has pending pods.
        ordered = []
        for shape_queue in self._waiting.queue.unschedulable():
            place, reasons = shape_queue.place(self._state), shape_queue.reasons
            if place is None or reasons is None or reasons.silent or reasons.limit is not None:
                continue
            turn = self._limits.turn(shape_queue.queue) if self._state.queues else ()
            borrows = any(over for over, *_ in turn)
            ordered.append((borrows, turn, place, shape_queue.key, shape_queue))
        ordered.sort(key=lambda each: each[:4])
        for borrows, _, _, key, shape_queue in ordered:
            if borrows and not ordered[0][0]:
                break
            pods = self._pods_of(shape_queue)
            if not pods or not self._is_entitled(pods):
                continue
            if instead_of is not None and self._finder.kept.yields(pods[0], instead_of):
                continue
            since = max(micros_of(pod.submitted_time) or now for pod in pods)
            due = since + self._finder.kept.after
            if due > now:
                self.due = min(self.due or due, due)
                continue
            columns = self._finder.columns
            columns.sync()
            facts = columns.generation, columns.facts_changed.end
            if self._vain.get(key, (0, 0, 0)) > (*facts, now):
                continue
            found = self._plan(shape_queue, pods)
            if found is not None:
                return found
            remember(self._vain, key, (*facts, now + self._finder.kept.after), most=REMEMBERED_MAX)
        return None

    def _pods_of(self, shape_queue: ShapeQueue) -> list[PodState]:
        # The pods that must be placed together; none if they get no reservation.
        state = self._state
        if shape_queue.gang:
            deficit = deficit_of(state.groups[shape_queue.gang])
            live = [state.pods[turn.uid] for turn in shape_queue.live(state)]
            if deficit is None or not deficit.met_by(live) or deficit.pods > GANG_BATCH_MAX:
                return []
            pods = next_batch(deficit, live)
        else:
            head = shape_queue.head(state)
            pods = [] if head is None else [state.pods[head.uid]]
        devices = sum(ask.count for pod in pods for ask in pod.submitted.shape.asks if not ask.init)
        made = any(pod.uid in state.nominated for pod in pods)
        return [] if devices < SEVERAL or made else pods

    def _plan(self, shape_queue: ShapeQueue, pods: list[PodState]) -> NodesReserved | None:
        # The fewest steps after which the pods fit: double their number until the pods fit, then
        # bisect, so that the cost follows the gang and not the cluster.
        right = [self._finder.class_of(pod).facts.ranks == FITS for pod in pods]
        rows = np.flatnonzero(np.logical_or.reduce(right))
        steps = self._steps(rows.tolist(), shape_queue.gang)
        lifted: list[list[Lifted]] = []
        best: list[Placed] = []
        low, high = 0, len(steps)
        at = min(STEPS, high)
        while high > low:
            while len(lifted) < at:
                lifted.append([self._dry_run.lift(pod) for pod in steps[len(lifted)].pods])
            while len(lifted) > at:
                self._put_back(lifted.pop())
            placed = self._try(shape_queue, pods[0])
            if placed:
                best, high = placed, at
            elif at == len(steps):
                break
            else:
                low = at
            if best and high - low == 1:
                break
            at = (low + high) // 2 if best else min(2 * at, high)
        for each in reversed(lifted):
            self._put_back(each)
        if not best:
            return None
        kept = [
            KeptNode(namespace=pod.submitted.namespace, pod=pod.uid, node=found.node)
            for pod, found in best
        ]
        end = steps[high - 1].end
        return NodesReserved(
            pod=kept[0].pod,
            name=shape_queue.gang or pods[0].full_name,
            kept=tuple(kept),
            starts=text_of(end) if end else "",
        )

    def _try(self, shape_queue: ShapeQueue, first: PodState) -> list[Placed]:
        before = self._reservations.checkpoint()
        if not shape_queue.gang:
            found = self._finder.find(first)
            return [] if found is None else [(first, found)]
        placed = self._gangs.take(shape_queue, GANG_BATCH_MAX, GANG_BATCH_MAX)
        self._reservations.roll_back(before)
        self._reservations.met = False
        return placed if isinstance(placed, list) else []

    def _steps(self, rows: Sequence[int], gang: str) -> list[_Step]:
        # In which order other pods may end: first those with a known end, then those on the nodes
        # with the most idle devices.
        known: dict[int, list[PodState]] = {}
        others: list[tuple[int, str, list[PodState]]] = []
        for row in rows:
            node = self._finder.columns.nodes[row]
            unknown: list[PodState] = []
            for pod in node.pods.values():
                if gang and pod.submitted.group == gang:
                    continue
                end = self._finder.kept.end_of(pod)
                (known.setdefault(end, []) if end else unknown).append(pod)
            if unknown:
                idle = sum(held.open and held.idle for held in node.devices)
                others.append((-idle, node.name, unknown))
        return [
            *(_Step(end, known[end]) for end in sorted(known)),
            *(_Step(0, pods) for _, _, pods in sorted(others, key=lambda each: each[:2])),
        ]

    def _put_back(self, lifted: list[Lifted]) -> None:
        for each in reversed(lifted):
            self._dry_run.put_back(each)
