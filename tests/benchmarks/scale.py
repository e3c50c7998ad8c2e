"""Measure several schedulers: their throughput, their conflicts, and a takeover.

    python -m tests.benchmarks.scale --json
    APPORTION_TEST_TLS=1 python -m tests.benchmarks.scale --json       the same over TLS

Runs nats-server, one to three schedulers and the load generator as real processes. The fleet has
1,000 nodes of 8 devices.

- `placed_per_s` counts placements while at most `--window` pods are pending.
- `conflict_rate` is the fraction of decisions that the ledger refused.
- `p50_ms` and `p99_ms` are from a submission to its placement, at `--rate` submissions a second.
- `takeover_s` is the longest wait of a pod after one of three schedulers is killed.
- `*_cpu_us` are CPU microseconds per pod.
- `cores_allow_per_s` is how many pods this machine could place per second if no process waited.
- `core_each_allows_per_s` is the same with one core for each process.

The last two figures ignore the disk, which is a limit of its own: `tests.benchmarks.raw` measures
the events per second that it can store, and a pod takes two events.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as families

from apportion.runtime.ledger.port import Draft
from apportion_schemas import Event, encode, subject_of
from tests.benchmarks.loading import Seen, Urls, flood, pace
from tests.benchmarks.pipeline import TIME
from tests.benchmarks.telling import parser_of, tell
from tests.support.fleet import rack
from tests.support.nats import Bus, running_bus
from tests.support.processes import NO_AGENTS, ServiceProcess

DEVICES = 8
MOST_SCHEDULERS = 3
WARM_UP_S = 2.0
PACED_S = 12.0
KILL_AFTER_S = 5.0
REPORTS = 100  # nodes of one batch
TOLD = {"apportion_decided_again_total": "again", "process_cpu_seconds_total": "cpu_s"}


def reported(node: str) -> Draft:
    """Return the NodeReported event that an agent would append for this node, as a draft."""
    data = rack(node, DEVICES)
    event = Event(id=f"{node}/reported", source="agent/bench", time=TIME, data=data)
    return Draft(subject_of(data), event.id, encode(event))


@contextlib.asynccontextmanager
async def cluster(
    folder: Path, nodes: int, schedulers: int
) -> AsyncIterator[tuple[Bus, list[ServiceProcess]]]:
    """Yield a ledger with a fleet, and `schedulers` schedulers that have read the whole ledger."""
    async with running_bus(folder) as bus, contextlib.AsyncExitStack() as stack:
        intake = await bus.connect("intake")
        fleet = [reported(f"node-{number:05}") for number in range(nodes)]
        for start in range(0, nodes, REPORTS):
            await intake.append(fleet[start : start + REPORTS])
        url = bus.server.url_for("scheduler")
        services = [
            ServiceProcess("scheduler", url, "--name", f"s{n}", *NO_AGENTS)
            for n in range(schedulers)
        ]
        for service in services:
            await stack.enter_async_context(service)
        await asyncio.gather(*(service.ready() for service in services))
        yield bus, services


def urls_of(bus: Bus) -> Urls:
    """Return the NATS URLs with which the load generator writes and reads."""
    return Urls(bus.server.url_for("watcher"), bus.server.url_for("auditor"))


async def told_by(services: list[ServiceProcess]) -> dict[str, float]:
    """Return the sum of each scheduler counter over all running schedulers."""
    told = dict.fromkeys(("taken", "refused", "again", "cpu_s"), 0.0)
    for service in services:
        if not service.running:
            continue
        _, text = await service.get("/metrics")
        for sample in (sample for family in families(text) for sample in family.samples):
            name = TOLD.get(sample.name) or sample.labels.get("outcome", "")
            if sample.name in TOLD or sample.name == "apportion_decisions_total":
                told[name] += sample.value
    return told


def server_cpu_s(bus: Bus) -> float:
    fields = Path(f"/proc/{bus.server.pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def once(seen: Seen) -> Seen:
    """Return `seen`; exit with an error unless every pod was placed exactly once."""
    twice = [pod for pod, count in seen.placements.items() if count != 1]
    missing = seen.sent.keys() - seen.placed.keys()
    if twice or missing:
        sys.exit(f"placed more than once: {twice[:5]}; never: {sorted(missing)[:5]}")
    return seen


async def apart(load: Callable[..., Seen], *given: object) -> Seen:
    """Run `load` in a new process, and return the times that it recorded.

    Each load needs a new process, because a process trusts only the CA that it started with."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawned) as pool:
        return once(await asyncio.get_running_loop().run_in_executor(pool, load, *given))


