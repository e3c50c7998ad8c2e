"""The pods that wait, in lines: one for each class, one for each gang.

A line whose head fits nowhere is parked whole, so a hundred thousand pods of one refused shape cost
nothing until something happens that could help them. Between lines and within them the order is
priority first, then the revision of submission. Where the lines are of several of the cluster's
queues (Volcano's), the queue whose share of the cluster is least for its weight goes first.

Invariant: a pending pod is in exactly one line, or in the hands of the cycle that took it.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import msgspec

from apportion.core.ledger.state import PENDING, PodState, State
from apportion.core.placement.affinity.neighbours import has_wishes, kind_of
from apportion.core.placement.limits.limits import Kept
from apportion.core.placement.limits.queues import DEFAULT, queue_of
from apportion_schemas import GangShortage, NearMiss, QuotaShortage, RefusalCode

_encode = msgspec.json.Encoder(order="sorted").encode
SLACK = 64  # entries of a line that may outlive their pods before they are swept


class Turn(NamedTuple):
    """A pod's place in the order: higher priority, then earlier submission, then uid."""

    rank: int
    revision: int
    uid: str


Gist = tuple[frozenset[RefusalCode], tuple[str, str, int] | None]


class Reasons(NamedTuple):
    """Why the head of a line fits nowhere: what a `PodRefused` says, if anything is to be said."""

    counts: dict[RefusalCode, int]
    nearest: tuple[NearMiss, ...]
    nodes: int
    gang: GangShortage | None = None
    silent: bool = False
    limit: Kept | None = None

    @property
    def gist(self) -> Gist:
        """What is worth telling anew."""
        return gist_of(self.counts, self.limit.lack.quota if self.limit is not None else None)


def gist_of(counts: Iterable[RefusalCode], quota: QuotaShortage | None) -> Gist:
    """The codes, whatever their counts, and which limit it is that somebody could raise."""
    limit = None if quota is None else (quota.quota, quota.resource, quota.most)
    return frozenset(counts), limit


UNDECLARED: Final = Reasons({}, (), 0, silent=True)
"""The pods of a gang that is not declared yet: nobody knows what it needs."""


def turn_of(pod: PodState) -> Turn:
    """The pod's place in the order."""
    about = pod.submitted
    # As `Turn(...)`, which Python does in three calls more.
    return tuple.__new__(Turn, (-about.priority, pod.submitted_revision, about.uid))


def is_pending(state: State, pod: PodState) -> bool:
    """Whether the pod is live and has no place."""
    return pod.phase is PENDING and state.pods.get(pod.uid) is pod


def still_waits(state: State, turn: Turn) -> bool:
    """Whether the pod of this turn is pending; a later pod of its uid has another turn."""
    pod = state.pods.get(turn.uid)
    return pod is not None and pod.phase is PENDING and pod.submitted_revision == turn.revision


