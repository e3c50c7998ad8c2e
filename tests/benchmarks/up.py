"""Measure what `apportion up` costs until the sample pods run: time, CPU and memory.

    python -m tests.benchmarks.up --times 5 --json

All figures are medians:

- `first_s` is the time from the start of the command to the first placement.
- `ready_s` is the time until all services are ready.
- `cpu_s` is the CPU time of all processes until the sample pods are placed or refused.
- `pss_mib` is their memory at that time, with shared pages counted once."""

import contextlib
import os
import re
import statistics
import tempfile
from argparse import Namespace
from pathlib import Path

from tests.benchmarks.telling import parser_of, tell
from tests.support.standalone import Standalone

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
UTIME, STIME, CUTIME, CSTIME = range(11, 15)
"""Positions in /proc/PID/stat after the name; see proc(5)."""


def measure(given: Namespace) -> dict[str, float]:
    runs = [one_run() for _ in range(given.times)]
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


def one_run() -> dict[str, float]:
    """Run `apportion up` once in a temporary folder, and return the figures."""
    with tempfile.TemporaryDirectory() as folder, Standalone(Path(folder) / "data") as up:
        up.up()
        figures = {"cpu_s": 0.0, "pss_mib": 0.0}
        for pid in up.left(itself=True):
            process = Path("/proc", str(pid))
            with contextlib.suppress(OSError):
                fields = process.joinpath("stat").read_text().rpartition(")")[2].split()
                ticks = sum(int(fields[at]) for at in (UTIME, STIME, CUTIME, CSTIME))
                figures["cpu_s"] += ticks * TICK_S
                held = process.joinpath("smaps_rollup").read_text()
                figures["pss_mib"] += int(held.partition("\nPss:")[2].split()[0]) / 1024
        for name, line in (("ready_s", "ready after"), ("first_s", "first pod placed")):
            [figures[name]] = map(float, re.findall(r"([\d.]+) s", up.said(line)))
    return figures


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--times", type=int, default=5, metavar="N")
    tell(parser, measure)


if __name__ == "__main__":
    main()
