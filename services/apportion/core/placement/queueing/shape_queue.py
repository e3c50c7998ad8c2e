"""One shape queue: the pods that one question decides, and the last answer to it.

Its head is asked for; where that fits nowhere nobody behind it does, and the whole shape queue is
unschedulable, so a hundred thousand pods of one refused shape cost nothing until something happens
that could help them.

Invariant: a pod stands in it once, however often it is added, and in the order of its turn:
priority first, then the revision of submission."""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from apportion.core.ledger.state import DEFAULT_QUEUE, PENDING, PodState, State
from apportion.core.placement.limits.limits import Kept
from apportion_schemas import (
    GangShortage,
    NearMiss,
    PodRefused,
    QuotaShortage,
    RefusalCode,
    VolumeShortage,
)

SLACK = 64  # entries that may outlive their pods before they are swept


class Turn(NamedTuple):
    """A pod's place in the order: higher priority, then earlier submission, then uid."""

    rank: int
    revision: int
    uid: str


ReasonKey = tuple[frozenset[RefusalCode], tuple[str, str, int] | None, VolumeShortage | None]


class Reasons(NamedTuple):
    """Why the head fits nowhere: what a `PodRefused` says, if anything is to be said."""

    counts: dict[RefusalCode, int]
    nearest: tuple[NearMiss, ...]
    nodes: int
    gang: GangShortage | None = None
    silent: bool = False
    limit: Kept | None = None
    volume: VolumeShortage | None = None

    @property
    def reason_key(self) -> ReasonKey:
        """What is worth telling anew."""
        quota = self.limit.exceeded.quota if self.limit is not None else None
        return _reason_key(self.counts, quota, self.volume)


def _reason_key(
    counts: Iterable[RefusalCode], quota: QuotaShortage | None, volume: VolumeShortage | None
) -> ReasonKey:
    """The codes, whatever their counts; which limit it is that somebody could raise; which claim it
    is, and its state."""
    limit = None if quota is None else (quota.quota, quota.resource, quota.most)
    return frozenset(counts), limit, volume


def reason_key_of(refused: PodRefused) -> ReasonKey:
    """The `reason_key` of the reasons of this event."""
    return _reason_key(refused.reasons, refused.quota, refused.volume)


def refusal_of(pod: PodState, reasons: Reasons) -> PodRefused:
    """The reasons of a shape queue as the event that tells one of its pods."""
    exceeded = reasons.limit.exceeded if reasons.limit is not None else None
    return PodRefused(
        pod=pod.uid,
        namespace=pod.submitted.namespace,
        name=pod.submitted.name,
        reasons=reasons.counts,
        nodes=reasons.nodes,
        nearest=reasons.nearest,
        gang=reasons.gang,
        queue=exceeded.queue if exceeded is not None else None,
        quota=exceeded.quota if exceeded is not None else None,
        volume=reasons.volume,
    )


UNDECLARED: Final = Reasons({}, (), 0, silent=True)
"""The pods of a gang that is not declared yet: nobody knows what it needs."""


def turn_of(pod: PodState) -> Turn:
    """The pod's place in the order."""
    about = pod.submitted
    # As `Turn(...)`, which Python does in three calls more.
    return tuple.__new__(Turn, (-about.priority, pod.submitted_revision, about.uid))


def is_pending(state: State, pod: PodState) -> bool:
    """Whether the pod is live, has no place, and waits for nothing before it may have one."""
    waits = pod.phase is PENDING and not pod.submitted.gates
    return waits and state.pods.get(pod.uid) is pod


def still_waits(state: State, turn: Turn) -> bool:
    """Whether the pod of this turn is pending; a later pod of its uid has another turn."""
    pod = state.pods.get(turn.uid)
    return pod is not None and pod.phase is PENDING and pod.submitted_revision == turn.revision


class ShapeQueue:
    """Pods of one `key`, or of one `gang`, all of the cluster's queue `queue`; a gang's may change.

    `reasons` is the last answer while that is no. `fresh` are pods to which they are not reported.
    """

    def __init__(self, key: bytes, gang: str = "", queue: str = DEFAULT_QUEUE) -> None:
        self.key = key
        self.gang = gang
        self.queue = queue
        self.waiting: list[Turn] = []
        self._turns: set[Turn] = set()  # those in `waiting`
        self.queued: Turn | None = None  # its one valid entry in the order of shape queues
        self.reasons: Reasons | None = None
        self.fresh: dict[Turn, None] = {}
        self._reported: ReasonKey | None = None

    def __len__(self) -> int:
        """Pods that stand here; may count pods that have just left."""
        return len(self._turns)

    @property
    def unschedulable(self) -> bool:
        """Whether the answer was no and nothing has happened that could change it."""
        return self.reasons is not None

    @property
    def tells(self) -> bool:
        """Whether there is an answer for those who have not heard it."""
        return self.reasons is not None and not self.reasons.silent

    def looks_for_others(self, state: State) -> bool:
        """Whether a pod of the shape queue wants others near, or an even spread of them."""
        turns = self.live(state) if self.gang else self.waiting[:1]
        wishes = (state.pods[turn.uid].submitted.shape.pods for turn in turns)
        return any(each.affinity or each.spread for each in wishes)

    def add(self, state: State, turn: Turn, reported: bool) -> None:  # noqa: FBT001 - of a hot path
        """One more pod; whether it has heard why it waits."""
        if turn not in self._turns:
            self._turns.add(turn)
            heappush(self.waiting, turn)
        if len(self.waiting) > 2 * len(self._turns) + SLACK:
            self.waiting = sorted(self._turns)
        if reported:
            return
        self.fresh[turn] = None
        if len(self.fresh) > 2 * len(self.waiting) + SLACK:
            self.fresh = {old: None for old in self.fresh if still_waits(state, old)}

    def has(self, turn: Turn) -> bool:
        """Whether the pod of this turn stands here; one that no longer waits may, too."""
        return turn in self._turns

    def mark_unschedulable(self, state: State, reasons: Reasons) -> None:
        """The head fits nowhere, for these reasons, and so does nobody behind it."""
        self.reasons = reasons
        if reasons.silent:
            return
        reason_key = reasons.reason_key
        if reason_key != self._reported:
            self._reported = reason_key
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
        """Take these pods, which stand at or near the head, out of the shape queue."""
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
