"""The engine: pending pods in, decisions out.

`decide` runs filter → score → choose → assume for as many pods as fit one batch. What it assumes
for one pod counts for the next, and is undone before it returns: the state changes only when the
decision comes back from the ledger and is folded. So a refused append needs no repair, only
`retry`.

Invariant: `decide` leaves the state as it was; the same state yields the same placements, whatever
the engine has seen before.
"""

from dataclasses import dataclass, field
from typing import Final

from apportion.core.ledger import fold
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import Phase, PodState, State
from apportion.core.placement.assign import assign
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.columns import POINTS, Columns
from apportion.core.placement.gangs import held, must_start_together
from apportion.core.placement.queue import Line, PendingQueue, Reasons, is_pending
from apportion.core.placement.refusals import explain
from apportion.core.placement.scores import DEVICE_ORDERS
from apportion_schemas import (
    DeviceHealthChanged,
    DeviceUncordoned,
    GangShortage,
    NodeObserved,
    NodeReported,
    NodeUncordoned,
    PlacementVoided,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    PolicyChanged,
    RefusalCode,
    Score,
)

EVENTS_MAX: Final = 256  # of one decision, which is one atomic batch; a gang may take more
CLASSES_MAX: Final = 512  # shapes kept indexed; the one not asked for longest is dropped
RUNNERS_UP: Final = 2
RELIEFS: Final = (
    PodGone,
    PlacementVoided,
    NodeReported,
    NodeObserved,
    DeviceHealthChanged,
    DeviceUncordoned,
    NodeUncordoned,
)
"""Events after which something may fit that did not."""

DecisionEvent = PodPlaced | PodRefused | PlacementVoided


@dataclass(slots=True)
class Decision:
    """What to append, all or nothing, and the pods that it is about, should it be refused."""

    events: list[DecisionEvent] = field(default_factory=list)
    placed: list[PodState] = field(default_factory=list)
    told: list[PodState] = field(default_factory=list)


