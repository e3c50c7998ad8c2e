"""What the agent of a node with a kubelet takes, in time, memory and processor.

    python -m tests.benchmarks.node --json

A real agent process with eight simulated GPUs on a real ledger, and the kubelet of the tests, whose
sockets and books are those of the real one. `--pods` pods are placed, bound, admitted and started,
one after the other: `allocate_p99_ms` and `prestart_p99_ms` are of the kubelet's calls as it sees
them, `bound_to_allocated_p50_ms` is by the times of the two events. Then the agent is left alone
for `--idle` seconds with eighty regions that it looks at every five: `agent_cpu_percent` is of one
core. `agent_rss_mb` is what it has then, and `usage_series` how many series of use a scrape of it
has: four of each share and two of each card. HAMi's chart gives its plugin 150 to 600 millicores
and 256 MiB to 1 GiB (`values.yaml`, limits of device plugin and monitor), which stand beside it.
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Awaitable
from datetime import datetime
from pathlib import Path
from typing import Any

from apportion_schemas import NodeReported, PodBound, PodPlaced, Score, Share, SharesAllocated
from tests.benchmarks.telling import parser_of, tell
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet
from tests.support.nats import running_bus
from tests.support.processes import ServiceProcess

NODE, GPU = "n1", "nvidia.com/gpu"
CARDS, SLOTS, KEPT = 8, 80, 80
USAGE = ("apportion_container_", "apportion_device_")
TICKS = 100
"""Of `/proc/PID/stat`, a second; see sysconf(3), _SC_CLK_TCK."""


async def timed(work: Awaitable[Any]) -> float:
    """Milliseconds until it is done."""
    began = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - began)


class Bench:
    """One agent, its kubelet and its ledger."""

    def __init__(self, facts: Facts, kubelet: FakeKubelet, agent: ServiceProcess) -> None:
        self.facts = facts
        self.kubelet = kubelet
        self.agent = agent
        self.allocate_ms: list[float] = []
        self.prestart_ms: list[float] = []

    async def start(self, pod: str, device: str) -> None:
        """Place, bind, admit and start a pod with a tenth of a card."""
        share = Share(container="main", device=device, memory_mib=1000, cores=10)
        placed = PodPlaced(
            pod=pod, namespace="default", name=pod, attempt=1, node=NODE, shares=(share,),
            score=Score(node=NODE, total=1.0),
        )  # fmt: skip
        await self.facts.write(placed)
        await self.facts.write(PodBound(pod=pod, node=NODE, attempt=1))
        admitted = self.kubelet.admit(pod, pod, GPU, {"main": 1})
        self.allocate_ms.append(await timed(admitted))
        self.prestart_ms.append(await timed(self.kubelet.begin(pod, "main")))

    def bound_to_allocated_ms(self) -> list[float]:
        """By the times of the two events, for each pod."""
        at: dict[str, datetime] = {}
        took = []
        for _, event in self.facts.events:
            if isinstance(event.data, PodBound):
                at[event.data.pod] = datetime.fromisoformat(event.time)
            if isinstance(event.data, SharesAllocated):
                wait = datetime.fromisoformat(event.time) - at[event.data.pod]
                took.append(1000 * wait.total_seconds())
        return took

    def cpu_s(self) -> float:
        """Processor time of the agent so far."""
        fields = Path(f"/proc/{self.agent.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    async def usage_series(self) -> int:
        """How many a scrape has of what containers and cards use."""
        _, text = await self.agent.get("/metrics")
        return sum(line.startswith(USAGE) for line in text.splitlines())

    def rss_mb(self) -> float:
        """Its resident memory."""
        status = Path(f"/proc/{self.agent.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


def p99(values: list[float]) -> float:
    """The hundredth part of them is larger."""
    return sorted(values)[int(0.99 * (len(values) - 1))]


async def play(bench: Bench, given: argparse.Namespace) -> dict[str, Any]:
    """Start the pods, leave the agent alone, and tell."""
    (report,) = await bench.facts.count(NodeReported, 1)
    for number in range(given.pods):
        if number >= KEPT:
            bench.kubelet.end(f"pod-{number - KEPT}")
        await bench.start(f"pod-{number}", report.devices[number % CARDS].id)
    await bench.facts.count(SharesAllocated, given.pods)
    before = bench.cpu_s()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(given.idle):
            await asyncio.Event().wait()
    return {
        "pods": given.pods,
        "allocate_p99_ms": round(p99(bench.allocate_ms), 2),
        "prestart_p99_ms": round(p99(bench.prestart_ms), 2),
        "bound_to_allocated_p50_ms": round(statistics.median(bench.bound_to_allocated_ms()), 2),
        "agent_rss_mb": round(bench.rss_mb(), 1),
        "usage_series": await bench.usage_series(),
        "agent_cpu_percent": round(100 * (bench.cpu_s() - before) / given.idle, 2),
        "hami_limits": {"cpu_milli": [150, 600], "memory_mib": [256, 1024]},
    }


async def main(given: argparse.Namespace) -> dict[str, Any]:
    """All of it, in folders of its own."""
    with tempfile.TemporaryDirectory(prefix="node") as name:
        folder = Path(name)
        async with running_bus(folder / "nats") as bus, FakeKubelet(folder / "k") as kubelet:
            facts = Facts(bus)
            await facts.open()
            options = ["--node", NODE, "--simulate", f"{CARDS}xA100-80GB"]
            options += ["--kubelet", str(kubelet.folder), "--cdi", str(kubelet.cdi)]
            options += ["--state", str(folder / "state")]
            url = bus.server.url_for("agent")
            async with ServiceProcess("agent", url, *options) as agent:
                await agent.ready()
                await kubelet.offered(GPU, SLOTS)
                return await play(Bench(facts, kubelet, agent), given)


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds without a pod")
    tell(parser, lambda given: asyncio.run(main(given)))
