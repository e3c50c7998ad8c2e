"""Command that simulates many seeds and shows progress, or one seed and shows its last events.

python -m tests.simulation --seeds 10000        all cores; counts per fault kind at the end
python -m tests.simulation --seed 31 --logs     one run, with the services' logs
python -m tests.simulation --seed 31 --shrink   the fewest faults and requests that still fail
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from click import echo

from tests.simulation.planted import PLANTED, planted
from tests.simulation.planted_cluster import PLANTED_IN_A_CLUSTER
from tests.simulation.shrinking import SEPARATOR, SIDES, Case, shrink
from tests.simulation.weather import KINDS, Weather
from tests.simulation.world import WISHES, Outcome, run

PROGRESS_EVERY_S = 5.0
FAILURES_SHOWN = 5


def one(case: Case) -> Outcome:
    """Run a case. Keep its log only if the run failed."""
    outcome = run(case.seed, cluster=case.cluster)
    return outcome if outcome.trouble else Outcome(**{**vars(outcome), "log": []})


def main() -> int:
    """Run the requested seeds. Return exit code 0 if every run passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=300, help="how many runs")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--logs", action="store_true", help="with --seed: the services' logs")
    parser.add_argument("--events", type=Path, help="with --seed: write the event log here")
    parser.add_argument("--shrink", action="store_true", help="with --seed: make it smaller first")
    parser.add_argument(
        "--wishes", type=int, default=WISHES[1], help="with --seed: at most so many"
    )
    parser.add_argument("--spare", metavar="KINDS", default="", help="with --seed: no such faults")
    parser.add_argument(
        "--side", choices=SIDES, help="pods from manifests, or from a cluster; else the seed says"
    )
    parser.add_argument("--planted", metavar="NAME", help="with --seed: with this planted fault")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given)
    seeds = range(given.start, given.start + given.seeds)
    return _many([Case(seed, cluster=SIDES.get(given.side)) for seed in seeds], given.jobs)


def _one(given: argparse.Namespace) -> int:
    known = (*PLANTED, *PLANTED_IN_A_CLUSTER)
    faults = [fault for fault in known if fault.name == given.planted]
    spared = frozenset(given.spare.split(SEPARATOR)) - {""}
    if given.planted and not faults:
        echo(f"planted: {given.planted!r} is none of {', '.join(f.name for f in known)}")
        return 2
    if spared - set(KINDS):
        echo(f"spare: {', '.join(sorted(spared - set(KINDS)))}: none of {', '.join(KINDS)}")
        return 2
    with planted(faults[0]) if faults else nullcontext():
        adjust = faults[0].adjust if faults else None
        play = _player(logs=given.logs, adjust=adjust)
        side = faults[0].cluster if faults else SIDES.get(given.side)
        case = Case(given.seed, spared, given.wishes, side)
        outcome = play(case)
        if outcome.trouble and given.shrink:
            case, outcome = shrink(case, outcome, play)
    if given.events:
        given.events.write_text("\n".join(outcome.log) + "\n")
    if outcome.trouble:
        also = f" --planted {shlex.quote(given.planted)}" if faults else ""
        echo(f"{outcome.told()}\nthis run: {case.command()}{also}")
    else:
        echo(f"seed {given.seed}: {outcome.events} events, right")
    echo(f"log {outcome.log_digest}")
    _tell_counts(outcome.struck)
    return 1 if outcome.trouble else 0


def _player(
    *, logs: bool = False, adjust: Callable[[Weather], None] | None = None
) -> Callable[[Case], Outcome]:
    def play(case: Case) -> Outcome:
        return run(
            case.seed,
            logs=logs,
            adjust=adjust,
            spared=case.spared,
            wishes_max=case.wishes_max,
            cluster=case.cluster,
        )

    return play


def _many(cases: list[Case], jobs: int) -> int:
    struck: Counter[str] = Counter()
    wrong: list[Outcome] = []
    events = done = 0
    began_s = told_s = time.monotonic()
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        for outcome in pool.map(one, cases, chunksize=4):
            done += 1
            events += outcome.events
            struck += outcome.struck
            if outcome.trouble:
                wrong.append(outcome)
                if len(wrong) <= FAILURES_SHOWN:
                    echo(f"seed {outcome.seed}, event {outcome.events}: {outcome.trouble}")
                    case, smaller = shrink(cases[done - 1], outcome, _player())
                    echo(f"{smaller.told()}\nthis run: {case.command()}")
            if time.monotonic() - told_s > PROGRESS_EVERY_S or done == len(cases):
                told_s = time.monotonic()
                spent_s = told_s - began_s
                echo(
                    f"{done}/{len(cases)} seeds, {events} events, {len(wrong)} wrong, "
                    f"{spent_s:.0f} s, {(len(cases) - done) * spent_s / done:.0f} s left",
                    err=True,
                )
    _tell_counts(struck)
    echo(f"{done} seeds, {events} events, {len(wrong)} wrong: {[each.seed for each in wrong]}")
    return 1 if wrong else 0


def _tell_counts(struck: Counter[str]) -> None:
    for kind in KINDS:
        echo(f"{struck[kind]:>9}  {kind}")


if __name__ == "__main__":
    sys.exit(main())
