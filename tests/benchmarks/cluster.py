"""Schedule a whole cluster's pods with Apportion, and then the same pods with kube-scheduler.

    python -m tests.benchmarks.cluster --json

The cluster is a real etcd and kube-apiserver with nodes that have no kubelet. The pods request only
CPU and memory, and all exist when the schedulers start. At the end, the benchmark checks that every
pod is bound and no node is overcommitted.

- `first_bound_s` and `all_bound_s` are measured from the start of a scheduler's processes.
- `bound_per_s` is measured from the first binding to the last.
- `writes` are the mutating API requests from the start of the processes until all pods are bound.
- `cpu_s` is a process's CPU time until all pods were bound, and `peak_mib` its peak memory."""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from apportion.runtime.kube.client import KubeApi, open_kube
from tests.benchmarks.bind import PODS, after, many, post, writes
from tests.benchmarks.telling import parser_of, tell
from tests.support.control_plane import ControlPlane, binaries
from tests.support.kube_objects import kube_node, kube_pod
from tests.support.kube_scheduler import plain_scheduler
from tests.support.nats import running_bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess

FIRST_INTERVAL_S = 0.25
INTERVAL_S = 1.0
"""Each poll takes the API server 0.05 s."""
STALL_S = 300.0
"""Without a binding for this long, the run has failed."""
BINDINGS = "pods/binding"
PAGE = 5000
REQUESTS_PER_S = 1000
"""More requests than kube-scheduler can send."""
CPUS, MEMORY_GIB, PLACES = 64, 256, 110
SHAPES = [(1 + number % 4, 1 + number) for number in range(8)]
"""CPUs and GiB of memory of a pod."""

