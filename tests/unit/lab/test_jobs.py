"""Tests of job traces, in which each job has a duration: how they are read, replayed and measured.

The replayed examples are small enough to work out the figures by hand."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest

from apportion.lab import traces
from apportion.lab.job_meter import JobFigures, JobMeter
from apportion.lab.jobs import Rules, Trace, workload_of
from apportion.lab.replaying import Otherwise, Replay
from apportion.lab.traces import (
    RACK,
    Job,
    Queue,
    TraceInvalid,
    read_trace_jobs,
    read_trace_nodes,
    read_trace_queues,
)
from apportion.runtime.files.fleets import SimulatedNode
from apportion_schemas import Device, Host, PodSubmitted

HOUR = 3600
JOBS = "job,arrival_s,duration_s,gang,gpus,milli,cpu_milli,mem_mib,model,user,queue,prio,estimate_s"
TWO_QUEUES = (Queue("x", guarantee_gpus=1), Queue("y", guarantee_gpus=1))


def node(name: str, gpus: int, *, rack: str = "", model: str = "T4") -> SimulatedNode:
    devices = tuple(
        Device(
            id=f"{name}-{at}", index=at, family="nvidia", model=model, memory_mib=1_000,
            physical_memory_mib=1_000, slots=10,
        )
        for at in range(gpus)
    )  # fmt: skip
    labels = {RACK: rack} if rack else {}
    host = Host(cpu_milli=64_000, memory_mib=500_000, pods=100, labels=labels)
    return SimulatedNode(name, devices, host)


def replayed(trace: Trace, rules: Rules | None = None) -> JobFigures:
    """Replay the trace until all of its jobs have ended, and return its figures."""
    workload, jobs = workload_of(trace, rules or Rules(queues="off"))
    meter = JobMeter(workload, trace, jobs)
    replay = Replay(workload, Otherwise(), observers=[meter])
    replay.run()
    replay.run_out()
    assert not replay.passed_over
    return meter.figures()


def borrowed() -> Trace:
    """Return a trace of two GPUs that queue x uses. Half an hour later, queue y requests one."""
    jobs = [
        Job("a1", 0, 2 * HOUR, gpus=1, queue="x"),
        Job("a2", 1, 2 * HOUR, gpus=1, queue="x"),
        Job("b", HOUR / 2, HOUR, gpus=1, queue="y"),
        Job("last", HOUR, 0, queue="x"),
    ]
    return Trace(jobs, [node("n1", 2)], TWO_QUEUES)


def write(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# ------------------------------------------------------------------ reading


def test_jobs_are_read_in_order_of_arrival(tmp_path: Path) -> None:
    """Jobs are sorted by arrival, and missing values get defaults. A job with several GPUs gets
    whole GPUs."""
    late, early = "b,7,60,2,4,500,0,0,T4|A100,ann,team,3,900", "a,0,30,,1,250,,,,,,,"
    path = write(tmp_path, "t.csv.gz", JOBS, late, early)
    assert read_trace_jobs(path) == [
        Job("a", 0, 30, gpus=1, milli=250),
        Job("b", 7, 60, gang=2, gpus=4, model="T4|A100", user="ann", queue="team", prio=3,
            estimate_s=900),
    ]  # fmt: skip
    assert [job.gpu_milli for job in read_trace_jobs(str(path))] == [250, 8_000]


@pytest.mark.parametrize(
    ("line", "field", "fix"),
    [
        ("a,soon,1", "line 2.arrival_s", "number"),
        ("a,-1,1", "line 2.arrival_s", "0"),
        ("a,0,1,0", "line 2.gang", "1"),
        ("a,0,1,1,65", "line 2.gpus", "64"),
        ("a,0,1,1,1,0", "line 2.milli", "write 1 to 1000"),
        ("a,0,1,1,1,1001", "line 2.milli", "1000"),
        (",0,1", "line 2.job", "add it"),
        ("a,0,1\na,1,1", "line 3.job", "rename one"),
        ("", "has no jobs", "write one per line"),
    ],
)
def test_an_invalid_job_is_named(tmp_path: Path, line: str, field: str, fix: str) -> None:
    """The error about an invalid job has the file, the line, the column and the fix."""
    path = write(tmp_path, "t.csv", JOBS, line)
    with pytest.raises(TraceInvalid) as refused:
        read_trace_jobs(path)
    for part in (str(path), field, fix):
        assert part in str(refused.value)


def test_too_large_a_trace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace is refused if it exceeds the limit on decompressed bytes, on rows or on pods."""
    path = write(tmp_path, "t.csv.gz", JOBS, "a,0,1,3", "b,0,1,3")
    jobs = read_trace_jobs(path)
    monkeypatch.setattr("apportion.lab.jobs.PODS_MAX", 5)
    with pytest.raises(TraceInvalid, match="6 pods"):
        workload_of(Trace(jobs, [node("n1", 1)]))
    monkeypatch.setattr(traces, "JOBS_MAX", 1)
    with pytest.raises(TraceInvalid, match="more than 1 rows"):
        read_trace_jobs(path)
    monkeypatch.setattr(traces, "BYTES_MAX", 100)
    with pytest.raises(TraceInvalid, match="larger than"):
        read_trace_jobs(path)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    """If a trace file cannot be decompressed or decoded, the error names the file."""
    path = tmp_path / "t.csv.gz"
    for content in (b"job", gzip.compress(b"job\n")[:-9], gzip.compress(b"\xff\n")):
        path.write_bytes(content)
        with pytest.raises(TraceInvalid, match=r"t\.csv\.gz: "):
            read_trace_jobs(path)


