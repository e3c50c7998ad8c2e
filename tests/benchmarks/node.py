"""Measure the time, memory and CPU of the agent on a node with a kubelet.

    python -m tests.benchmarks.node --json

Runs a real agent process over the fake driver with eight GPUs, on a real ledger. `--pods` pods
request a tenth of a GPU each. `--kubelet fake` uses the tests' fake kubelet, which is also the
default if no real one can run here.

- `allocate_p99_ms` and `prestart_p99_ms` are the durations of the kubelet's two calls to the agent.
- `bound_to_allocated_p50_ms` is the median time from a pod's PodBound event to its allocation.
- `agent_cpu_percent` is the agent's CPU, in percent of one core, while it samples eighty shares.
- `agent_rss_mb` is the agent's memory at that time.
- `usage_series` is the number of usage series in a scrape.

Exits with 1 if a figure exceeds its limit (`LIMITS`). For comparison, the benchmark prints the
limits of HAMi's plugin and monitor on standard error."""

import argparse
import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from apportion.agent.kubelet.calls import ALLOCATE, PRE_START, Call
from apportion.agent.shares.regions import SharedFile
from apportion.core.grants.region import Region
from apportion_schemas import (
    Ask,
    NodeReported,
    PodBound,
    PodGone,
    PodPlaced,
    PodSubmitted,
    Score,
    Shape,
    Share,
    SharesAllocated,
)
from tests.benchmarks.telling import parser_of, tell
from tests.support.control_plane import ControlPlane, find_binaries
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kube_objects import kube_pod, share
from tests.support.kube_world import KubeWorld, running_world
from tests.support.kubelet_fixtures import NODE
from tests.support.nats import running_bus
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.support.processes import ServiceProcess
from tests.support.real_kubelet import RealKubelet, missing
from tests.support.regions import run_process

NAMES: Final = {ALLOCATE: "allocate", PRE_START: "prestart"}
GPU: Final = "nvidia.com/gpu"
CARDS, SLOTS, KEPT, WAVE = 8, 80, 80, 10
SETTLE_S: Final = 12.0
"""After this time the agent has seen each process, and has cleaned up after ended pods."""
MEMORY_MIB, CORES, USED_MIB, USED_PERCENT = 1000, 10, 500, 5
LIMITS: Final = {"allocate_p99_ms": 5.0, "agent_rss_mb": 70.0, "agent_cpu_percent": 1.0}
USAGE: Final = ("apportion_container_", "apportion_device_")
TICKS: Final = os.sysconf("SC_CLK_TCK")
HAMI: Final = "HAMi's chart limits its plugin to 150 to 600 m of a CPU, and to 256 MiB to 1 GiB"
PAUSED: Final = {"image": "test:1", "imagePullPolicy": "Never", "command": ["sleep", "3600"]}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Kubelet(Protocol):
    """The interface through which the benchmark uses a real or a fake kubelet."""

    facts: Facts
    agent: ServiceProcess

    async def start(self, names: list[str]) -> None:
        """Start these pods: place and bind each pod, and wait until its container runs."""

    async def end(self, names: list[str]) -> None:
        """End these pods, and wait until their shares and slots are free."""

    async def p99_ms(self, call: Call) -> float:
        """Return the 99th percentile of a call's duration in milliseconds."""


class Fake:
    """A fake kubelet, and the events that a scheduler and a binder would write."""

    def __init__(self, facts: Facts, agent: ServiceProcess, kubelet: FakeKubelet) -> None:
        self.facts = facts
        self.agent = agent
        self._kubelet = kubelet
        self._number = 0

    async def start(self, names: list[str]) -> None:
        devices = self.facts.of(NodeReported)[-1].devices
        for name in names:
            device = devices[self._number % CARDS]
            self._number += 1
            held = Share(container="main", device=device.id, memory_mib=MEMORY_MIB, cores=CORES)
            shape = Shape(asks=(Ask(container="main", family="nvidia"),))
            uid = _uid(name)
            await self.facts.write(
                PodSubmitted(uid=uid, namespace="default", name=name, shape=shape, dialect="hami")
            )
            placed = PodPlaced(
                pod=uid, namespace="default", name=name, attempt=1, node=NODE, shares=(held,),
                score=Score(node=NODE, total=1.0), previous=self.facts.chain(NODE),
            )  # fmt: skip
            await self.facts.write(placed)
            await self.facts.write(PodBound(pod=uid, node=NODE, attempt=1))
            await self._kubelet.admit(uid, name, GPU, {"main": 1})
            await self._kubelet.begin(uid, "main")

    async def end(self, names: list[str]) -> None:
        for name in names:
            self._kubelet.end(_uid(name))
            await self.facts.write(PodGone(uid=_uid(name)))

    async def p99_ms(self, call: Call) -> float:
        took_s = sorted(self._kubelet.took_s[call])
        return 1000 * took_s[int(0.99 * (len(took_s) - 1))]