Pids = dict[str, int]
Start = Callable[[], Awaitable[Pids]]
Contender = Callable[[ControlPlane, Path], AbstractAsyncContextManager[Start]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@asynccontextmanager
async def apportion(plane: ControlPlane, folder: Path) -> AsyncIterator[Start]:
    """Yield a function that starts watcher, scheduler and binder on an empty ledger."""
    kube = {
        verb: ("--kubeconfig", str(plane.kubeconfig_of(verb))) for verb in ("watcher", "binder")
    }
    async with running_bus(folder / "nats") as bus, AsyncExitStack() as stack:

        async def start() -> Pids:
            services = [
                ServiceProcess(verb, bus.server.url_for(verb), *kube.get(verb, ()))
                for verb in ("watcher", "scheduler", "binder")
            ]
            await asyncio.gather(*(stack.enter_async_context(service) for service in services))
            return {"nats-server": bus.server.pid} | {one.verb: one.pid for one in services}

        yield start


@asynccontextmanager
async def kube_scheduler(plane: ControlPlane, folder: Path) -> AsyncIterator[Start]:
    """Yield a function that starts kube-scheduler."""
    async with AsyncExitStack() as stack:

        async def start() -> Pids:
            running = plain_scheduler(plane, folder, REQUESTS_PER_S)
            return {"kube-scheduler": stack.enter_context(running)}

        yield start


CONTENDERS: dict[str, tuple[str, Contender]] = {
    "apportion": ("apportion", apportion),
    "kube_scheduler": ("default-scheduler", kube_scheduler),
}
"""By prefix of the figures: the schedulerName of the pods, and the contender."""


async def furnish(api: KubeApi, nodes: int, pods: int, scheduler: str) -> None:
    """Create the nodes, then the pods."""
    room = {"cpu": str(CPUS), "memory": f"{MEMORY_GIB}Gi", "pods": str(PLACES)}
    began_s = time.perf_counter()
    await many(
        [
            partial(post, api, "/api/v1/nodes", kube_node(name, allocatable=room, labels=labels))
            for name in (f"node-{number:05}" for number in range(nodes))
            for labels in ({"kubernetes.io/hostname": name},)
        ]
    )
    wanted = [{"cpu": str(cpus), "memory": f"{gib}Gi"} for cpus, gib in SHAPES]
    await many(
        [
            partial(post, api, PODS, kube_pod(name, asked, schedulerName=scheduler))
            for number in range(pods)
            for name, asked in ((f"pod-{number:06}", wanted[number % len(wanted)]),)
        ]
    )
    say(f"made {nodes} nodes and {pods} pods in {time.perf_counter() - began_s:.1f} s")


class Progress:
    """Times of the first and the last binding, as polled from the API server."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self.first_s = self.last_s = 0.0
        self.at_first = 0

    async def watch(self, api: KubeApi, pods: int) -> None:
        """Wait until all pods are bound. Raises AssertionError if no pod is bound for too long."""
        seen, interval_s = 0, FIRST_INTERVAL_S

        async def more() -> int:
            count = (await writes(api))[BINDINGS]
            return count if count > seen else 0

        while seen < pods:
            what = f"more than {seen} bindings"
            seen = await until(more, what, timeout_s=STALL_S, interval_s=interval_s)
            self.last_s = time.perf_counter() - self._began_s
            if not self.at_first:
                self.first_s, self.at_first = self.last_s, seen
            say(f"{seen} bound after {self.last_s:.1f} s")
            interval_s = INTERVAL_S
            if seen < pods:
                await after(INTERVAL_S)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (peak_kib,) = re.findall(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)
    return round(int(peak_kib) / 1024)


async def examined(api: KubeApi, pods: int) -> None:
    """Exit with an error unless every pod is bound and no node is overcommitted."""
    places, cpus, gib = Counter[str](), Counter[str](), Counter[str]()
    query = {"limit": str(PAGE)}
    while True:
        page = msgspec.json.decode(await api.get(PODS, query))
        for pod in page["items"]:
            node = pod["spec"].get("nodeName", "")
            asked = pod["spec"]["containers"][0]["resources"]["requests"]
            places[node] += 1
            cpus[node] += int(asked["cpu"])
            gib[node] += int(asked["memory"].removesuffix("Gi"))
        if not (following := page["metadata"].get("continue")):
            break
        query["continue"] = following
    held = [(places, PLACES), (cpus, CPUS), (gib, MEMORY_GIB)]
    over = [node for counts, most in held for node, count in counts.items() if count > most]
    if places[""] or over or places.total() != pods:
        sys.exit(f"{places.total()} pods, {places['']} not bound; too much on: {over[:5]}")


async def run(
    name: str, options: argparse.Namespace, plane: ControlPlane, folder: Path
) -> dict[str, Any]:
    """Let Apportion or kube-scheduler bind all pods. Return the measured figures."""
    scheduler, contender = CONTENDERS[name]
    async with open_kube(plane.kubeconfig, None) as api, contender(plane, folder) as start:
        await furnish(api, options.nodes, options.pods, scheduler)
        before = {one: cpu_s(pid) for one, pid in plane.pids.items()}
        written = await writes(api)
        progress = Progress(time.perf_counter())
        pids = plane.pids | await start()
        await progress.watch(api, options.pods)
        processes = {
            one: {"cpu_s": round(cpu_s(pid) - before.get(one, 0.0), 2), "peak_mib": peak_mib(pid)}
            for one, pid in pids.items()
        }
        written = await writes(api) - written
        await examined(api, options.pods)
    took_s = progress.last_s - progress.first_s
    rate = (options.pods - progress.at_first) / took_s if took_s else 0.0
    return {
        "first_bound_s": round(progress.first_s, 2),
        "all_bound_s": round(progress.last_s, 2),
        "bound_per_s": round(rate),
        "writes": dict(sorted(written.items())),
        "processes": processes,
    }


def both(options: argparse.Namespace) -> dict[str, Any]:
    """Run each scheduler once, on a control plane of its own. Return the figures of both."""
    figures: dict[str, Any] = {"nodes": options.nodes, "pods": options.pods}
    for name in CONTENDERS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            say(f"{name}: a control plane")
            plane = ControlPlane(binaries(), folder / "plane")
            try:
                plane.start()  # outside a loop, where Ctrl-C would wait for its end
                figures[name] = asyncio.run(run(name, options, plane, folder))
            finally:
                plane.stop()
    return figures


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20_000)
    tell(parser, both)


if __name__ == "__main__":
    main()