class Engine:
    """Decides over one state, and keeps what makes the next decision cheap."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._columns = Columns(state)
        self._classes: dict[bytes, PlacementClass] = {}
        self._queue = PendingQueue(state)
        self._reliefs = 0
        self._reliefs_seen = 0
        self._assumed: list[PodState] = []
        self._newest: tuple[PodState, PodPlaced] | None = None

    @property
    def pending(self) -> int:
        """Pods that wait, parked ones among them."""
        return len(self._queue)

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed."""
        data, pod = change.data, change.pod
        if change.node is not None:
            self._columns.touch(change.node)
        if isinstance(data, RELIEFS):
            self._reliefs += 1
        if isinstance(data, PodSubmitted) and pod is not None:
            self._queue.add(pod)
        elif isinstance(data, PlacementVoided | PodPlaced):
            again = self._state.pods.get(data.pod)
            if again is not None and again.phase is Phase.PENDING:
                self._queue.add(again)
        elif isinstance(data, PodGroupObserved):
            line = self._queue.line_of_gang(data.group)
            if line is not None:
                self._queue.wake(line)
        elif isinstance(data, PolicyChanged):
            self._classes.clear()
            self._reliefs += 1  # another order of devices may let containers in that collided

    def retry(self, decision: Decision) -> None:
        """The decision did not come into the ledger: its pods wait again."""
        for pod in decision.placed + decision.told:
            if is_pending(self._state, pod):
                self._queue.add(pod)

    def decide(self, *, events_max: int = EVENTS_MAX) -> Decision:
        """Decide for as many waiting pods as the batch holds; empty when nothing is to be said."""
        decision = Decision(events=self._voids(events_max))
        self._wake()
        while len(decision.events) < events_max:
            line = self._queue.next_line()
            if line is None or not self._serve(line, decision, events_max):
                break
        self._undo_to(0)
        self._tell(decision, events_max)
        return decision

    # -------------------------------------------------------------- the turn of a line

    def _serve(self, line: Line, decision: Decision, events_max: int) -> bool:
        """Decide for the head of a line; False if its gang must wait for a batch of its own."""
        if line.gang:
            self._assume_newest()  # it may be one of this gang, and counts
            group = self._state.groups[line.gang]
            waiting = [self._state.pods[turn.uid] for turn in line.live(self._state)]
            members = must_start_together(group, waiting)
            if members is None:
                present = held(group) + len(waiting)
                shortage = GangShortage(
                    needed=group.min_available, present=present, fitting=held(group)
                )
                self._park(line, Reasons({RefusalCode.GANG_INCOMPLETE: 0}, (), 0, shortage))
                return True
            if decision.events and len(decision.events) + len(members) > events_max:
                return False
        else:
            members = [self._state.pods[line.waiting[0].uid]]
        reasons = self._place_all(members, decision)
        if reasons is not None:
            self._park(line, reasons)
        else:
            line.remove({pod.uid for pod in members})
            self._queue.wake(line)
        return True

    def _place_all(self, members: list[PodState], decision: Decision) -> Reasons | None:
        """Place and assume these pods, all or none; the reasons if one of them fits nowhere."""
        placed: list[PodPlaced] = []
        self._assume_newest()
        before = len(self._assumed)
        for position, pod in enumerate(members):
            found = self._place(pod)
            if found is None:
                reasons = self._reasons(pod)
                self._undo_to(before)
                if len(members) > 1:
                    shortage = GangShortage(
                        needed=len(members), present=len(members), fitting=position
                    )
                    return reasons._replace(gang=shortage)
                return reasons
            self._newest = (pod, found)
            placed.append(found)
        decision.placed.extend(members)
        decision.events.extend(placed)
        return None

    def _place(self, pod: PodState) -> PodPlaced | None:
        """The best place for one pod, or None."""
        self._assume_newest()
        self._columns.sync()
        class_ = self._class_of(pod)
        class_.refresh(self._columns)
        order = DEVICE_ORDERS[pod.submitted.shape.device_policy or self._state.policy.device_policy]
        while True:
            best = class_.best(1 + RUNNERS_UP)
            if not best:
                return None
            row = best[0][0]
            node = self._columns.nodes[row]
            shares = assign(class_, self._columns, row, order)
            if shares is not None:
                break
            class_.exclude(row)
        scores = [
            Score(
                node=self._columns.names[at],
                total=points * 100 / POINTS,
                parts={class_.node_policy: points * 100 / POINTS},
            )
            for at, points in best
        ]
        return PodPlaced(
            pod=pod.uid,
            namespace=pod.submitted.namespace,
            name=pod.submitted.name,
            attempt=pod.attempt,
            node=node.name,
            shares=shares,
            score=scores[0],
            runners_up=tuple(scores[1:]),
            fitting=class_.fitting,
            nodes=len(self._columns.names),
        )

    def _class_of(self, pod: PodState) -> PlacementClass:
        """The class of the pod's shape, the most recently asked for last."""
        found = self._classes.pop(pod.shape_key, None)
        if found is None:
            found = PlacementClass(pod.submitted.shape, self._state.policy.node_policy)
            if len(self._classes) >= CLASSES_MAX:
                del self._classes[next(iter(self._classes))]
        self._classes[pod.shape_key] = found
        return found

    def _assume_newest(self) -> None:
        """Charge the newest placement; put off until another pod is looked at, often never."""
        if self._newest is None:
            return
        pod, placed = self._newest
        self._newest = None
        node = self._state.nodes[placed.node]
        fold.place(pod, node, placed)
        self._columns.touch(node)
        self._assumed.append(pod)

    def _undo_to(self, count: int) -> None:
        """Undo the assumptions, newest first, until so many are left."""
        self._newest = None
        while len(self._assumed) > count:
            node = fold.unplace(self._state, self._assumed.pop())
            if node is not None:
                self._columns.touch(node)

    # -------------------------------------------------------------- refusals

    def _reasons(self, pod: PodState) -> Reasons:
        counts, nearest = explain(self._class_of(pod), self._columns)
        return Reasons(counts, nearest, len(self._columns.names))

    def _park(self, line: Line, reasons: Reasons) -> None:
        self._queue.park(line, reasons, reliefs=self._reliefs)

    def _wake(self) -> None:
        """Ask again for the lines that something may have helped since they were parked."""
        if self._reliefs == self._reliefs_seen:
            return
        self._reliefs_seen = self._reliefs
        self._columns.sync()
        for line in self._queue.parked():
            if line.parked_at == self._reliefs:
                continue
            pod = self._state.pods[line.waiting[0].uid]
            class_ = self._class_of(pod)
            class_.refresh(self._columns)
            if class_.fits_somewhere:
                self._queue.wake(line)

    def _tell(self, decision: Decision, events_max: int) -> None:
        """Say why to each pod of a parked line that has not heard it."""
        if len(decision.events) >= events_max:
            return
        placed = {pod.uid for pod in decision.placed}
        for pod, reasons in self._queue.untold():
            if pod.uid in placed:
                continue
            if pod.refusal is not None and set(pod.refusal.reasons) == set(reasons.counts):
                continue
            decision.events.append(
                PodRefused(
                    pod=pod.uid,
                    namespace=pod.submitted.namespace,
                    name=pod.submitted.name,
                    reasons=reasons.counts,
                    nodes=reasons.nodes,
                    nearest=reasons.nearest,
                    gang=reasons.gang,
                )
            )
            decision.told.append(pod)
            if len(decision.events) >= events_max:
                return

    def _voids(self, events_max: int) -> list[DecisionEvent]:
        """Void the placements that came to nothing."""
        voids: list[DecisionEvent] = []
        for uid, cause in sorted(self._state.failing.items())[:events_max]:
            placed = self._state.pods[uid].placement
            if placed is not None:
                voids.append(
                    PlacementVoided(pod=uid, attempt=placed.attempt, node=placed.node, reason=cause)
                )
        return voids
