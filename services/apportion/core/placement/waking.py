"""Lines whose answer was no, and when each is asked again.

Invariant: a line stays parked only while no pod of it could have a place. But for a gang: its pods
take the best places one by one, and which these are may change with any placement, while it is
asked again only when something leaves.
"""

from apportion.core.ledger.change import Change
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.index.packed import Int64
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.queueing.hints import GANG, REORDERED, SOME, asked
from apportion.core.placement.queueing.queue import Line, PendingQueue, Reasons, shape_line
from apportion.core.placement.queueing.unschedulable import Parked
from apportion.core.placement.reservations import Reservations


class Waking:
    """Parks the lines of one queue, and wakes those that something may have helped."""

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
        self._parked = Parked()
        self._reliefs = 0
        self._reliefs_seen = 0
        self._reordered = False  # since the parked were asked, devices are tried in another order
        self._doubted: list[Line] = []  # parked, and to be asked again, the first one last
        self._anew = False  # whether what they want is to be noted again

    def park(self, line: Line, reasons: Reasons) -> None:
        """The head of the line fits nowhere: ask no more until something may have helped."""
        self._queue.park(line, reasons)
        self._note_parked(line)

    def relieve(self) -> None:
        """Something that was counted on did not come about: there is room again."""
        self._reliefs += 1

    def observe(self, change: Change, moved: bool, relieved: bool) -> None:  # noqa: FBT001 - hot
        """Take note of what the fold changed, as the table of `queueing.hints` has it.

        `moved`: a count of pods that somebody looks for is another; `relieved`: a queue or a
        namespace may hold more.
        """
        asks: Int64 = asked(change, moved, relieved)
        if asks & (SOME | REORDERED):
            self._reliefs += 1
        if asks & REORDERED:
            self._reordered = True
        if asks & GANG:
            pod = change.pod
            gang = change.data.group if pod is None else pod.submitted.group
            if gang:
                self._queue.wake_gang(gang)

    def wake(self, looks_max: int) -> bool:
        """Ask again for the lines that something may have helped since they were parked.

        False if some are left for another decision, once nodes were looked at so many times. What
        happens meanwhile they are asked for after that one, so that there is an end to it.
        """
        self._finder.classes.looks = 0
        if not self._doubted and self.behind:
            self._doubt()
        return self._ask_doubted(looks_max)

    @property
    def behind(self) -> bool:
        """Whether something happened for which nobody was asked yet."""
        return self._reliefs != self._reliefs_seen

    def wake_near(self, looks_max: int) -> bool:
        """Ask again for those who look for others, when one whom somebody looks for is reserved.

        Else they would have to wait until the decision comes back, unlike after a restart. False if
        some are left, who are then asked with all others that may have been helped.
        """
        self._reservations.charge()
        if self._reservations.met:
            self._reservations.met = self._anew = False
            near = (x for x in self._queue.parked() if x.looks_for_others(self._state))
            self._doubted = list(near)
        if self._ask_doubted(looks_max):
            return True
        self._doubted.clear()
        self._reliefs += 1
        return False

    def _doubt(self) -> None:
        """Find the lines that something may have helped."""
        self._reliefs_seen = self._reliefs
        columns = self._finder.columns
        columns.sync()
        keys = self._parked.helped(columns, reordered=self._reordered)
        self._reordered = False
        self._anew = keys is None
        if keys is None:
            self._parked.clear()
        self._doubted = self._queue.parked(keys)
        for key in set(keys or ()).difference(line.key for line in self._doubted):
            self._parked.forget(key)
        self._doubted.reverse()

    def _note_parked(self, line: Line) -> None:
        """What must be there before a pod of the line fits, if its shape alone tells."""
        head = line.head(self._state)
        if head is None:
            return
        pod = self._state.pods[head.uid]
        limit = line.reasons is not None and line.reasons.limit is not None
        asks: list[AskColumns] = []
        ordered = False
        if not limit and line.key == shape_line(self._state, pod):
            class_ = self._finder.class_of(pod, alone=True)
            asks, ordered = class_.asks, class_.may_collide
        self._parked.add(line.key, asks[0] if asks else None, ordered)

    def _ask_doubted(self, looks_max: int) -> bool:
        """Wake those of the doubted lines of which a pod could fit; whether all were asked."""
        answers: dict[bytes, bool] = {}
        while self._doubted:
            if self._finder.classes.looks >= looks_max:
                return False
            line = self._doubted.pop()
            if not line.parked or line.head(self._state) is None:
                continue
            turns = line.live(self._state) if line.gang else line.waiting[:1]
            heads = {pod.shape_key: pod for turn in turns for pod in [self._state.pods[turn.uid]]}
            if any(self._could_fit(line, pod, answers) for pod in heads.values()):
                self._queue.wake(line)
                self._parked.forget(line.key)
            elif self._anew:
                self._note_parked(line)
        return True

    def _could_fit(self, line: Line, pod: PodState, answers: dict[bytes, bool]) -> bool:
        """Whether a pod of the line might; in one that has no labels in common, without labels.

        `answers` are those of this round by class, which pods with labels of their own may share.
        """
        alone = line.key == shape_line(self._state, pod)
        kept = line.reasons.limit if line.reasons is not None else None
        if kept is not None and not self._limits.relieved(pod, kept):
            if kept.without is None:
                return False
            return self._finder.class_of(pod, alone=alone, without=kept.without).fits_somewhere
        if kept is not None and self._limits.lack(pod) is not None:
            return False
        key = line.key if alone else self._finder.key_of(pod)
        if key not in answers:
            answers[key] = self._finder.class_of(pod, alone=alone).fits_somewhere
        return answers[key]