class Line:
    """Pods that are decided by one question; each stands in it once, however often it is added.

    All are of the cluster's queue `queue`, which that of a gang may change.
    `reasons` is the last answer while it is no, and the line is parked then. `fresh` are pods that
    have not been told the reasons.
    """

    def __init__(self, key: bytes, gang: str = "", queue: str = DEFAULT) -> None:
        self.key = key
        self.gang = gang
        self.queue = queue
        self.waiting: list[Turn] = []
        self._turns: set[Turn] = set()  # those in `waiting`
        self.queued: Turn | None = None  # its one valid entry in the order of lines
        self.reasons: Reasons | None = None
        self.fresh: dict[Turn, None] = {}
        self._told: Gist | None = None

    def __len__(self) -> int:
        """Pods that stand here; may count pods that have just left."""
        return len(self._turns)

    @property
    def parked(self) -> bool:
        """Whether the answer was no and nothing has happened that could change it."""
        return self.reasons is not None

    @property
    def tells(self) -> bool:
        """Whether there is an answer for those who have not heard it."""
        return self.reasons is not None and not self.reasons.silent

    def looks_for_others(self, state: State) -> bool:
        """Whether a pod of the line wants others near, or an even spread of them."""
        turns = self.live(state) if self.gang else self.waiting[:1]
        wishes = (state.pods[turn.uid].submitted.shape.pods for turn in turns)
        return any(each.affinity or each.spread for each in wishes)

    def add(self, state: State, turn: Turn, *, told: bool = False) -> None:
        """One more pod; whether it has heard why it waits."""
        if turn not in self._turns:
            self._turns.add(turn)
            heappush(self.waiting, turn)
        if len(self.waiting) > 2 * len(self._turns) + SLACK:
            self.waiting = sorted(self._turns)
        if told:
            return
        self.fresh[turn] = None
        if len(self.fresh) > 2 * len(self.waiting) + SLACK:
            self.fresh = {old: None for old in self.fresh if still_waits(state, old)}

    def park(self, state: State, reasons: Reasons) -> None:
        """The head fits nowhere, for these reasons, and so does nobody behind it."""
        self.reasons = reasons
        if reasons.silent:
            return
        gist = reasons.gist
        if gist != self._told:
            self._told = gist
            self.fresh = dict.fromkeys(self.live(state))

    def head(self, state: State) -> Turn | None:
        """The first pod that still waits; those that no longer do are dropped."""
        while self.waiting:
            first = self.waiting[0]
            if first in self._turns and still_waits(state, first):
                return first
            self._turns.discard(heappop(self.waiting))
        return None

    def leave(self, turn: Turn) -> None:
        """The pod has gone, or another scheduler decides for it."""
        self._turns.discard(turn)
        self.fresh.pop(turn, None)

    def live(self, state: State) -> list[Turn]:
        """Every pod that still waits, in order."""
        self.waiting = sorted(turn for turn in self._turns if still_waits(state, turn))
        self._turns = set(self.waiting)
        return list(self.waiting)

    def remove(self, taken: set[str]) -> None:
        """Take these pods, which stand at or near the head, out of the line."""
        kept = []
        while self.waiting and taken:
            turn = heappop(self.waiting)
            if turn.uid in taken:
                taken.discard(turn.uid)
                self._turns.discard(turn)
            else:
                kept.append(turn)
        for turn in kept:
            heappush(self.waiting, turn)


