"""Measure how a replay serves the jobs of a trace: waiting, fairness, use, and lost work.

GPUs are counted in thousandths, as jobs request them. Every `SAMPLE_S` seconds until the last
arrival, the meter compares what each queue uses with its fair share: the capacity is divided by the
weights of the queues, and no queue gets more than its jobs request (weighted max-min). Sources of
the figures: docs/contribute/lab.md. Invariant: they follow from the observed changes alone."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from apportion.core.ledger.handlers.change import Change
from apportion.core.placement.limits.entitlements import Claim, Part, divide
from apportion.lab.course import EVICTED
from apportion.lab.jobs import Trace
from apportion.lab.recording import Workload
from apportion.lab.traces import RACK, Job
from apportion_schemas import PodEvicted, PodGone, PodPlaced, PodSubmitted

SAMPLE_S: Final = 600.0
SHORT_JOB_S: Final = 600.0  # for the slowdown: shorter jobs count as long as this
WIDE_MILLI: Final = 8_000  # "large gangs" request more GPUs than a usual node has
WEIGHT: Final = 1_000_000  # so that queues without a weight have a millionth of weight 1
HOUR_S: Final = 3600.0
MINUTE_S: Final = 60.0
GPU_MILLI: Final = 1000
PERCENT: Final = 100.0


class JobFigures(Struct, frozen=True, kw_only=True):
    """The figures of one replay. A field is None if it applies to no job."""

    jobs: int  # that request GPUs and have ended
    unfinished: int  # jobs that never ended
    gpu_hours_waited: float  # waiting time of each job, times its GPUs
    wait_mean_min: float  # time until a job has ended, less its duration
    wait_p50_min: float
    wait_p90_min: float
    wait_p99_min: float
    wait_big_gang_min: float | None  # mean of the jobs that request more than 8 GPUs
    bounded_slowdown: float
    share_error_pct: float  # of the capacity that other queues use than would be fair
    guarantee_short_pct: float  # of the capacity that queues lack to their guarantees
    utilisation_pct: float
    utilisation_full_pct: float | None  # while the jobs request at least the capacity
    evictions: int  # of jobs
    lost_gpu_hours: float
    lost_pct: float  # of the GPU hours that the jobs need
    reclaimed_within: int  # jobs evicted although their queue was within its guarantee
    one_rack_pct: float | None  # of the jobs that need several nodes, and fit one rack


class _Run(Struct):
    """A job and its progress in the replay. Times are in seconds from the start of the trace."""

    job: Job
    arrived: bool = False
    placed: dict[str, float] = {}  # since when, by uid of the pod
    nodes: dict[str, str] = {}
    racks: int = 0  # when all pods were placed the last time
    ended: int = 0
    finish_s: float = -1.0
    evicted: bool = False  # some of its pods are leaving


class _Sums:
    """The values of all samples, in percent of the capacity."""

    def __init__(self) -> None:
        self.error: list[float] = []
        self.short: list[float] = []
        self.used: list[float] = []
        self.full: list[float] = []


class JobMeter:
    """Measures the replay of `workload`, which was made from `jobs` of the trace."""

    def __init__(self, workload: Workload, trace: Trace, jobs: Sequence[Job]) -> None:
        self._workload = workload
        self._runs = {f"Job/{job.job}": _Run(job) for job in jobs}
        self._rack_of = {node.name: node.host.labels.get(RACK, "") for node in trace.nodes}
        self._sizes = [len(node.devices) * GPU_MILLI for node in trace.nodes]
        self._in_racks = Counter[str]()
        for node, size in zip(trace.nodes, self._sizes, strict=True):
            self._in_racks[self._rack_of[node.name]] += size
        self._capacity = sum(self._sizes)
        declared = {queue.queue: queue.weight * WEIGHT for queue in trace.queues}
        names = sorted(declared.keys() | {job.queue for job in trace.jobs})
        self._weights = {name: declared.get(name, 1) for name in names}
        total = sum(self._weights.values())
        self._guarantee = {
            name: self._capacity * weight / total for name, weight in self._weights.items()
        }
        self._asked = dict.fromkeys(names, 0)
        self._used = dict.fromkeys(names, 0)
        self._leaving = dict.fromkeys(names, 0)
        self._now_s = 0.0
        self._next_s = 0.0
        self._last_s = workload.end_s - workload.begin_s
        self._samples = _Sums()
        self._evictions = 0
        self._lost = 0.0  # seconds of thousandths of GPUs
        self._within = 0

    def advance(self, now_s: float) -> None:
        """Take the samples that are due until `now_s`, in seconds since 1970."""
        self._now_s = now_s - self._workload.begin_s
        while self._next_s <= min(self._now_s, self._last_s):
            names = list(self._weights)
            claims = [Claim(self._asked[name], weight=self._weights[name]) for name in names]
            fair = divide(Part(self._capacity), claims)
            differ = short = 0.0
            for name, part in zip(names, fair, strict=True):
                used, asked = self._used[name], self._asked[name]
                differ += abs(used - part.entitled)
                short += max(0.0, min(self._guarantee[name], asked) - used)
            scale = PERCENT / max(self._capacity, 1)
            in_use = sum(self._used.values()) * scale
            self._samples.error.append(differ / 2 * scale)
            self._samples.short.append(short * scale)
            self._samples.used.append(in_use)
            if sum(self._asked.values()) >= self._capacity:
                self._samples.full.append(in_use)
            self._next_s += SAMPLE_S

    def observe(self, change: Change) -> None:
        """Update the figures after a change of the state."""
        data, pod = change.data, change.pod
        if pod is None or change.refused or not isinstance(data, _OF_PODS):
            return
        run = self._runs.get(pod.submitted.owner)
        if run is None:
            return
        if isinstance(data, PodSubmitted):
            if not run.arrived:
                run.arrived = True
                self._asked[run.job.queue] += run.job.gpu_milli
        elif isinstance(data, PodPlaced):
            if pod.uid not in run.placed:
                self._used[run.job.queue] += run.job.gpu_milli // run.job.gang
            run.placed[pod.uid], run.nodes[pod.uid] = self._now_s, data.node
            if len(run.placed) == run.job.gang:
                run.racks = len({self._rack_of[name] for name in run.nodes.values()})
        elif isinstance(data, PodEvicted):
            name, job = run.job.queue, run.job
            if not run.evicted:
                run.evicted = True
                self._evictions += 1
                self._within += self._used[name] - self._leaving[name] <= self._guarantee[name]
            self._leaving[name] += job.gpu_milli // job.gang
            ran_s = self._now_s - run.placed.get(pod.uid, self._now_s)
            self._lost += self._workload.lost_s(ran_s) * (job.gpu_milli // job.gang)
        else:
            self._gone(run, pod.uid, data)

    def figures(self) -> JobFigures:
        """Return the figures of the replay so far."""
        ended = [run for run in self._runs.values() if run.finish_s >= 0 and run.job.gpu_milli]
        need = np.array([run.job.gpu_milli for run in ended], float) / GPU_MILLI
        ran = np.array([run.job.duration_s for run in ended], float)
        waits = np.array([run.finish_s - run.job.arrival_s for run in ended], float) - ran
        slowdown = np.maximum(1.0, (waits + ran) / np.maximum(ran, SHORT_JOB_S))
        big = waits[need > WIDE_MILLI / GPU_MILLI]
        node, rack = max(self._sizes, default=0), max(self._in_racks.values(), default=0)
        wide = [run.racks == 1 for run in ended if node < run.job.gpu_milli <= rack]
        samples, lost_h = self._samples, self._lost / GPU_MILLI / HOUR_S
        p50, p90, p99 = np.percentile(waits, (50, 90, 99)) if ended else (0.0, 0.0, 0.0)
        return JobFigures(
            jobs=len(ended),
            unfinished=sum(run.finish_s < 0 for run in self._runs.values()),
            gpu_hours_waited=float((waits * need).sum()) / HOUR_S,
            wait_mean_min=_mean(waits) / MINUTE_S,
            wait_p50_min=float(p50) / MINUTE_S,
            wait_p90_min=float(p90) / MINUTE_S,
            wait_p99_min=float(p99) / MINUTE_S,
            wait_big_gang_min=_mean(big) / MINUTE_S if len(big) else None,
            bounded_slowdown=_mean(slowdown),
            share_error_pct=_mean(samples.error),
            guarantee_short_pct=_mean(samples.short),
            utilisation_pct=_mean(samples.used),
            utilisation_full_pct=_mean(samples.full) if samples.full else None,
            evictions=self._evictions,
            lost_gpu_hours=lost_h,
            lost_pct=PERCENT * lost_h / max(float((ran * need).sum()) / HOUR_S, 1e-9),
            reclaimed_within=self._within,
            one_rack_pct=PERCENT * _mean(wide) if wide else None,
        )

    def _gone(self, run: _Run, uid: str, data: PodGone) -> None:
        much, name = run.job.gpu_milli // run.job.gang, run.job.queue
        if run.placed.pop(uid, None) is not None:
            self._used[name] -= much
            del run.nodes[uid]
        if data.reason == EVICTED:
            self._leaving[name] -= much
            run.evicted = bool(run.placed)
            return
        run.ended += 1
        if run.ended == run.job.gang:
            run.finish_s = self._now_s
            self._asked[name] -= run.job.gpu_milli


_OF_PODS: Final = (PodSubmitted, PodPlaced, PodEvicted, PodGone)


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else 0.0