async def throughput(folder: Path, args: argparse.Namespace, schedulers: int) -> dict[str, float]:
    """Let `schedulers` schedulers place many pods as fast as they can. Return the figures."""
    async with cluster(folder, args.nodes, schedulers) as (bus, services):
        before, server_before_s = await told_by(services), server_cpu_s(bus)
        seen = await apart(flood, urls_of(bus), args.pods, args.window)
        after = await told_by(services)
        server_s = server_cpu_s(bus) - server_before_s
    took_s = max(seen.placed.values()) - min(seen.sent.values())
    told = {name: after[name] - before[name] for name in after}
    tried = told["taken"] + told["refused"]
    cpu_us = {
        "schedulers_cpu_us": round(told["cpu_s"] / args.pods * 1e6, 1),
        "server_cpu_us": round(server_s / args.pods * 1e6, 1),
        "load_cpu_us": round(seen.cpu_s / args.pods * 1e6, 1),
    }
    busiest_us = max(cpu_us["schedulers_cpu_us"] / schedulers, *list(cpu_us.values())[1:])
    return {
        "schedulers": schedulers,
        "placed_per_s": round(args.pods / took_s),
        "decisions": round(tried),
        "conflict_rate": round(told["refused"] / tried, 4),
        "pods_decided_again_rate": round(told["again"] / args.pods, 4),
        **cpu_us,
        "cores_allow_per_s": round((os.cpu_count() or 1) * 1e6 / sum(cpu_us.values())),
        "core_each_allows_per_s": round(1e6 / busiest_us),
    }


async def latency(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Measure how soon one scheduler places single pods."""
    pods, warm = round((WARM_UP_S + PACED_S) * args.rate), round(WARM_UP_S * args.rate)
    async with cluster(folder, args.nodes, 1) as (bus, services):
        before, server_before_s = await told_by(services), server_cpu_s(bus)
        seen = await apart(pace, urls_of(bus), pods, args.rate)
        cpu_s = (await told_by(services))["cpu_s"] - before["cpu_s"]
        server_s = server_cpu_s(bus) - server_before_s
    measured = list(seen.sent)[warm:]
    waits = sorted((seen.placed[pod] - seen.sent[pod]) * 1e3 for pod in measured)
    told = sorted((seen.placed[pod] - seen.acknowledged[pod]) * 1e3 for pod in measured)
    return {
        "rate": args.rate,
        "p50_ms": round(waits[len(waits) // 2], 1),
        "p99_ms": round(waits[len(waits) * 99 // 100], 1),
        "max_ms": round(waits[-1], 1),
        "p99_after_ack_ms": round(told[len(told) * 99 // 100], 1),
        "schedulers_cpu_us": round(cpu_s / pods * 1e6, 1),
        "server_cpu_us": round(server_s / pods * 1e6, 1),
    }


async def takeover(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Kill one of three schedulers, and measure how many seconds its pods wait at most."""
    pods = round((KILL_AFTER_S + PACED_S) * args.rate)
    async with cluster(folder, args.nodes, MOST_SCHEDULERS) as (bus, services):
        load = asyncio.create_task(apart(pace, urls_of(bus), pods, args.rate))
        await asyncio.wait({load}, timeout=KILL_AFTER_S)
        await services[0].kill()
        killed_at = time.monotonic()
        seen = await load
    waits = [
        (placed - max(seen.sent[pod], killed_at), seen.sent[pod] < killed_at)
        for pod, placed in seen.placed.items()
        if placed > killed_at
    ]
    return {
        "takeover_s": round(max(waits)[0], 3),
        "waited_over_100_ms": sum(wait > 0.1 for wait, _ in waits),
    }


async def run(args: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        floods = [
            await throughput(folder / f"flood-{count}", args, count) for count in args.schedulers
        ]
        figures: dict[str, object] = {"cores": os.cpu_count(), "floods": floods}
        if args.rate:
            figures["latency"] = await latency(folder / "latency", args)
            figures["takeover"] = await takeover(folder / "takeover", args)
        return figures


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=4_000)
    parser.add_argument("--rate", type=int, default=500, help="0 leaves latency and takeover out")
    parser.add_argument("--schedulers", type=int, nargs="*", default=[1, 2, 3])
    tell(parser, lambda given: asyncio.run(run(given)))


if __name__ == "__main__":
    main()
