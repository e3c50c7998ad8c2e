"""The engine: pending pods in, decisions out.

`decide` runs filter → score → choose → assume for as many pods as fit one batch. What it assumes
for one pod counts for the next, and is undone before it returns: the state changes only when the
decision comes back from the ledger and is folded. So a refused append needs no repair, only
`retry`.

Invariant: `decide` leaves the state as it was; the same state yields the same placements, whatever
the engine has seen before. But for a gang that waits: its pods take the best places one by one, and
which these are may change with any placement, while it is asked again only when something leaves.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from apportion.core.ledger import fold
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PENDING, Placement, PodState, State
from apportion.core.placement.affinity.domains import Domains
from apportion.core.placement.affinity.neighbours import NO_CONCERN, Concern, Neighbours
from apportion.core.placement.affinity.relations import Relations
from apportion.core.placement.assign.devices import assign
from apportion.core.placement.class_cache import ClassCache
from apportion.core.placement.classes import PlacementClass
from apportion.core.placement.gangs import Lack, held, lack_of
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.limits.limits import NEVER_SEEN, TOLD, Kept, Limits
from apportion.core.placement.queueing.queue import (
    UNDECLARED,
    Line,
    PendingQueue,
    Reasons,
    gist_of,
    is_pending,
    limits_key,
    near_key,
    shape_line,
)
from apportion.core.placement.queueing.sharding import WHOLE, Shard
from apportion.core.placement.queueing.unschedulable import ROOM_RELIEFS, WIDE_RELIEFS, Parked
from apportion.core.placement.queueing.waiting import PLACEMENTS, Waiting
from apportion.core.placement.refusals import explain
from apportion_schemas import (
    ConfigurationChanged,
    GangShortage,
    PlacementVoided,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PolicyChanged,
    PricesLearnt,
    RefusalCode,
    Score,
)
from apportion_schemas.quantities import GANG_PODS_MAX

EVENTS_MAX: Final = 512  # of one decision, which is one atomic batch; a gang may take more
RUNNERS_UP: Final = 2
_encode = msgspec.json.Encoder(order="sorted").encode

DecisionEvent = PodPlaced | PodRefused | PlacementVoided
Placed = tuple[PodState, PodPlaced]


class Decision(Struct):
    """What to append, all or nothing, and the pods that it is about, should it be refused."""

    events: list[DecisionEvent] = []
    placed: list[PodState] = []
    told: list[PodState] = []


class Engine:
    """Decides over one state, and keeps what makes the next decision cheap."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._columns = Columns(state)
        self._neighbours = Neighbours(state)
        self._domains = Domains()
        self._classes = ClassCache(state, self._columns)
        self._limits = Limits(state)
        self._queue = PendingQueue(state, self._limits.share)
        self._waiting = Waiting(state, self._queue)
        self._apart = False
        self._own_rows: tuple[int, NDArray[np.bool_]] | None = None
        self._parked = Parked()
        self._reliefs = 0
        self._reliefs_seen = 0
        self._wide = True  # since the parked were asked, something happened that may help any
        self._met = False  # since the near ones were asked, a pod was assumed that some look for
        self._assumed: list[PodState] = []
        self._newest: Placed | None = None
        self._refused: dict[bytes, Reasons] = {}

    @property
    def pending(self) -> int:
        """Pods that wait for this engine, parked ones among them."""
        return len(self._queue)

    @property
    def others_wait(self) -> bool:
        """Whether others have pods to decide for that may well fit."""
        return self._waiting.others_wait

    def own(self, shard: Shard) -> None:
        """Decide for the pods of this shard only, from now on; all are ours until told."""
        self._waiting.own(shard)
        self._own_rows = None

    def owns(self, pod: PodState) -> bool:
        """Whether the pod is of our shard."""
        return self._waiting.owns(pod)

    def keep_apart(self, *, apart: bool) -> None:
        """Whether to try the nodes of our shard before all others: while others place as well."""
        self._apart = apart

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed."""
        data, pod = change.data, change.pod
        kind = type(data)
        if change.node is not None:
            self._columns.touch(change.node, change.shares)
        moved = pod is not None and self._neighbours.note(pod)
        relieved = (self._limits.active or kind in TOLD) and self._limits.observe(change)
        if kind in WIDE_RELIEFS:
            self._relieve()
        elif moved or relieved or kind in ROOM_RELIEFS:
            self._reliefs += 1
        self._waiting.observe(change)
        if kind in PLACEMENTS:
            placed = self._state.pods.get(data.pod)
            if placed is not None and placed.phase is not PENDING and placed.submitted.group:
                self._queue.wake_gang(placed.submitted.group)  # it lacks one pod less
        elif kind is PodGroupObserved:
            self._queue.wake_gang(data.group)
        elif kind is ConfigurationChanged or kind is PolicyChanged or kind is PricesLearnt:
            # Cards may be cut otherwise; another order of devices may let containers in.
            self._relieve()

    def retry(self, decision: Decision) -> None:
        """The decision did not come into the ledger: its pods wait again."""
        self._relieve()  # lines may be parked for what it assumed, and never took
        self._limits.relieve()
        for pod in decision.placed + decision.told:
            if is_pending(self._state, pod):
                self._waiting.add(pod)

    def decide(self, *, events_max: int = EVENTS_MAX) -> Decision:
        """Decide for as many waiting pods as the batch holds; empty when nothing is to be said."""
        decision = Decision(events=self._voids(events_max))
        self._wake()
        while len(decision.events) < events_max:
            if self._neighbours.active:
                self._wake_near()
            if self._queue.contested:
                self._limits.activate()
                self._assume_newest()  # whose turn it is depends on what each queue holds
                self._queue.choose()
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
            return self._serve_gang(line, decision, events_max)
        pod = self._state.pods[line.waiting[0].uid]
        place = self._place_within if self._limits.active else self._place
        found = None if self._refused_alike(pod) else place(pod)
        if found is None:
            self._refuse(line, pod)
        else:
            self._newest = (pod, found)
            self._settle(line, [self._newest], decision)
        return True

    def _serve_gang(self, line: Line, decision: Decision, events_max: int) -> bool:
        """Place what a gang lacks, all or none; False if it must wait for a batch of its own."""
        self._assume_newest()  # it may be one of this gang, and counts
        group = self._state.groups[line.gang]
        waiting = [self._state.pods[turn.uid] for turn in line.live(self._state)]
        lack = lack_of(group)
        if lack is None:
            self._park(line, UNDECLARED)
            return True
        here = len(held(group))
        shortage = GangShortage(needed=here + lack.pods, present=here + len(waiting), fitting=here)
        if not lack.met_by(waiting):
            self._park(line, Reasons({RefusalCode.GANG_INCOMPLETE: 0}, (), 0, shortage))
            return True
        if lack.pods > GANG_PODS_MAX:
            self._park(line, Reasons({RefusalCode.GANG_TOO_LARGE: 0}, (), 0, shortage))
            return True
        if decision.events and len(decision.events) + lack.pods > events_max:
            return False
        before = len(self._assumed)
        placed, refused = self._place_gang(waiting, lack)
        if refused is None:
            self._settle(line, placed, decision)
            return True
        reasons = self._reasons(refused)
        self._undo_to(before)
        self._met = False  # nobody was placed after all
        if lack.pods > 1:
            shortage = structs.replace(shortage, fitting=here + len(placed))
            reasons = reasons._replace(gang=shortage)
        if reasons.limit is not None and len({pod.shape_key for pod in waiting}) > 1:
            reasons = reasons._replace(limit=reasons.limit._replace(seen=NEVER_SEEN))
        self._park(line, reasons)
        return True

    def _place_gang(
        self, waiting: list[PodState], lack: Lack
    ) -> tuple[list[Placed], PodState | None]:
        """Assume places for what a gang lacks, passing over pods that fit nowhere.

        With them comes the first pod that was passed over, if those that fit are too few. A pod
        that must be near another of the gang may fit once that has a place, and is tried again.
        """
        placed: list[Placed] = []
        while True:
            refused: dict[bytes, PodState] = {}
            passed_over: list[PodState] = []
            before = len(placed)
            for pod in waiting:
                rest = lack.less(pod)
                if rest is None:
                    continue
                found = self._place_unless(refused, pod)
                if found is None:
                    passed_over.append(pod)
                    continue
                placed.append(found)
                lack = rest
                if not lack.pods:
                    return placed, None
            if len(placed) == before or not self._neighbours.active:
                return placed, next(iter(refused.values()))
            waiting = passed_over

    def _place_unless(self, refused: dict[bytes, PodState], pod: PodState) -> Placed | None:
        """A place for the pod, unless one like it was refused since; notes it where it is."""
        self._assume_newest()
        key = self._key_of(pod)
        place = self._place_within if self._limits.active else self._place
        found = None if key in refused else place(pod)
        if found is None:
            refused.setdefault(key, pod)
            return None
        self._newest = (pod, found)
        return self._newest

    def _settle(self, line: Line, placed: list[Placed], decision: Decision) -> None:
        """These members of the line have places; go on with the others."""
        taken: set[str] = set()
        for pod, found in placed:
            decision.placed.append(pod)
            decision.events.append(found)
            taken.add(found.pod)
        line.remove(taken)
        self._queue.wake(line)

    def _place(self, pod: PodState, *, without: frozenset[int] = frozenset()) -> PodPlaced | None:
        """The best place for one pod, or None; `without` devices of these kinds."""
        self._assume_newest()
        class_ = self._class_of(pod, without=without)
        while True:
            best = class_.board.best(1 + RUNNERS_UP, self._first_of(class_))
            if not best:
                return None
            shares = assign(class_, self._columns, best[0][0])
            if shares is None:
                class_.exclude(best[0][0])
            elif not class_.may_collide or self._all_fit(class_, best[1:]):
                break
        about, rule = pod.submitted, class_.node_score
        totals = [(self._columns.names[at], rule.total(points)) for at, points in best]
        scores = [Score(node=n, total=total, parts={rule.policy: total}) for n, total in totals]
        return PodPlaced(
            pod=about.uid,
            namespace=about.namespace,
            name=about.name,
            attempt=pod.attempt,
            node=scores[0].node,
            shares=shares,
            score=scores[0],
            runners_up=tuple(scores[1:]),
            fitting=class_.fitting,
            nodes=len(self._columns.names),
        )

    def _place_within(self, pod: PodState) -> PodPlaced | None:
        """The best place that the pod's limits allow, or None."""
        return self._look_within(pod)[0]

    def _look_within(self, pod: PodState) -> tuple[PodPlaced | None, Kept | None]:
        """The best place that the pod's limits allow, or why they allow none that there is."""
        self._assume_newest()
        first = self._limits.lack(pod)
        if first is not None:
            return None, self._limits.remembered(pod, first, None)
        without: frozenset[int] = frozenset()
        beyond: frozenset[int] = frozenset()
        while True:
            found = self._place(pod, without=without)
            lack = None if found is None else self._limits.lack(pod, found.node, found.shares)
            if found is None or lack is None:
                break
            first = first or lack
            asks = self._class_of(pod, without=without).asks
            beyond |= self._limits.kinds_beyond(pod, asks, self._columns.kinds)
            without |= beyond | self._columns.kinds_of(found.node, found.shares)
        if found is not None or first is None:
            return found, None
        return None, self._limits.remembered(pod, first, beyond)

    def _first_of(self, class_: PlacementClass) -> NDArray[np.bool_] | None:
        """The rows that are tried before all others, None for no such: ours, while kept apart.

        A class that prefers some nodes by name or neighbour goes where it prefers to be.
        """
        if not self._apart or class_.prefers or self._waiting.shard is WHOLE:
            return None
        if self._own_rows is None or self._own_rows[0] != self._columns.generation:
            owns, names = self._waiting.shard.owns, self._columns.names
            rows = np.fromiter((owns(name) for name in names), np.bool_, len(names))
            self._own_rows = (self._columns.generation, rows)
        return self._own_rows[1]

    def _all_fit(self, class_: PlacementClass, rows: list[tuple[int, int]]) -> bool:
        """Whether the containers collide on none of these rows; where they do is excluded."""
        collided = [row for row, _ in rows if assign(class_, self._columns, row) is None]
        for row in collided:
            class_.exclude(row)
        return not collided

    def _class_of(
        self, pod: PodState, *, alone: bool = False, without: frozenset[int] = frozenset()
    ) -> PlacementClass:
        """The class of the pod's shape, up to date.

        `alone`: as if there were no pod that this one, or that minds this one. `without`: as if
        there were no devices of these kinds.
        """
        concern = NO_CONCERN if alone else self._neighbours.concern(pod.submitted)
        key, shape = _class_key(pod, concern), pod.submitted.shape
        if without:
            key += b"without " + _encode(sorted(without))
        relate = None
        if concern is not NO_CONCERN:
            relate = partial(Relations, shape.pods, concern, self._neighbours, self._domains)
        return self._classes.class_of(key, shape, relate, without)

    def _key_of(self, pod: PodState) -> bytes:
        """Equal for pods of the same limits that every node would treat alike now."""
        key = _class_key(pod, self._neighbours.concern(pod.submitted))
        return limits_key(self._state, pod) + key

    def _assume_newest(self) -> None:
        """Charge the newest placement; put off until another pod is looked at, often never."""
        if self._newest is None:
            return
        pod, placed = self._newest
        self._newest = None
        node = self._state.nodes[placed.node]
        fold.place(pod, node, Placement(placed.node, placed.attempt, placed.shares))
        self._met |= self._neighbours.note(pod)
        if self._limits.active:
            self._limits.note(pod)
        self._columns.touch(node, placed.shares)
        self._assumed.append(pod)
        self._refused.clear()

    def _undo_to(self, count: int) -> None:
        """Undo the assumptions, newest first, until so many are left."""
        self._newest = None
        self._refused.clear()
        while len(self._assumed) > count:
            pod = self._assumed.pop()
            shares = fold.shares_of(pod)
            node = fold.unplace(self._state, pod)
            self._neighbours.note(pod)
            if self._limits.active:
                self._limits.note(pod, undone=True)
            if node is not None:
                self._columns.touch(node, shares)

    # -------------------------------------------------------------- refusals

    def _reasons(self, pod: PodState) -> Reasons:
        self._assume_newest()
        lack = self._look_within(pod)[1] if self._limits.active else None
        if lack is not None and lack.without is None:
            return Reasons({lack.lack.code: 0}, (), 0, limit=lack)
        counts, nearest = explain(self._class_of(pod), self._columns)
        nodes = len(self._columns.names)
        if lack is not None:
            counts[lack.lack.code] = nodes - sum(counts.values())
        return Reasons(counts, nearest, nodes, limit=lack)

    def _refuse(self, line: Line, pod: PodState) -> None:
        """Park the line of a pod that fits nowhere; one that minds other pods stands in its own.

        The pods behind it may have other labels, and so a place.
        """
        key = self._key_of(pod)
        alone = shape_line(self._state, pod)
        if key != alone and line.key == alone:
            line = self._queue.move(line, pod, near_key(pod))
            if line.parked:
                return
        if key not in self._refused:
            self._refused[key] = self._reasons(pod)
        self._park(line, self._refused[key])

    def _refused_alike(self, pod: PodState) -> bool:
        """Whether a pod of the same class has just been refused, and nothing was placed since."""
        if not self._refused:
            return False
        self._assume_newest()
        return self._key_of(pod) in self._refused

    def _park(self, line: Line, reasons: Reasons) -> None:
        self._queue.park(line, reasons)
        self._note_parked(line)

    def _note_parked(self, line: Line) -> None:
        """What must be there before a pod of the line fits, if its shape alone tells."""
        head = line.head(self._state)
        if head is None:
            return
        pod = self._state.pods[head.uid]
        limit = line.reasons is not None and line.reasons.limit is not None
        asks: list[AskColumns] = []
        if not limit and line.key == shape_line(self._state, pod):
            asks = self._class_of(pod, alone=True).asks
        self._parked.add(line.key, asks[0] if asks else None)

    def _relieve(self) -> None:
        """Something happened that may help any pod."""
        self._reliefs += 1
        self._wide = True

    def _wake(self) -> None:
        """Ask again for the lines that something may have helped since they were parked."""
        if self._reliefs == self._reliefs_seen:
            return
        self._reliefs_seen = self._reliefs
        self._columns.sync()
        keys = self._parked.helped(self._columns, any_may_be=self._wide)
        self._wide = False
        if keys is None:
            self._parked.clear()
        elif not keys:
            return
        lines = self._queue.parked(keys)
        self._wake_those(lines, anew=keys is None)
        for key in set(keys or ()).difference(line.key for line in lines if line.parked):
            self._parked.forget(key)

    def _wake_near(self) -> None:
        """Ask again for those who look for others, when one whom somebody looks for is assumed.

        Else they would have to wait until the decision comes back, unlike after a restart.
        """
        self._assume_newest()
        if self._met:
            self._met = False
            self._wake_those(x for x in self._queue.parked() if x.looks_for_others(self._state))

    def _wake_those(self, lines: Iterable[Line], *, anew: bool = False) -> None:
        """Wake those of the lines of which a pod could fit; `anew`: note what the others want."""
        answers: dict[bytes, bool] = {}
        for line in lines:
            turns = line.live(self._state) if line.gang else line.waiting[:1]
            heads = {pod.shape_key: pod for turn in turns for pod in [self._state.pods[turn.uid]]}
            if any(self._could_fit(line, pod, answers) for pod in heads.values()):
                self._queue.wake(line)
            elif anew:
                self._note_parked(line)

    def _could_fit(self, line: Line, pod: PodState, answers: dict[bytes, bool]) -> bool:
        """Whether a pod of the line might; in one that has no labels in common, without labels.

        `answers` are those of this round by class, which pods with labels of their own may share.
        """
        alone = line.key == shape_line(self._state, pod)
        lack = line.reasons.limit if line.reasons is not None else None
        if lack is not None and not self._limits.relieved(pod, lack):
            if lack.without is None:
                return False
            return self._class_of(pod, alone=alone, without=lack.without).fits_somewhere
        if lack is not None and self._limits.lack(pod) is not None:
            return False
        key = line.key if alone else self._key_of(pod)
        if key not in answers:
            answers[key] = self._class_of(pod, alone=alone).fits_somewhere
        return answers[key]

    def _tell(self, decision: Decision, events_max: int) -> None:
        """Say why to each pod of a parked line that has not heard it."""
        if len(decision.events) >= events_max or not self._queue.any_untold:
            return
        placed = {pod.uid for pod in decision.placed}
        for pod, reasons in self._queue.untold():
            if pod.uid in placed:
                continue
            told = pod.refusal
            if told is not None and gist_of(told.reasons, told.quota) == reasons.gist:
                continue
            lack = reasons.limit.lack if reasons.limit is not None else None
            decision.events.append(
                PodRefused(
                    pod=pod.uid,
                    namespace=pod.submitted.namespace,
                    name=pod.submitted.name,
                    reasons=reasons.counts,
                    nodes=reasons.nodes,
                    nearest=reasons.nearest,
                    gang=reasons.gang,
                    queue=lack.queue if lack is not None else None,
                    quota=lack.quota if lack is not None else None,
                )
            )
            decision.told.append(pod)
            if len(decision.events) >= events_max:
                return

    def _voids(self, events_max: int) -> list[DecisionEvent]:
        """Void the placements that came to nothing."""
        voids: list[DecisionEvent] = []
        if not self._state.failing:
            return voids
        for uid, cause in sorted(self._state.failing.items()):
            pod = self._state.pods[uid]
            placed = pod.placement
            if len(voids) < events_max and placed is not None and self._waiting.owns(pod):
                voids.append(
                    PlacementVoided(pod=uid, attempt=placed.attempt, node=placed.node, reason=cause)
                )
        return voids


def _class_key(pod: PodState, concern: Concern) -> bytes:
    return pod.shape_key if concern is NO_CONCERN else pod.shape_key + _encode(concern)