def test_queues_and_racks_are_read(tmp_path: Path) -> None:
    """Queues are read with parent, weight and guarantee. A node's rack is read as a label."""
    path = write(tmp_path, "q.csv", "queue,parent,weight,guarantee_gpus", "a,all,3,1.5", "b,,,")
    assert read_trace_queues(path) == [Queue("a", "all", 3, 1.5), Queue("b")]
    with pytest.raises(TraceInvalid, match=r"line 3\.queue: 'a' is there twice"):
        read_trace_queues(write(tmp_path, "q.csv", "queue", "a", "a"))
    nodes = write(tmp_path, "n.csv", "sn,cpu_milli,memory_mib,gpu,model,rack", "n,1,1,1,T4,r1")
    assert [each.host.labels for each in read_trace_nodes(nodes)] == [{RACK: "r1"}]


# ------------------------------------------------------------------ waits and ends


def test_jobs_wait_for_the_ends_of_others() -> None:
    """A job runs for its duration. When it ends, the next job starts."""
    jobs = [Job("a", 0, HOUR, gpus=1), Job("b", 0, HOUR, gpus=1), Job("c", HOUR, 60, gpus=1)]
    found = replayed(Trace(jobs, [node("n1", 1)]))
    assert (found.jobs, found.unfinished, found.evictions) == (3, 0, 0)
    assert found.gpu_hours_waited == pytest.approx(2)  # b and c
    assert (found.wait_mean_min, found.wait_p50_min) == pytest.approx((40, 60))
    # c would have ended after a minute, which counts as ten: 61 / 10
    assert found.bounded_slowdown == pytest.approx((1 + 2 + 6.1) / 3)
    # seven samples, and the first one is taken before the first arrival
    assert found.utilisation_pct == pytest.approx(100 * 6 / 7)
    assert found.utilisation_full_pct == pytest.approx(100)


def test_a_gang_starts_and_ends_together() -> None:
    """A gang waits until all of its pods fit. The figure for large gangs is the mean wait of the
    jobs that request more than 8 GPUs."""
    jobs = [Job("a", 0, HOUR, gpus=1), Job("g", 0, HOUR, gang=2, gpus=5), Job("c", 1, 1, gpus=8)]
    found = replayed(Trace(jobs, [node("n1", 10)]))
    assert found.wait_big_gang_min == pytest.approx(60, abs=0.1)  # c starts first
    assert found.gpu_hours_waited == pytest.approx(10, abs=0.1)


def test_a_job_that_never_fits_is_left_out() -> None:
    """Figures leave out jobs without GPUs, and jobs that do not fit even on the empty cluster."""
    jobs = [Job("a", 0, 1, gpus=3), Job("b", 0, 1, gang=3, gpus=1), Job("c", 0, 1, model="A100",
            gpus=1), Job("d", 0, 1, cpu_milli=1), Job("e", 0, 1, gpus=1, milli=500)]  # fmt: skip
    trace = Trace(jobs, [node("n1", 2)])
    assert [job.job for job in workload_of(trace)[1]] == ["d", "e"]
    assert replayed(trace).jobs == 1


def test_jobs_declare_what_was_expected_as_their_deadline() -> None:
    """A job's pods declare the expected duration, and a minute to end, as their deadline, whatever
    the real duration is. Without an expected duration, there is none. A replay ends no pod at its
    deadline."""
    expected = {"a": 600.5, "b": 10.0, "c": 0.0}
    jobs = [Job(name, 0, 100.5, gpus=1, estimate_s=each) for name, each in expected.items()]
    trace = Trace(jobs, [node("n1", 1)])
    facts = [fact.data for fact in workload_of(trace)[0].facts]
    assert [data.deadline_s for data in facts if isinstance(data, PodSubmitted)] == [661, 70, 0]
    assert replayed(trace).wait_mean_min == pytest.approx(100.5 / 60)


def test_moved_arrivals_are_in_whole_seconds() -> None:
    """If a trace is stretched or compressed in time, arrivals are rounded down to whole seconds."""
    trace = Trace([Job("a", 0, 5), Job("b", 1000, 5)], [node("n1", 1)])
    assert [job.arrival_s for job in trace.moved(0.6255).jobs] == [0, 625]


