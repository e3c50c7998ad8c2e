"""What one `apportion up` costs until the sample pods run: time, processor and memory.

    python -m tests.benchmarks.up --times 5 --json

`first_s` is the time to the first placement, `ready_s` that until all services are ready, by the
clock from the command line on; `cpu_s` are the processor's seconds of all processes until the
samples are decided, and `pss_mib` the memory that they hold then, shared pages counted once
(medians). It needs Linux, and a machine with nothing else to do for the first two."""

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
"""Fields of /proc/PID/stat behind the name; see proc(5)."""


def measure(given: Namespace) -> dict[str, float]:
    """The medians of so many runs."""
    runs = [one_run() for _ in range(given.times)]
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


def one_run() -> dict[str, float]:
    """One run, on a folder of its own."""
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
    """Print the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--times", type=int, default=5, metavar="N")
    tell(parser, measure)


if __name__ == "__main__":
    main()