class Real:
    """A cluster with the real kubelet. It creates and deletes pods as a user does."""

    def __init__(self, world: KubeWorld, agent: ServiceProcess) -> None:
        self.facts = world.facts
        self.agent = agent
        self._world = world

    async def start(self, names: list[str]) -> None:
        before = len(self.facts.of(SharesAllocated))
        await self._world.plane.apply(*map(_pod, names))
        await self.facts.count(SharesAllocated, before + len(names))

    async def end(self, names: list[str]) -> None:
        """Delete the pods, and wait until the kubelet has ended them."""
        await self._world.plane.user("delete", "pods", *names, "--wait=true", "--timeout=120s")

    async def p99_ms(self, call: Call) -> float:
        """Estimate a call's p99 duration in milliseconds from the agent's histogram."""
        _, metrics = await self.agent.get("/metrics")
        return quantile_ms(metrics, NAMES[call], 0.99)


def _uid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def _pod(name: str) -> dict[str, Any]:
    pod = kube_pod(name, share(MEMORY_MIB, CORES), terminationGracePeriodSeconds=1)
    pod["spec"]["containers"][0] |= PAUSED
    return pod


@asynccontextmanager
async def fake(folder: Path) -> AsyncIterator[Kubelet]:
    """Run an agent and the fake kubelet until the block ends."""
    async with running_bus(folder / "nats") as bus, FakeKubelet(folder / "k") as kubelet:
        facts = Facts(bus)
        await facts.open()
        options = agent_options(kubelet.folder, kubelet.cdi)
        async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as agent:
            await agent.ready()
            await kubelet.offered(GPU, SLOTS)
            yield Fake(facts, agent, kubelet)


@asynccontextmanager
async def real(folder: Path) -> AsyncIterator[Kubelet]:
    """Run a cluster of one node with a real kubelet until the block ends."""
    binaries, _ = find_binaries()
    assert binaries is not None
    plane = ControlPlane(binaries, folder / "plane")
    try:
        plane.start()
        async with (
            running_world(plane, folder) as world,
            RealKubelet(plane, binaries / "kubelet", folder / "k", NODE) as kubelet,
        ):
            agent = await world.start("agent", *agent_options(kubelet.folder, kubelet.cdi))
            await kubelet.offered(GPU, SLOTS)
            for verb in ("watcher", "scheduler", "binder"):
                await world.start(verb)
            yield Real(world, agent)
    finally:
        plane.stop()


def agent_options(kubelet: Path, cdi: Path) -> tuple[str, ...]:
    """Return the options of an agent that uses the fake driver's GPUs."""
    places = {"--kubelet": kubelet, "--cdi": cdi, "--state": kubelet / "state"}
    places |= {"--run": kubelet / "run"}
    return ("--node", NODE, *(str(word) for pair in places.items() for word in pair))


# ---------------------------------------------------------------- the figures


def bound_to_allocated_ms(facts: Facts) -> list[float]:
    """Return the milliseconds from PodBound to the allocation, for each pod."""
    at: dict[str, datetime] = {}
    took = []
    for _, event in facts.events:
        if isinstance(event.data, PodBound):
            at[event.data.pod] = datetime.fromisoformat(event.time)
        if isinstance(event.data, SharesAllocated):
            wait = datetime.fromisoformat(event.time) - at[event.data.pod]
            took.append(1000 * wait.total_seconds())
    return took


def quantile_ms(metrics: str, call: str, part: float) -> float:
    """Return the `part` quantile of a call's duration in milliseconds, from the agent's metrics."""
    pattern = rf'apportion_agent_kubelet_seconds_bucket{{call="{call}",le="([^"]+)"}} (\S+)'
    counts = [(float(bound), float(count)) for bound, count in re.findall(pattern, metrics)]
    wanted = part * counts[-1][1]
    below_s = below = 0.0
    for bound_s, count in counts:
        if count >= wanted:
            return 1000 * (below_s + (bound_s - below_s) * (wanted - below) / (count - below))
        below_s, below = bound_s, count
    raise AssertionError(f"no call {call} in the agent's metrics")


def cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def pause(seconds: float) -> None:
    """Sleep for `seconds`, so that the agent works undisturbed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


async def play(
    kubelet: Kubelet, folder: Path, driver: FakeDriver, given: argparse.Namespace
) -> dict[str, Any]:
    """Start and end the benchmark's pods, and return the figures."""
    names = [f"pod-{number}" for number in range(given.pods)]
    for first in range(0, len(names), WAVE):
        if first >= KEPT:
            await kubelet.end(names[first - KEPT : first - KEPT + WAVE])
        await kubelet.start(names[first : first + WAVE])
        say(f"{min(first + WAVE, len(names))} of {len(names)} pods started")
    agent = kubelet.agent
    with used(folder, driver):
        await pause(SETTLE_S)
        before = cpu_s(agent.pid)
        say(f"{given.idle:g} seconds without a pod that comes or goes (agent: {agent.pid})")
        await pause(given.idle)
        taken_s = cpu_s(agent.pid) - before
        _, text = await agent.get("/metrics")
    say(HAMI)
    return {
        "allocate_p99_ms": round(await kubelet.p99_ms(ALLOCATE), 2),
        "prestart_p99_ms": round(await kubelet.p99_ms(PRE_START), 2),
        "bound_to_allocated_p50_ms": round(
            statistics.median(bound_to_allocated_ms(kubelet.facts)), 2
        ),
        "agent_rss_mb": round(rss_mb(agent.pid), 1),
        "agent_cpu_percent": round(100 * taken_s / given.idle, 2),
        "usage_series": sum(line.startswith(USAGE) for line in text.splitlines()),
    }


@contextlib.contextmanager
def used(folder: Path, driver: FakeDriver) -> Iterator[None]:
    """Run one process for each share on the node until the block ends.

    The share's usage region, the driver and the kernel all list that process."""
    cgroups = cgroup2()
    if cgroups is None:
        say("cgroups or mounts cannot be made here: the kernel does not say whose a process is")
    with contextlib.ExitStack() as stack:
        for region in (folder / "k" / "state" / "shares").glob("*/share.cache"):
            pod = region.parent.name.rpartition("_")[0]
            pid = stack.enter_context(contained(folder / "k" / "pods", pod, cgroups))
            with SharedFile(region) as file:
                (device,) = Region(file).devices
            run_process(region, inner=pid, mib=USED_MIB, percent=USED_PERCENT)
            driver.process(driver.ids.index(device), pid, USED_MIB, USED_PERCENT)
        yield


def cgroup2() -> Path | None:
    """Return the mount point of cgroup v2, or None if this process may not create cgroups and
    mounts."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    found = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)
    return found if found is not None and os.access(found, os.W_OK) and not missing() else None


@contextlib.contextmanager
def contained(pods: Path, pod: str, cgroups: Path | None) -> Iterator[int]:
    """Run a process for this pod until the block ends, and yield its id.

    The process is in the pod's cgroup, if this machine allows creating cgroups."""
    log = pods / pod / "containers" / "main" / "log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    command = ["sleep", "3600"]
    if cgroups is not None:
        bind = f'mount --make-rprivate / && mount --bind {log} {log} && exec "$@"'
        command = ["/usr/bin/unshare", "--mount", "sh", "-c", bind, "sh", *command]
    with subprocess.Popen(command) as process:
        folder = cgroups / "apportion-benchmark" / f"pod{pod}" / "main" if cgroups else None
        try:
            if folder is not None:
                folder.mkdir(parents=True)
                (folder / "cgroup.procs").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()
            process.wait()
            if folder is not None:
                folder.rmdir()
                folder.parent.rmdir()
                with contextlib.suppress(OSError):  # other processes are still in it
                    folder.parent.parent.rmdir()


@contextlib.contextmanager
def driven(folder: Path) -> Iterator[FakeDriver]:
    """Yield a fake driver. All processes started within the block use it."""
    with fake_driver(folder, f"{CARDS}xA100-80GB") as driver:
        os.environ.update(driver.environment)
        yield driver


def kubelet_of(wanted: str) -> tuple[str, Any]:
    """Return the name of a kubelet, "real" or "fake", and the function that runs it.

    If `wanted` is empty, return the real kubelet if it can run here, and otherwise the fake one.
    Raises SystemExit if "real" is wanted but cannot run here."""
    binaries, reason = find_binaries()
    if binaries is not None:
        reason = missing() or ("" if (binaries / "kubelet").exists() else "there is no kubelet")
    if wanted == "real" and reason:
        raise SystemExit(f"--kubelet real: {reason}")
    return ("fake", fake) if wanted == "fake" or reason else ("real", real)


async def main(given: argparse.Namespace) -> dict[str, Any]:
    name, started = kubelet_of(given.kubelet)
    say(f"with the {name} kubelet")
    with tempfile.TemporaryDirectory(prefix="node") as path, driven(Path(path)) as driver:
        folder = Path(path)
        context: AbstractAsyncContextManager[Kubelet] = started(folder)
        async with context as kubelet:
            await kubelet.facts.count(NodeReported, 1)
            return await play(kubelet, folder, driver, given)


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds without a pod")
    parser.add_argument("--kubelet", choices=("real", "fake"), default="", help="which one")
    tell(parser, lambda given: asyncio.run(main(given)), LIMITS)
