"""Measure the CPU cost and the duration of each CLI verb on a large cluster.

    python -m tests.benchmarks.verbs --json

The cluster has 1,000 simulated nodes with 8,000 GPUs, and 3,000 pods. The services are real
processes. Each verb runs `--times` times. The result has its median duration, its median CPU time
and the number of lines it printed. The target is 0.4 CPU seconds, or 1.5 for verbs that print
thousands of rows (`WHOLE`)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from apportion_schemas import SharesAllocated
from tests.benchmarks.pipeline import submissions
from tests.benchmarks.telling import parser_of, tell
from tests.support.facts import Facts
from tests.support.nats import Bus, running_bus
from tests.support.processes import ServiceProcess
from tests.support.standalone import APPORTION

BATCH = 500
WANTED_S, WANTED_WHOLE_S = 0.4, 1.5
WHOLE = (
    "get pods",
    "get devices",
    "get placements",
    "get nodes",
    "top --once",
    "report usage --by node",
)
"""Verbs that print a thousand or more rows."""
BEFORE = {
    "delete default/bench-pod": "submit -f FILE",
    "uncordon node-1": "cordon node-1 --reason bench",
}
"""For some verbs, the command that must run before each measured run of the verb."""
VERBS = (
    *WHOLE,
    "--version",
    "get pods --json",
    "get devices --json",
    "get nodes --json",
    "get placements --json",
    "get pods pod-000001 -n bench",
    "get pods -o name",
    "get pods --node node-1",
    "get devices --node node-1",
    "get gangs",
    "top --once --node node-1",
    "why bench/pod-000001",
    "tail --from 1 --limit 100",
    "get pods --node node-1 --at 4000",
    "why bench/pod-000001 --at 4000",
    "who node-1 --since 1",
    "history node-1",
    "history bench/pod-000001",
    "diff --from 4000 --to 4100",
    "plan -f FILE",
    "plan --lose node-1",
    "report usage --by namespace",
    "drain node-1 --reason bench --dry-run",
    "doctor",
    "config show",
    "config check FILE",
    "policy get",
    "check -f FILE",
    "cordon node-1 --reason bench",
    "uncordon node-1",
    "submit -f FILE",
    "delete default/bench-pod",
    "ledger check",
    "version",
)
POD = """
apiVersion: v1
kind: Pod
metadata: {name: bench-pod}
spec:
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}}
"""


@contextlib.asynccontextmanager
async def cluster(folder: Path, nodes: int, pods: int) -> AsyncIterator[tuple[Bus, str]]:
    """Yield a cluster in which every pod has its share, and the URL of the cluster's gateway."""
    agents = ("--simulate", "8xH100-80GB", "--nodes", str(nodes), "--node", "node-{}")
    async with running_bus(folder / "nats") as bus, contextlib.AsyncExitStack() as stack:

        async def start(role: str, *options: str) -> ServiceProcess:
            process = ServiceProcess(role, bus.server.url_for(role), *options)
            return await stack.enter_async_context(process)

        facts = Facts(bus)
        await facts.open()
        await (await start("agent", *agents)).ready(300)
        await start("scheduler", "--name", "bench")
        await start("binder")
        drafts = submissions(pods)
        watcher = await bus.connect("watcher")
        for first in range(0, pods, BATCH):
            await watcher.append(drafts[first : first + BATCH])
        await facts.until(lambda: len(facts.of(SharesAllocated)) == pods, "shares", timeout_s=300)
        gateway = await start("gateway", "--listen", "127.0.0.1:0")
        await gateway.ready(120)
        line = await gateway.logged("answering")
        yield bus, str(line["url"]).removesuffix("/api/v1/")


def run(command: list[str], environment: dict[str, str]) -> tuple[float, float, int, str]:
    """Run a command. Return its seconds, CPU seconds, lines printed, and errors if it failed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        said = errors.read().decode() if process.returncode else ""
        return wall_s, used.ru_utime + used.ru_stime, len(out.read().splitlines()), said


def timed(
    verb: str, files: dict[str, str], environment: dict[str, str], times: int
) -> dict[str, Any]:
    """Run one verb `times` times. Return its row of the result, with median times in seconds."""

    def command(of: str) -> list[str]:
        return [*APPORTION, *(files.get(of, "") if w == "FILE" else w for w in of.split())]

    runs = []
    for _ in range(times):
        if before := BEFORE.get(verb):
            run(command(before), environment)
        runs.append(run(command(verb), environment))
    row: dict[str, Any] = {
        "verb": verb,
        "median_s": round(statistics.median(each[0] for each in runs), 3),
        "cpu_s": round(statistics.median(each[1] for each in runs), 3),
        "lines": runs[-1][2],
    }
    if runs[-1][3]:
        row["failed"] = runs[-1][3].strip()
    wanted_s = WANTED_WHOLE_S if verb in WHOLE else WANTED_S
    return {**row, "within": row["cpu_s"] <= wanted_s and "failed" not in row}


async def _measure(given: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pod.yaml").write_text(POD)
        (folder / "config.yaml").write_text("schedulerNames: [apportion]\n")
        manifest, document = str(folder / "pod.yaml"), str(folder / "config.yaml")
        files = {
            "check -f FILE": manifest,
            "submit -f FILE": manifest,
            "plan -f FILE": manifest,
            "config check FILE": document,
        }
        async with cluster(folder, given.nodes, given.pods) as (bus, url):
            environment = {
                **os.environ,
                "APPORTION_GATEWAY": url,
                "APPORTION_NATS_URL": bus.server.url_for("operator"),
            }
            verbs = [verb for verb in VERBS if given.only in verb]
            rows = []
            for verb in verbs:
                rows.append(await asyncio.to_thread(timed, verb, files, environment, given.times))
                print(rows[-1], file=sys.stderr)
    return {"nodes": given.nodes, "pods": given.pods, "verbs": rows}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    return asyncio.run(_measure(given))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, default=1_000, help="nodes of eight cards")
    parser.add_argument("--pods", type=int, default=3_000, help="pods that hold shares")
    parser.add_argument("--times", type=int, default=5, help="runs of each verb")
    parser.add_argument("--only", default="", metavar="TEXT", help="verbs with this text in them")
    tell(parser, measure)


if __name__ == "__main__":
    main()
