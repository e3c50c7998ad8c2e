"""Replay traces of jobs that start and end, and compare the real engine with baselines.

    python -m tests.benchmarks.traces FOLDER venus theta --runs 5 --level preferred

FOLDER has `<trace>.csv.gz`, `fleet_<trace>.csv` and `queues_<trace>.csv` for each trace, and the
results of a reference simulator in `results.jsonl` and, with several runs, `results_moved.jsonl`.
Its README defines columns, figures and limits. Each run moves the arrivals a little. The program
prints one table per trace: the limits, our means, then the baselines. It fails if a limit is
missed. Run `make compile` first: an interpreted engine is several times slower.

With `--forecast`, it also measures the forecasts of starts, and compares them with those of a
reference in `forecast.jsonl`."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec

from apportion.lab import (
    Changes,
    ForecastFigures,
    ForecastMeter,
    JobFigures,
    JobMeter,
    Otherwise,
    Replay,
    Rules,
    Trace,
    TraceInvalid,
    read_trace_jobs,
    read_trace_nodes,
    read_trace_queues,
    workload_of,
)
from apportion.lab.replaying import Observer
from apportion_schemas import Policy
from tests.benchmarks.telling import parser_of

TRACES = ("venus", "theta", "openb", "philly", "kalos", "spot")
SQUEEZE = {"theta": 0.62}  # how far apart the baselines take the arrivals
MOVED = 0.002  # by how much of its time an arrival is moved at most
CHECKPOINT_S = 1800
HOUR_S = 3600
FULL = "utilisation_full_pct"


class Column(NamedTuple):
    """A column of the table. If `least` is True, its limit is a lower bound, else an upper one."""

    name: str
    head: str
    least: bool = False


COLUMNS = (
    Column("gpu_hours_waited", "GPU-h waited"),
    Column("wait_mean_min", "wait min"),
    Column("bounded_slowdown", "slowdown"),
    Column("share_error_pct", "share err %"),
    Column("guarantee_short_pct", "short %"),
    Column("reclaimed_within", "within"),
    Column(FULL, "full %", least=True),
    Column("evictions", "evicted"),
    Column("lost_pct", "lost %"),
    Column("wait_big_gang_min", "big gang min"),
    Column("one_rack_pct", "one rack %", least=True),
)
Figures = Mapping[str, float | None]
# The limits of the README; of lost work, the first is with checkpoints and the second without.
LIMITS: dict[str, dict[str, float]] = {
    "philly": {
        "wait_mean_min": 110, "share_error_pct": 9.0, "guarantee_short_pct": 1.5, FULL: 89,
        "wait_big_gang_min": 4_600, "one_rack_pct": 35, "reclaimed_within": 0,
    },
    "venus": {
        "wait_mean_min": 50, "share_error_pct": 4.1, "guarantee_short_pct": 0.5, FULL: 95,
        "wait_big_gang_min": 375, "one_rack_pct": 45, "reclaimed_within": 0,
    },
    "theta": {
        "wait_mean_min": 150, "share_error_pct": 20.6, "guarantee_short_pct": 4.9, FULL: 93,
        "wait_big_gang_min": 540, "one_rack_pct": 65, "reclaimed_within": 0,
    },
    "openb": {"wait_mean_min": 45, "reclaimed_within": 0},
    "kalos": {"wait_big_gang_min": 240, "one_rack_pct": 94, "reclaimed_within": 0},
    "spot": {"reclaimed_within": 0},
}  # fmt: skip
# Coverage of 80 % bands, in percent, and the pinball loss on log2 of seconds + 60
COVERED = (75.0, 85.0)
PINBALL = {"philly": 0.42, "venus": 0.38, "theta": 0.43}
LOST = {"philly": (0.10, 3.0), "venus": (0.06, 1.0), "theta": (0.25, 2.3)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("trace", nargs="*", default=TRACES[:3], help="by default the small ones")
    parser.add_argument("--runs", type=int, default=1, help="with arrivals times 0.998 to 1.002")
    parser.add_argument("--share", type=float, default=1.0, help="only this first part of the jobs")
    parser.add_argument(
        "--queues",
        choices=("off", "share", "reclaim", "deserved"),
        default="reclaim",
        help="which devices a queue takes back",
    )
    parser.add_argument("--level", choices=("any", "preferred", "required"), default="preferred",
                        help="whether the pods of a gang should be in one rack")  # fmt: skip
    parser.add_argument("--policy", choices=get_args(Policy), default="price")
    parser.add_argument("--checkpoint", type=int, default=CHECKPOINT_S, metavar="SECONDS",
                        help="between checkpoints of a pod; 0: pods write none")  # fmt: skip
    parser.add_argument("--reserve", default="", metavar="DURATION",
                        help="after which jobs get reservations of nodes, such as 10m")  # fmt: skip
    parser.add_argument("--forecast", action="store_true", help="measure forecasts of starts")
    given = parser.parse_args()
    missed = []
    for name in given.trace:
        try:
            missed += compare(name, given)
        except (TraceInvalid, OSError) as error:
            parser.error(str(error))
    if missed:
        raise SystemExit("\n".join(("missed:", *missed)))


def compare(name: str, given: argparse.Namespace) -> list[str]:
    """Run one trace, print its table or JSON, and return a text for each limit that is missed."""
    folder: Path = given.folder
    trace = Trace(
        read_trace_jobs(folder / f"{name}.csv.gz"),
        read_trace_nodes(folder / f"fleet_{name}.csv"),
        read_trace_queues(folder / f"queues_{name}.csv"),
    )
    trace = trace._replace(jobs=trace.jobs[: max(int(len(trace.jobs) * given.share), 1)])
    rules = Rules(
        queues=given.queues,
        level=given.level,
        checkpoint_s=given.checkpoint,
        reserve_after=given.reserve,
    )
    runs, begun = list[JobFigures](), time.perf_counter()
    forecasts = list[ForecastFigures]()
    for number, factor in enumerate(factors(given.runs)):
        said = f"{name}: run {number + 1} of {given.runs}"
        moved = trace.moved(SQUEEZE.get(name, 1.0) * factor)
        figures, forecast = measure(moved, rules, given, said)
        runs.append(figures)
        forecasts += [forecast] if forecast is not None else []
    ours = mean([msgspec.to_builtins(each) for each in runs])
    limits = limits_of(name, given.checkpoint)
    foretold = mean([msgspec.to_builtins(each) for each in forecasts]) if forecasts else {}
    if given.json:
        print(json.dumps({"trace": name, "runs": len(runs), **ours, **foretold}))
    else:
        needed_h = sum(job.duration_s * job.gpu_milli for job in trace.jobs) / 1000 / HOUR_S
        moves = "results_moved.jsonl" if given.runs > 1 else "results.jsonl"
        setup = f"{given.queues}, {given.level} rack, {given.policy}, {given.checkpoint} s"
        table: list[tuple[str, Figures]] = [("limits", limits), (f"ours ({setup})", ours)]
        table += baselines(folder / moves, name, needed_h)
        seconds = (time.perf_counter() - begun) / len(runs)
        print(f"\n{name}: means of {len(runs)} runs, {seconds:.0f} s each")
        print_table(table)
        if foretold:
            print_forecasts(folder / "forecast.jsonl", name, foretold)
    return missed_forecasts(name, foretold) + [
        f"{name}: {column.head} {value:.2f}, limit {limits[column.name]:g}"
        for column in COLUMNS
        if column.name in limits and (value := ours[column.name]) is not None
        if (value < limits[column.name] if column.least else value > limits[column.name])
    ]


def measure(
    trace: Trace, rules: Rules, given: argparse.Namespace, said: str
) -> tuple[JobFigures, ForecastFigures | None]:
    """Replay the trace, showing the progress on stderr, and return its figures."""
    workload, jobs = workload_of(trace, rules)
    meter = JobMeter(workload, trace, jobs)
    forecasts = ForecastMeter(workload, jobs) if given.forecast else None
    changes = Changes(policy=given.policy)
    observers: list[Observer] = [meter] if forecasts is None else [meter, forecasts]
    replay = Replay(workload, Otherwise(changes=changes), observers=observers)
    begun = time.perf_counter()

    def tell(done: int, of: int) -> None:
        seconds = time.perf_counter() - begun
        print(f"{said}, event {done:,} of {of:,}, {seconds:.0f} s", file=sys.stderr, flush=True)

    replay.run(tell)
    replay.run_out()
    return meter.figures(), None if forecasts is None else forecasts.figures()


def factors(runs: int) -> list[float]:
    """Return for each run the factor by which it multiplies the times between arrivals."""
    if runs == 1:
        return [1.0]
    return [1 - MOVED + 2 * MOVED * number / (runs - 1) for number in range(runs)]


def mean(rows: Sequence[Figures]) -> dict[str, float | None]:
    """Return the mean of each figure over the rows that have it."""
    found: dict[str, float | None] = {}
    for name in rows[0]:
        values = [value for row in rows if (value := row[name]) is not None]
        found[name] = statistics.fmean(values) if values else None
    return found


def limits_of(name: str, checkpoint_s: int) -> dict[str, float]:
    """Return the limits of a trace, by name of the figure."""
    limits = dict(LIMITS.get(name, {}))
    if name in LOST:
        limits["lost_pct"] = LOST[name][0 if checkpoint_s else 1]
    return limits


def baselines(path: Path, trace: str, needed_h: float) -> Iterable[tuple[str, Figures]]:
    """Yield the label and the mean figures of each policy that the reference simulator ran."""
    known = {column.name for column in COLUMNS}
    rows: dict[str, list[Figures]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        if row["trace"] == trace:
            saved = "" if row["checkpoint_s"] else ", no checkpoints"
            lost = {"lost_pct": 100 * row["lost_gpu_hours"] / needed_h}
            figures = {key: value for key, value in row.items() if key in known}
            label = f"{row['policy']}, {row['place']}{saved}"
            rows.setdefault(label, []).append(figures | lost)
    for label, found in rows.items():
        yield label, mean(found)


def missed_forecasts(name: str, found: Figures) -> list[str]:
    """Return a text for each limit that the forecasts of starts miss."""
    coverage, pinball, missed = found.get("coverage_pct"), found.get("pinball_log2"), []
    if coverage is not None and not COVERED[0] <= coverage <= COVERED[1]:
        missed.append(f"{name}: coverage {coverage:.1f} %, limits {COVERED[0]:g} to {COVERED[1]:g}")
    if pinball is not None and pinball > PINBALL.get(name, pinball):
        missed.append(f"{name}: pinball loss {pinball:.3f}, limit {PINBALL[name]:g}")
    return missed


def print_forecasts(path: Path, trace: str, ours: Figures) -> None:
    """Print the figures of our forecasts for jobs that had to wait, then those of the reference."""
    rows = [("ours", ours)]
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        if row["trace"] == trace and row["forecast"].endswith("queued"):
            rows.append((f"{row['forecast']}, {row['policy']}", {**row, "forecasts": row["n"]}))
    print(f"\nforecasts: coverage {COVERED[0]:g} to {COVERED[1]:g} %, pinball {PINBALL.get(trace)}")
    for label, row in rows:
        n, unknown = row["forecasts"] or 0, row.get("unknown") or 0
        coverage, pinball = row["coverage_pct"] or 0, row["pinball_log2"] or 0
        print(f"{label:36} {n:7,.0f} jobs, {unknown:g} unknown, {coverage:5.1f} %, {pinball:.3f}")


def print_table(table: Sequence[tuple[str, Figures]]) -> None:
    """Print one row per policy."""
    width = max(len(label) for label, _ in table)
    print(" " * width, *(column.head for column in COLUMNS), sep="  ")
    for label, figures in table:
        cells = []
        for column in COLUMNS:
            value = figures.get(column.name)
            text = "" if value is None else f"{value:,.0f}" if value >= 1_000 else f"{value:.2f}"
            cells.append(text.rjust(len(column.head)))
        print(label.ljust(width), *cells, sep="  ")


if __name__ == "__main__":
    main()
