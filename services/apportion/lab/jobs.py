"""Turn a trace of jobs with ends into a workload, which a replay runs through the real engine.

A job is one pod, or a gang that starts together; its pods run as long as the job did. Invariant:
the figures of `job_meter` and the replay know a job by the owner of its pods."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, Literal, NamedTuple

from msgspec import Struct, structs

from apportion.core.ledger.snapshot import take
from apportion.core.ledger.state import State
from apportion.core.workloads.trace import NAMESPACE, asks_of, dialect_of, models_of
from apportion.lab import changes as lab_changes
from apportion.lab.course import Course, copied
from apportion.lab.recording import PODS_MAX, Fact, Tape, Workload
from apportion.lab.traces import RACK, Job, Queue, TraceInvalid
from apportion.runtime.files.fleets import SimulatedNode
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    NodeConstraints,
    PodGone,
    PodGroupObserved,
    PodSubmitted,
    QueueObserved,
    Shape,
)
from apportion_schemas.configuration import QueuesConfiguration

BEGIN_S: Final = 946_684_800.0  # the year 2000, in seconds since 1970
GPUS: Final = "nvidia.com/gpu"
TO_END_S: Final = 60  # the time that it takes to end a job, after its expected duration


class Trace(NamedTuple):
    """A trace that has the duration of each job: its jobs by arrival, its nodes and its queues."""

    jobs: Sequence[Job]
    nodes: Sequence[SimulatedNode]
    queues: Sequence[Queue] = ()

    def moved(self, factor: float) -> "Trace":
        """Return the trace with the arrivals `factor` times as far apart, in whole seconds."""
        return self._replace(
            jobs=[structs.replace(job, arrival_s=int(job.arrival_s * factor)) for job in self.jobs]
        )


class Rules(Struct, frozen=True, kw_only=True):
    """How the cluster of a trace is set up.

    With `queues` "reclaim", each queue deserves its guarantee, so that it takes back what other
    queues borrow. With "deserved", it takes back only what it deserves, but no surplus. With
    "share", queues only have weights. With "off", there are no queues. `level`: whether the pods of
    a gang should be in one rack. `reserve_after`: the configuration's `queues.reserveAfter`."""

    queues: Literal["off", "share", "reclaim", "deserved"] = "reclaim"
    level: Literal["any", "preferred", "required"] = "any"
    checkpoint_s: float | None = 0.0  # as in `Workload`
    reserve_after: str = ""


def workload_of(trace: Trace, rules: Rules = Rules()) -> tuple[Workload, list[Job]]:  # noqa: B008 - frozen
    """Return the workload of a trace, and the jobs in it: those that fit the empty cluster.

    Raises TraceInvalid if the trace has too many pods."""
    pods = sum(job.gang for job in trace.jobs)
    if pods > PODS_MAX:
        raise TraceInvalid(f"the jobs have {pods:,} pods; take jobs with at most {PODS_MAX:,}")
    course = Course(State())
    for node in trace.nodes:
        for fact in lab_changes.node_facts(node):
            course.apply(fact)
    # A queue deserves whole GPUs, so the guarantees are rounded such that their sums are right.
    names = {queue.queue for queue in trace.queues}
    sums = accumulate((queue.guarantee_gpus for queue in trace.queues), initial=0.0)
    for queue, (before, after) in zip(trace.queues, pairwise(map(round, sums)), strict=True):
        if rules.queues != "off":
            declared = QueueObserved(
                queue=queue.queue,
                parent=queue.parent if queue.parent in names else "",
                weight=queue.weight,
                deserved={} if rules.queues == "share" else {GPUS: after - before},
            )
            course.apply(declared)
    configured = QueuesConfiguration(
        reclaim_surplus=rules.queues != "deserved", reserve_after=rules.reserve_after
    )
    if configured != QueuesConfiguration():
        configuration = Configuration(queues=configured)
        course.apply(ConfigurationChanged(by="trace", configuration=configuration))
    tape, ran_s, jobs = Tape(), dict[str, float](), list[Job]()
    fits = _Fits(course.state, rules)
    for number, job in enumerate(trace.jobs):
        if not fits(job):
            continue
        jobs.append(job)
        for data in _facts(job, number, rules):
            tape.write(Fact(BEGIN_S + job.arrival_s, data))
            if isinstance(data, PodSubmitted):
                ran_s[data.uid] = job.duration_s
    last_s = max((job.arrival_s for job in jobs), default=0.0)
    workload = Workload(
        begin_s=BEGIN_S,
        end_s=BEGIN_S + last_s,
        state=take(course.state),
        facts=tape,
        ran_s=ran_s,
        checkpoint_s=rules.checkpoint_s,
    )
    return workload, jobs


class _Fits:
    """Tests whether a job fits the empty cluster, once for all jobs of the same shape."""

    def __init__(self, empty: State, rules: Rules) -> None:
        self._course = Course(copied(empty))
        self._rules = rules
        self._known: dict[tuple[object, ...], bool] = {}

    def __call__(self, job: Job) -> bool:
        key = job.gang, job.gpus, job.milli, job.cpu_milli, job.mem_mib, job.model
        if key not in self._known:
            pods = list(_facts(job, 0, self._rules))
            for data in pods:
                self._course.apply(data)
            for _ in self._course.settle():
                pass
            found = self._course.state.pods.values()
            self._known[key] = all(pod.placement is not None for pod in found)
            for data in pods:
                if isinstance(data, PodSubmitted):
                    self._course.apply(PodGone(uid=data.uid))
        return self._known[key]


def _facts(job: Job, number: int, rules: Rules) -> Iterable[PodGroupObserved | PodSubmitted]:
    group = f"{NAMESPACE}/{job.job}" if job.gang > 1 else ""
    queue = "" if rules.queues == "off" else job.queue
    if group:
        level = "" if rules.level == "any" else RACK
        yield PodGroupObserved(
            group=group,
            min_available=job.gang,
            queue=queue or "default",
            priority=job.prio,
            required_level=level if rules.level == "required" else "",
            preferred_level=level if rules.level == "preferred" else "",
        )
    shape = Shape(
        asks=asks_of(job.gpus, job.milli),
        devices=models_of(job.model),
        node=NodeConstraints(cpu_milli=job.cpu_milli, memory_mib=job.mem_mib),
    )
    dialect = dialect_of(job.gpus)
    # Not the real duration, which a scheduler does not know. No replay ends a pod at its deadline.
    deadline_s = math.ceil(job.estimate_s) + TO_END_S if job.estimate_s else 0
    for index in range(job.gang):
        yield PodSubmitted(
            uid=f"{number}.{index}",
            namespace=NAMESPACE,
            name=f"{job.job}.{index}" if group else job.job,
            shape=shape,
            dialect=dialect,
            priority=job.prio,
            group=group,
            owner=f"Job/{job.job}",
            queue=queue,
            deadline_s=deadline_s,
            checkpoint_s=1 if rules.checkpoint_s is None else math.ceil(rules.checkpoint_s),
        )
