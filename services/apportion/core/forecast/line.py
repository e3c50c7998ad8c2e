"""Follow running and pending pods, and forecast when a pending pod starts.

A pod starts when enough devices are free for it and for the pods that come first. In its own queue,
these are the pods of higher priority, and pods of its priority that are not larger. Pods of another
queue come first while that queue uses less of its entitlement than the pod's queue. `durations`
estimates when running pods release that many devices; `waits` has the past waits of similar pods.
Devices are only counted: fragmentation, topology and reclaim show only in the past waits.

The module follows events, not the state, so a reader can begin with old events. Invariant: the cost
of an event does not depend on the number of pods, except for the first refusal of a pod, which
costs as much as a forecast. At most one such refusal per second of the ledger is evaluated, and
fewer if pods wait for long."""

import math
from collections.abc import Callable
from typing import Final
from zlib import crc32

import numpy as np
from msgspec import structs

from apportion.core.answers.reads import StartForecast, StartUnknown
from apportion.core.devices.worth import DEVICE
from apportion.core.forecast.durations import GRID, Durations, keys_of, size_of
from apportion.core.forecast.pending import Job, Kind, Pending, Pod
from apportion.core.forecast.running import LEAST_DEVICES, Fleet, Running
from apportion.core.forecast.waits import PROBABILITY, Band, Situation, Waits
from apportion.core.ledger.moments import SECOND, micros_of, text_of
from apportion.core.ledger.state import DEFAULT_QUEUE, PENDING, Placement, PodState, State
from apportion.core.placement.feasibility.causes import LIMIT_CODES, is_unsuitable
from apportion.core.placement.limits.quotas import WORTH
from apportion.core.placement.limits.tree import QueueTree
from apportion_schemas import (
    ConfigurationChanged,
    PlacementVoided,
    PodAdopted,
    PodChanged,
    PodEvicted,
    PodGone,
    PodGroupGone,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    QueueObserved,
    RefusalCode,
)
from apportion_schemas.catalogue import BY_PAYLOAD
from apportion_schemas.quantities import Payload

TURNOVER: Final = 0.6  # of the devices in use: when so many are released, the next pods run
_C = RefusalCode
# A pod behind the first one of a fifo queue exceeds no limit.
EXCEEDED: Final = LIMIT_CODES - {_C.QUEUE_FIRST_WAITS}
NOT_OURS: Final = frozenset((_C.VOLUME_CLAIM_NOT_READY, _C.VOLUME_CLAIM_IN_USE, _C.GANG_INCOMPLETE))