# ------------------------------------------------------------------ fairness


def test_shares_are_compared_with_the_fair_ones() -> None:
    """If queue x uses a GPU that is guaranteed to queue y and requested by y, the share error
    counts the GPU that x has too many, and the missing guarantee counts the GPU that y lacks."""
    found = replayed(borrowed())
    # Of seven samples, y is pending in three: x has one GPU of two too many, and y has none.
    assert found.share_error_pct == pytest.approx(50 * 3 / 7)
    assert found.guarantee_short_pct == pytest.approx(50 * 3 / 7)
    assert found.utilisation_full_pct == pytest.approx(100)
    assert (found.evictions, found.lost_pct) == (0, 0)


@pytest.mark.parametrize(
    ("checkpoint_s", "lost_s", "wait_s"),
    [(0, 1799, 0), (1200, 599, 0), (1000, 0, 201), (None, 0, 0)],
)
def test_a_queue_takes_back_its_guarantee(
    checkpoint_s: float | None, lost_s: float, wait_s: float
) -> None:
    """With reclaim, a queue takes back its guarantee by evicting a job of the borrowing queue. The
    evicted job continues from its last checkpoint; the work since then is lost. If the next
    checkpoint is near, the queue waits for it, although nothing else happens then."""
    found = replayed(borrowed(), Rules(queues="reclaim", checkpoint_s=checkpoint_s))
    assert (found.evictions, found.reclaimed_within, found.unfinished) == (1, 0, 0)
    assert (found.share_error_pct, found.guarantee_short_pct) == (0, 0)
    assert found.lost_gpu_hours == pytest.approx(lost_s / HOUR, abs=1e-6)
    assert found.lost_pct == pytest.approx(lost_s / HOUR / 5 * 100, abs=1e-4)
    # The evicted job, a2, starts again after b: it has waited for an hour, and lost work.
    assert found.gpu_hours_waited == pytest.approx(1 + (lost_s + wait_s) / HOUR, abs=1e-5)


def test_queues_without_guarantees_take_nothing_back() -> None:
    """If queues have only weights, no job is evicted. The next job to start is that of the queue
    with the smallest share."""
    trace = borrowed()
    found = replayed(trace, Rules(queues="share"))
    assert found.evictions == 0
    assert found.guarantee_short_pct == pytest.approx(50 * 3 / 7)


def test_a_large_job_starts_earlier_with_a_reservation() -> None:
    """A job that needs both GPUs starts before small jobs that came later, unless they end soon."""
    small = [Job(f"s{n}", n * HOUR / 2, HOUR, gpus=1, estimate_s=HOUR) for n in range(8)]
    jobs = [*small[:2], Job("large", HOUR * 0.6, HOUR, gpus=2), *small[2:]]
    trace = Trace(jobs, [node("n1", 2)], ())
    starts = []
    for after in ("", "10m"):
        workload, _ = workload_of(trace, Rules(queues="off", reserve_after=after))
        replay = Replay(workload, Otherwise(), kept=True)
        replay.run()
        replay.run_out()
        (placed,) = (each for each in replay.placed if each.name == "large")
        starts.append((placed.at_s - workload.begin_s) / HOUR)
    assert starts == pytest.approx([4.5, 1.5], abs=0.01)


# ------------------------------------------------------------------ racks


def fleet(models: Sequence[str]) -> list[SimulatedNode]:
    """Return two racks, each with a node of one GPU for each model."""
    return [node(f"{at}-{rack}", 1, rack=rack, model=m) for rack in "ab" for at, m in
            enumerate(models)]  # fmt: skip


def test_gangs_in_one_rack_are_counted() -> None:
    """Of the jobs that need several nodes but fit in a rack, the part in one rack is measured."""
    apart = Trace([Job("g", 0, 1, gang=2, gpus=1, model="T4")], fleet(["T4", "A100"]))
    assert replayed(apart).one_rack_pct == 0
    jobs = [Job("s", 0, HOUR, gpus=1), Job("g", 1, 1, gang=2, gpus=1)]
    together = Trace(jobs, fleet(["T4", "T4"]))
    assert replayed(together, Rules(queues="off", level="preferred")).one_rack_pct == 100
    assert replayed(Trace(jobs, [node("n1", 3)])).one_rack_pct is None


def test_a_required_rack_is_waited_for() -> None:
    """A gang that requires a single rack waits until one rack has room for all of its pods."""
    jobs = [Job("s", 0, HOUR, gpus=1), Job("r", 0, HOUR, gpus=1), Job("g", 1, 1, gang=2, gpus=1)]
    trace = Trace(jobs, [node("1-a", 1, rack="a"), node("1-b", 1, rack="b"),
                         node("2-a", 1, rack="a"), node("2-b", 1, rack="b")])  # fmt: skip
    found = replayed(trace, Rules(queues="off", level="required"))
    assert found.one_rack_pct == 100
