r"""Measure how much of a cluster each policy can allocate, on a production trace.

    python -m tests.benchmarks.packing --trace pods_default.csv \
        --nodes nodes.csv --policy price --online --json

The protocol is that of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023). Pods arrive one by
one in a random order, and none ends, until 1.3 times the cluster's devices are requested. The
result is the percentage of all devices that is allocated at the end.

Policies that weigh shapes know the trace's shapes in advance, as in the paper. With `--online` they
learn the shapes from arriving pods, as the scheduler does.

`decisions` is a SHA-256 of all decisions. It stays the same unless a change affects placements."""

import argparse
import resource
import statistics
import time
from hashlib import sha256
from pathlib import Path
from typing import get_args

from apportion.lab.packing import pack, shuffled
from apportion.lab.traces import read_trace, read_trace_nodes
from apportion_schemas import Policy
from tests.benchmarks.telling import parser_of, tell


def measure(given: argparse.Namespace) -> dict[str, object]:
    """Run the benchmark once for each seed, and return the figures."""
    first, _, last = given.seeds.partition("-")
    nodes = shuffled(read_trace_nodes(given.nodes))
    drafts = sorted(read_trace(given.trace), key=lambda draft: draft.name)
    shapes = [draft.shape for draft in drafts]
    allocated, seconds, cpu_seconds, decisions = {}, [], [], sha256()
    for seed in range(int(first), int(last or first) + 1):
        begun, cpu_begun = time.perf_counter(), time.process_time()
        packed = pack(nodes, shapes, given.policy, seed=seed, online=given.online)
        allocated[seed] = round(packed.allocated_percent, 3)
        decisions.update(packed.decisions)
        seconds.append(time.perf_counter() - begun)
        cpu_seconds.append(time.process_time() - cpu_begun)
    return {
        "policy": given.policy,
        "online": given.online,
        "allocated_percent": round(statistics.fmean(allocated.values()), 2),
        "seeds": allocated,
        "decisions": decisions.hexdigest(),
        "seconds_per_run": round(statistics.fmean(seconds), 1),
        "cpu_seconds_per_run": round(statistics.fmean(cpu_seconds), 1),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--nodes", type=Path, required=True)
    parser.add_argument("--policy", choices=get_args(Policy), default="price")
    parser.add_argument("--seeds", default="42-51", help="as in 42-51 or 42")
    parser.add_argument("--online", action="store_true", help="learn from the pods as they come")
    tell(parser, measure)


if __name__ == "__main__":
    main()