class Line:
    """Follows the events of a ledger, and forecasts starts. Pass each event to `observe`."""

    def __init__(
        self, state: State, *, empty: bool = False, clock_s: Callable[[], float] = lambda: math.inf
    ) -> None:
        """Begin with the pods of this state. Nodes and queues are always read from the state.

        With `empty`, begin without pods, to follow past events until `meet`. An event time after
        `clock_s()` (seconds since 1970) counts as `clock_s()`: a writer's clock may be fast."""
        self._state, self._fleet = state, Fleet(state)
        self._clock_s = clock_s
        self._now_s = self._noted_s = self._since_s = 0.0
        self._curves: dict[frozenset[tuple[str, str]], np.ndarray] = {}  # until the next event
        self.durations, self.waits = Durations(), Waits()
        self._clear()
        if not empty:
            self.meet(state)

    def _clear(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._running = Running(self.durations)
        self._jobs: dict[str, Job] = {}
        self._pending = Pending()
        self._queues: dict[str, str] = {}  # of gangs
        self._tree: QueueTree | None = None
        self._curves.clear()

    def meet(self, state: State) -> None:
        """Continue with the pods of this state; keep the durations and waits learned so far.

        The pods so far may be wrong: past events may have been refused, or be missing. A state
        lacks the time at which a pod lost its gates, so the pod's wait counts from submission."""
        noted = {name: (job.number, job.refused_s) for name, job in self._jobs.items()}
        self._state, self._fleet = state, Fleet(state)
        self._clear()
        for name, group in state.groups.items():
            if group.observed is not None:
                self._group(name, group.observed.queue)
        newest = max(
            (_seconds(pod.placed_time or pod.submitted_time) for pod in state.pods.values()),
            default=0.0,
        )
        self._now_s = max(self._now_s, min(newest, self._clock_s()))
        for uid, pod in state.pods.items():
            self._come(pod.submitted, min(_seconds(pod.submitted_time), self._now_s))
            job = self._jobs.get(pod.submitted.group or uid)
            if pod.placement is not None:
                self._start(uid, pod.placement, min(_seconds(pod.placed_time), self._now_s))
                if uid in self._pods:
                    self._pods[uid].evicted = uid in state.evictions
            elif job is not None and uid in job.pods and pod.refusal is not None:
                self._block(job, self._pods[uid], pod.refusal)
                if not job.blocked:
                    job.refused_s = job.since_s  # nearly; not noted, unless at its first refusal
        for name, (number, refused_s) in noted.items():
            if name in self._jobs:
                self._jobs[name].number, self._jobs[name].refused_s = number, refused_s
            elif number >= 0:
                self.waits.left(number, self._now_s)

    def copied(self, state: State) -> "Line":
        """Return a line with the pods of another state, which knows what this one has learned.

        The state may be that of a plan. This line does not change."""
        made = Line(state, empty=True, clock_s=self._clock_s)
        made._now_s, made._since_s = self._now_s, self._since_s
        made.durations, made.waits = self.durations, self.waits  # forecasts change neither
        # Not the jobs that start there: when they really start, is still to be seen. A gang of the
        # same name with other pods has not waited.
        made._jobs = {
            name: job
            for name, job in self._jobs.items()
            if any(uid in state.pods and state.pods[uid].placement is None for uid in job.pods)
        }
        made.meet(state)
        return made

    # ---- events ----

    def observe(self, data: Payload, at_s: float) -> None:
        """Follow an event that the fold applied at `at_s`, in seconds since 1970."""
        if BY_PAYLOAD[type(data)].writer != "agent":  # a node's clock may be wrong
            self._now_s = max(self._now_s, min(at_s, self._clock_s()))
            self._since_s = self._since_s or self._now_s
        self._curves.clear()
        self._fleet.observe(data)
        if isinstance(data, PodSubmitted):
            if data.uid not in self._pods:  # the fold refuses a second submission
                self._come(data, self._now_s)
        elif isinstance(data, PodAdopted):
            self._gone(data.pod, learns=False)
            self._come(data.submitted, self._now_s)
            self._start(data.pod, data, self._now_s)
        elif isinstance(data, PodPlaced):
            self._start(data.pod, data, self._now_s)
        elif isinstance(data, PodRefused):
            self._refused(data)
        elif isinstance(data, PlacementVoided):
            pod = self._pods.get(data.pod)
            if pod is not None:
                self._running.stop(data.pod, pod, self._now_s, learns=False)
                self._wait(data.pod)
        elif isinstance(data, PodGone):
            self._gone(data.uid, learns=True)
        else:
            self._change(data)

    def _change(self, data: Payload) -> None:
        if isinstance(data, PodEvicted):
            if data.pod in self._pods:
                self._pods[data.pod].evicted = True
        elif isinstance(data, PodChanged):
            pod = self._pods.get(data.uid)
            if pod is not None:
                if pod.gated:
                    pod.came_s = self._now_s
                pod.gated = bool(data.gates)
                if pod.gated:
                    self._leave(data.uid, pod, starts=False)
                self._wait(data.uid)
        elif isinstance(data, PodGroupObserved):
            self._group(data.group, data.queue)
        elif isinstance(data, PodGroupGone):
            self._queues.pop(data.group, None)
        elif isinstance(data, QueueObserved | ConfigurationChanged):
            self._tree = None

    def _group(self, name: str, queue: str) -> None:
        self._queues[name] = queue
        job = self._jobs.get(name)
        if job is not None:
            self._pending.remove(job)
            job.queue = queue
            self._pending.add(job)
            for uid in job.pods:
                self._pods[uid].queue = queue

    def _come(self, pod: PodSubmitted, at_s: float) -> None:
        asks = [ask for ask in pod.shape.asks if not ask.init] or list(pod.shape.asks)
        if not asks:
            return
        devices = sum(ask.count * self._fleet.part(ask) for ask in asks)
        queue = self._queues.get(pod.group) or pod.queue or DEFAULT_QUEUE
        keys = keys_of(pod, queue, devices)
        kind = Kind(asks[0].family, tuple(sorted(set(pod.shape.devices.use_types))))
        job = pod.group or pod.uid
        self._pods[pod.uid] = Pod(
            job, queue, kind, devices, pod.priority, keys, at_s,
            gated=bool(pod.gates), elsewhere=bool(pod.chooser), most_s=pod.deadline_s or math.inf,
        )  # fmt: skip
        self._wait(pod.uid)

    def _wait(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is not None and not pod.gated and not pod.models:
            job = self._jobs.setdefault(
                pod.job,
                Job(pod.job, pod.queue, pod.kind, pod.priority, pod.came_s, blocked=pod.elsewhere),
            )
            if uid not in job.pods:
                self._pending.remove(job)
                job.pods[uid] = None
                job.devices += pod.devices
                self._pending.add(job)

    def _leave(self, uid: str, pod: Pod, *, starts: bool) -> None:
        job = self._jobs.get(pod.job)
        if job is None or uid not in job.pods:
            return
        self._pending.remove(job)
        del job.pods[uid]
        job.devices -= pod.devices
        self._pending.add(job)
        if starts:
            if job.number >= 0:
                self.waits.started(job.number, self._now_s)
            job.number, job.refused_s = -1, None
        if not job.pods:
            if job.number >= 0:
                self.waits.left(job.number, self._now_s)
            del self._jobs[pod.job]

    def _start(self, uid: str, at: PodPlaced | PodAdopted | Placement, at_s: float) -> None:
        pod = self._pods.get(uid)
        if pod is None or pod.models:
            return
        self._leave(uid, pod, starts=True)
        there = self._state.nodes.get(at.node)
        by_id = there.by_id if there is not None else {}
        models = [by_id[it.device].device.model for it in at.shares if it.device in by_id] or [""]
        self._running.start(uid, pod, models, at_s)

    def _gone(self, uid: str, *, learns: bool) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._running.stop(uid, pod, self._now_s, learns=learns)
            self._leave(uid, pod, starts=False)

    def _refused(self, refused: PodRefused) -> None:
        pod = self._pods.get(refused.pod)
        job = self._jobs.get(pod.job) if pod is not None else None
        if job is None or pod is None:
            return
        self._block(job, pod, refused)
        if job.refused_s is not None or job.blocked:
            return
        # Not at a later refusal, or long waits would be noted more often.
        job.refused_s = self._now_s
        if self._now_s - self._noted_s < self.waits.every_s and self._noted_s:
            return
        self._noted_s = self._now_s
        situation = self._of(job)
        found = self.waits.band(situation, self._now_s)
        job.number = self.waits.note(situation, self._now_s, found)

    def _block(self, job: Job, pod: Pod, refused: PodRefused) -> None:
        self._pending.remove(job)
        job.blocked = pod.elsewhere or _blocked(refused) is not None
        self._pending.add(job)

    # ---- forecasts ----

    def forecast(self, pod: PodState) -> StartForecast | None:
        """Return when a pending pod starts, or why that is unknown; None for other pods.

        The times are as of the newest event."""
        if pod.phase is not PENDING:
            return None
        found: Band | StartUnknown | None = _unknown(pod)
        mine = self._pods.get(pod.uid)
        job = self._jobs.get(mine.job) if mine is not None else None
        if job is None:
            found = found or "no-devices"
        elif found is None:
            # Without a decision of a scheduler, the pod has waited since its submission.
            refused_s = job.since_s if job.refused_s is None else job.refused_s
            elapsed_s = max(self._now_s - refused_s, 0.0)
            found = "nodes-closed"
            if self._fleet.accepts(pod):
                found = self.waits.band(self._of(job), self._now_s, elapsed_s)
        judged = self.waits.judged(self._now_s)
        since = text_of(round(self._since_s) * SECOND) if self._since_s else ""
        made = StartForecast(
            as_of=self._text(0.0), since=since, judged=len(judged), within=sum(judged)
        )
        if not isinstance(found, Band):
            return structs.replace(made, unknown=found)
        return structs.replace(
            made,
            earliest=self._text(found.p10_s),
            median=self._text(found.p50_s),
            latest=self._text(found.p90_s),
            probability=round(PROBABILITY, 3),
            similar=round(found.similar),
        )

    def _text(self, after_s: float) -> str:
        return text_of(round(self._now_s + after_s) * SECOND)

    def situation(self, uid: str) -> Situation | None:
        """Return the situation of a pending pod; None if it is not pending or needs no device."""
        pod = self._pods.get(uid)
        job = self._jobs.get(pod.job) if pod is not None else None
        return self._of(job) if job is not None and uid in job.pods else None

    def _of(self, job: Job) -> Situation:
        needed, curve = self._ahead(job) + job.devices, self._curve(job.kind)
        # The rest is released by pods that start in the meantime, at the same rate.
        rounds = max(needed / max(TURNOVER * curve[-1], LEAST_DEVICES), 1.0)
        expected_s = rounds * float(np.interp(needed / rounds, curve, GRID))
        numbers = (
            crc32(repr(each).encode()) for each in (job.queue, job.kind, size_of(job.devices))
        )
        oldest_s = self._pending.oldest_s(job)
        waited_s = 0.0 if oldest_s is None else max(self._now_s - oldest_s, 0.0)
        return Situation(expected_s, waited_s, *numbers)

    def _ahead(self, job: Job) -> float:
        """Return how many devices pending pods get before this job."""
        pending = self._pending.before(job)
        used = self._running.used(job.kind)
        own = pending.pop(job.queue, 0.0)
        if self._tree is None:
            self._tree = QueueTree(self._state.queues, self._state.configuration)
        tree, family = self._tree, job.kind.family
        part = _entitled(tree, job.queue, family)
        ratio = (used.get(job.queue, 0.0) + own + job.devices) / part
        return own + sum(
            min(much, max(ratio * _entitled(tree, queue, family) - used.get(queue, 0.0), 0))
            for queue, much in pending.items()
        )

    def _curve(self, kind: Kind) -> np.ndarray:
        fitting = self._running.fitting(kind)
        found = self._curves.get(fitting)
        if found is None:
            found = self._curves[fitting] = self._running.released(fitting, self._now_s)
        return found


def _entitled(tree: QueueTree, queue: str, family: str) -> float:
    # In proportion: the devices that it deserves if any queue does, or else its weight.
    claims = tree.claims(queue)
    if tree.lends:
        return max(claims.deserved.get((WORTH, family), 0) / DEVICE, LEAST_DEVICES)
    return max(float(claims.weight), LEAST_DEVICES)


def _unknown(pod: PodState) -> StartUnknown | None:
    if pod.submitted.gates:
        return "gated"
    if pod.submitted.chooser:
        return "other-scheduler"
    return None if pod.refusal is None else _blocked(pod.refusal)


def _blocked(refused: PodRefused) -> StartUnknown | None:
    """Return why waiting cannot start a refused pod; None if it can."""
    codes = refused.reasons.keys()
    if codes & EXCEEDED:
        return "limit"
    if codes & NOT_OURS:
        return "not-ready"
    return "never" if is_unsuitable(refused) else None


def _seconds(time: str) -> float:
    return (micros_of(time) or 0) / SECOND
