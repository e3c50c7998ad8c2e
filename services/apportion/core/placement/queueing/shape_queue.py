"""A queue of pending pods that are alike for placement, with the result for its first pod.

If the first pod fits nowhere, no pod behind it fits, and the queue is unschedulable. Invariant: the
queue has each pod once, ordered by priority, then revision of submission."""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from apportion.core.ledger.state import DEFAULT_QUEUE, PENDING, PodState, State
from apportion.core.placement.limits.holdings import NEVER_SEEN
from apportion.core.placement.limits.limits import Kept
from apportion.core.placement.limits.quotas import LimitExceeded
from apportion_schemas import (
    GangShortage,
    NearMiss,
    PodRefused,
    QueueShortage,
    QuotaShortage,
    RefusalCode,
    VolumeShortage,
)

SLACK = 64  # entries that may outlive their pods before they are removed
_new_tuple: Final = tuple.__new__


class Turn(NamedTuple):
    """A pod's position in the order: by priority, then by submission, then by uid."""

    rank: int
    revision: int
    uid: str


ReasonKey = tuple[
    frozenset[RefusalCode], tuple[str, str, int] | None, VolumeShortage | None, tuple[str, str]
]


class Reasons(NamedTuple):
    """Why no node fits the first pod of a shape queue."""

    counts: dict[RefusalCode, int]
    nearest: tuple[NearMiss, ...]
    nodes: int
    gang: GangShortage | None = None
    silent: bool = False  # do not report the refusal to the ledger
    limit: Kept | None = None
    volume: VolumeShortage | None = None

    @property
    def reason_key(self) -> ReasonKey:
        """Return a key of the reasons; a refusal is reported again only when this key changes."""
        quota = self.limit.exceeded.quota if self.limit is not None else None
        return _reason_key(self.counts, quota, self.volume, self.gang)


def _reason_key(
    counts: Iterable[RefusalCode],
    quota: QuotaShortage | None,
    volume: VolumeShortage | None,
    gang: GangShortage | None,
) -> ReasonKey:
    # The codes without counts, the quota that could be raised, the claim with its state, and the
    # topology domain.
    limit = None if quota is None else (quota.quota, quota.resource, quota.most)
    domain = ("", "") if gang is None else (gang.level, gang.domain)
    return frozenset(counts), limit, volume, domain


def reason_key_of(refused: PodRefused) -> ReasonKey:
    """Return the key of the reasons in a refusal, comparable with `Reasons.reason_key`."""
    return _reason_key(refused.reasons, refused.quota, refused.volume, refused.gang)


def refusal_of(pod: PodState, reasons: Reasons) -> PodRefused:
    """Return the event that refuses one pod of a shape queue for these reasons."""
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


# the reasons of a gang that is not declared yet
UNDECLARED: Final = Reasons({}, (), 0, silent=True)


def behind(queue: str, first: PodState) -> Reasons:
    """Return the refusal of pods that wait behind `first` in a FIFO queue."""
    shortage = QueueShortage(queue=queue, behind=first.full_name)
    exceeded = LimitExceeded(RefusalCode.QUEUE_FIRST_WAITS, queue=shortage)
    return Reasons({exceeded.code: 0}, (), 0, limit=Kept(exceeded, None, NEVER_SEEN))


def turn_of(pod: PodState) -> Turn:
    """Return the pod's position in the order."""
    about = pod.submitted
    # Equals `Turn(...)`, but saves three calls.
    return _new_tuple(Turn, (-about.priority, pod.submitted_revision, about.uid))


def place_of(state: State, pod: PodState) -> Turn:
    """Return the pod's place among all pending pods: that of its gang, if it is in one.

    So a pod that replaces a lost member does not wait behind work that is younger than its gang."""
    group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
    if group is None or not group.together or not group.since:
        return turn_of(pod)
    return Turn(-group.priority, group.since, pod.uid)


def is_pending(state: State, pod: PodState) -> bool:
    """Return True if the pod is in the state, not placed, and without scheduling gates."""
    waits = pod.phase is PENDING and not pod.submitted.gates
    return waits and state.pods.get(pod.uid) is pod


def still_waits(state: State, turn: Turn) -> bool:
    """Return True if the pod is pending and was not submitted again since it got this turn."""
    pod = state.pods.get(turn.uid)
    return pod is not None and pod.phase is PENDING and pod.submitted_revision == turn.revision


class ShapeQueue:
    """Pending pods of one shape, or of one gang, in the order in which they are scheduled."""

    def __init__(self, key: bytes, gang: str = "", queue: str = DEFAULT_QUEUE) -> None:
        self.key = key
        self.gang = gang
        self.queue = queue  # for fair sharing
        self.waiting: list[Turn] = []
        self._turns: set[Turn] = set()  # those in `waiting`
        self.queued: Turn | None = None  # its only valid entry in the order of shape queues
        self.reasons: Reasons | None = None  # set while the first pod is refused
        self.facts = 0  # how many changes of nodes' facts the reasons include
        self.fresh: dict[Turn, None] = {}  # pods whose refusal the ledger lacks
        self._reported: ReasonKey | None = None

    def __len__(self) -> int:
        """Return the number of pods; it may include pods that are no longer pending."""
        return len(self._turns)

    @property
    def unschedulable(self) -> bool:
        """Return True if the first pod was refused, and no event since could have changed that."""
        return self.reasons is not None

    @property
    def tells(self) -> bool:
        """Return True if the shape queue has a refusal to report to the ledger."""
        return self.reasons is not None and not self.reasons.silent

    def looks_for_others(self, state: State) -> bool:
        """Return True if a pod of the queue has pod affinity or topology spread constraints."""
        turns = self.live(state) if self.gang else self.waiting[:1]
        wishes = (state.pods[turn.uid].submitted.shape.pods for turn in turns)
        return any(each.affinity or each.spread for each in wishes)

    def add(self, state: State, turn: Turn, reported: bool) -> None:  # noqa: FBT001 - hot path
        """Add a pod; `reported` if the ledger has its refusal already."""
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
        """Return True if the queue has a pod with this turn, even one that is no longer pending."""
        return turn in self._turns

    def mark_unschedulable(self, state: State, reasons: Reasons) -> None:
        """Record that the first pod, and therefore every pod behind it, fits nowhere."""
        self.reasons = reasons
        if reasons.silent:
            return
        reason_key = reasons.reason_key
        if reason_key != self._reported:
            self._reported = reason_key
            self.fresh = dict.fromkeys(self.live(state))

    def head(self, state: State) -> Turn | None:
        """Return the first pod that is still pending, and drop the pods before it."""
        while self.waiting:
            first = self.waiting[0]
            if first in self._turns and still_waits(state, first):
                return first
            self._turns.discard(heappop(self.waiting))
        return None

    def place(self, state: State) -> Turn | None:
        """Return the queue's place among all shape queues; None if no pod of it is pending."""
        head = self.head(state)
        return None if head is None else place_of(state, state.pods[head.uid])

    def leave(self, turn: Turn) -> None:
        """Remove a pod that has ended, or that another scheduler places."""
        self._turns.discard(turn)
        self.fresh.pop(turn, None)

    def live(self, state: State) -> list[Turn]:
        """Remove pods that are no longer pending, and return the rest in scheduling order."""
        self.waiting = sorted(turn for turn in self._turns if still_waits(state, turn))
        self._turns = set(self.waiting)
        return list(self.waiting)

    def remove(self, taken: set[str]) -> None:
        """Remove the pods with these uids, which are at or near the head."""
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