class PendingQueue:
    """All lines, and which of them is next; `share` is what a queue holds, over its weight.

    `contested`: lines of several of the cluster's queues may wait.
    """

    def __init__(self, state: State, share: Callable[[str], float] = lambda _: 0.0) -> None:
        self._state = state
        self._share = share
        self._lines: dict[bytes, Line] = {}
        self._order: list[tuple[Turn, bytes]] = []  # of the queue whose turn it is
        self._orders = {DEFAULT: self._order}
        self.contested = False
        self._untold: dict[bytes, None] = {}
        for pod in sorted(state.pods.values(), key=turn_of):
            if pod.phase is PENDING:
                self.add(pod)

    def __len__(self) -> int:
        """Pods in lines, the parked among them; may count pods that have just left."""
        return sum(len(line) for line in self._lines.values())

    def add(self, pod: PodState, *, told: bool = False) -> None:
        """Put a pending pod in its line; one that joins a parked line is to be told why.

        Unless it is `told`, by another scheduler: what that one found may be newer. A pod whose
        node somebody else chooses has no line.
        """
        if pod.submitted.chooser:
            return
        gang = pod.submitted.group
        key = _gang_key(gang) if gang else line_key(self._state, pod)
        line = self._lines.get(key)
        if line is None:
            named = gang or pod.submitted.queue
            queue = queue_of(self._state, pod) if named else DEFAULT
            line = self._lines[key] = Line(key, gang, queue)
        line.add(self._state, turn_of(pod), told=told)
        if line.parked:
            self._untold[key] = None
        else:
            self._enqueue(line)

    def leave(self, pod: PodState) -> None:
        """Take a pod out of its line, wherever it stands there."""
        for key in _keys(pod):
            line = self._lines.get(key)
            if line is not None:
                line.leave(turn_of(pod))
                if not len(line):
                    del self._lines[key]

    def park(self, line: Line, reasons: Reasons) -> None:
        """The line's head fits nowhere: ask no more until `wake`."""
        line.park(self._state, reasons)
        if line.fresh and not reasons.silent:
            self._untold[line.key] = None

    def move(self, line: Line, pod: PodState, key: bytes) -> Line:
        """Take the head of a line into another, which is returned; the rest of the line goes on."""
        line.remove({pod.uid})
        self.wake(line)
        other = self._lines.get(key)
        if other is None:
            other = self._lines[key] = Line(key, queue=line.queue)
        other.add(self._state, turn_of(pod))
        if other.parked:
            self._untold[key] = None
        return other

    @property
    def any_untold(self) -> bool:
        """Whether `untold` may give any."""
        return bool(self._untold)

    def untold(self) -> Iterator[tuple[PodState, Reasons]]:
        """Pods of parked lines that have not been told why, with the reasons."""
        for key in list(self._untold):
            line = self._lines.get(key)
            while line is not None and line.tells and line.fresh:
                turn, _ = line.fresh.popitem()
                if still_waits(self._state, turn) and line.reasons is not None:
                    yield self._state.pods[turn.uid], line.reasons
            del self._untold[key]

    def choose(self) -> None:
        """Go on with the queue that has the least share, the first by name among equals."""
        while self.contested:
            name = min(self._orders, key=lambda each: (self._share(each), each))
            self._order = self._orders[name]
            if self.next_line() is not None:
                return
            del self._orders[name]
            self.contested = len(self._orders) > 1
            self._order = next(iter(self._orders.values()))

    def next_line(self) -> Line | None:
        """The line with the first pod in order among those not parked, or None.

        Where it is `contested`, of the queue that was chosen.
        """
        order = self._order
        while order:
            turn, key = order[0]
            line = self._lines.get(key)
            if line is None or line.queued != turn:
                heappop(order)  # the line has another entry, or has gone
                continue
            head = line.head(self._state)
            if head == turn and not line.parked:
                return line
            heappop(order)
            line.queued = None
            if head is None and not line.parked:
                del self._lines[key]
            elif not line.parked:
                self._enqueue(line)
        return None

    def parked(self, keys: Iterable[bytes] | None = None) -> list[Line]:
        """Lines whose last answer was no, in a fixed order; those that ran empty are dropped.

        Of these keys only, where they are given.
        """
        found = []
        for key in sorted(self._lines if keys is None else keys):
            line = self._lines.get(key)
            if line is not None and line.parked:
                if line.head(self._state) is None:
                    del self._lines[key]
                else:
                    found.append(line)
        return found

    def wake_gang(self, gang: str) -> None:
        """Ask for a gang again, if any of it waits, in the queue that it is of now."""
        line = self._lines.get(_gang_key(gang))
        head = None if line is None else line.head(self._state)
        if line is None or head is None:
            return
        queue = queue_of(self._state, self._state.pods[head.uid])
        if queue != line.queue:
            order = self._orders.get(line.queue, [])
            order[:] = [entry for entry in order if entry[1] != line.key]
            heapify(order)
            line.queue, line.queued = queue, None
        self.wake(line)

    def wake(self, line: Line) -> None:
        """Ask for this line again, or go on with it."""
        line.reasons = None
        self._enqueue(line)

    def _enqueue(self, line: Line) -> None:
        """Let the line's head stand in the order, once: an entry of another turn is void."""
        head = line.head(self._state)
        if head is not None and line.queued != head:
            line.queued = head
            order = self._orders.get(line.queue)
            if order is None:
                order = self._begin_order(line.queue)
            heappush(order, (head, line.key))

    def _begin_order(self, name: str) -> list[tuple[Turn, bytes]]:
        """Lines of another queue wait; an order that has run out gives way to its own."""
        if not self.contested and not self._order:
            self._orders.clear()
        self._orders[name] = self._order = []
        self.contested = len(self._orders) > 1
        return self._order


def line_key(state: State, pod: PodState) -> bytes:
    """Pods of one shape wait together; those with wishes about others, only if alike to others."""
    return near_key(pod) if has_wishes(pod.submitted.shape.pods) else shape_line(state, pod)


def near_key(pod: PodState) -> bytes:
    """The line of pods of one shape that are alike to every selector there may ever be."""
    about = pod.submitted
    return b"near " + _limits_key(about.queue) + pod.shape_key + _encode(kind_of(about))


def shape_line(state: State, pod: PodState) -> bytes:
    """The line of pods of one shape that have the same limits."""
    return limits_key(state, pod) + pod.shape_key


def limits_key(state: State, pod: PodState) -> bytes:
    """Equal for pods of one queue and, where a namespace has a quota, of one namespace."""
    about = pod.submitted
    return _limits_key(about.queue, about.namespace if about.namespace in state.quotas else "")


def _limits_key(queue: str, namespace: str = "") -> bytes:
    return _encode([queue, namespace]) if queue or namespace else b""


def _keys(pod: PodState) -> tuple[bytes, ...]:
    """The lines in which the pod may stand, whether or not its namespace had a quota then."""
    about = pod.submitted
    if about.group:
        return (_gang_key(about.group),)
    shared, own = _limits_key(about.queue), _limits_key(about.queue, about.namespace)
    return shared + pod.shape_key, own + pod.shape_key, near_key(pod)


def _gang_key(gang: str) -> bytes:
    return b"gang " + gang.encode()
