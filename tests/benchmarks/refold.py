"""Measure how fast a service restarts: by folding a whole ledger, or by restoring a snapshot.

    python -m tests.benchmarks.refold --json

A real nats-server has 1,000,000 events of pods of 34 shapes, over 5,000 nodes of 8 devices.

- `events_per_s` is how fast a service folds these events.
- `follow_per_s` is how fast a service receives them without folding.
- `ratio` is `events_per_s` divided by `follow_per_s`.
- `snapshot_restore_s` is the time to restore 80,000 devices and 200,000 live placements.
- `snapshot_pause_ms` is the longest time for which writing a snapshot blocks the event loop.
- `*_cpu_s` are CPU seconds."""

import argparse
import asyncio
import gc
import itertools
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import uvloop
from msgspec import structs

from apportion.core.ledger import fold
from apportion.core.ledger.state import State
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.port import Draft, Record
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.cpu_policy import seldom_look_for_cycles
from apportion.runtime.process.metrics import Metrics
from apportion.scheduler.snapshotting import Snapshotting
from apportion_schemas import (
    Ask,
    Event,
    PodBound,
    PodGone,
    PodPlaced,
    PodSubmitted,
    Score,
    Shape,
    Share,
    SharesAllocated,
    encode,
    subject_of,
)
from apportion_schemas.quantities import Payload
from tests.benchmarks.telling import parser_of, tell
from tests.support.attesting import attest_all
from tests.support.fleet import rack
from tests.support.nats import Bus, running_bus

TIME = "2026-01-01T00:00:00.000000Z"
BATCH = 1_000
DEVICES = 8
SHAPES = 34
LEFT_RUNNING = 10  # one pod in this many
RUNNERS_UP = 3
SNAPSHOT_NODES = 10_000
SNAPSHOT_PODS = 200_000
ROLES = {"inventory": "intake", "allocation": "intake", "workload": "watcher",
         "placement": "scheduler", "binding": "binder"}  # fmt: skip


def life(number: int, nodes: int) -> list[Payload]:
    """Return the events of one pod, from its submission to its allocation."""
    uid = f"{number:08x}-1111-2222-3333-444444444444"
    node, memory_mib = f"node-{number % nodes:05}", 1_000 + number % SHAPES
    device = f"{node}-g{number // nodes % DEVICES}"
    ask = Ask(container="main", family="nvidia", memory_mib=memory_mib, cores=1)
    share = Share(container="main", device=device, memory_mib=memory_mib, cores=1)
    others = tuple(
        Score(node=f"node-{(number + n) % nodes:05}", total=44.4, parts={"binpack": 44.4})
        for n in range(1, RUNNERS_UP + 1)
    )
    return [
        PodSubmitted(uid=uid, namespace="team", name=f"train-{number}", dialect="hami",
                     shape=Shape(asks=(ask,)), labels={"app": "train"}),
        PodPlaced(pod=uid, namespace="team", name=f"train-{number}", attempt=1, node=node,
                  shares=(share,), score=Score(node=node, total=55.5, parts={"binpack": 55.5}),
                  runners_up=others, fitting=nodes, nodes=nodes),
        PodBound(pod=uid, node=node, attempt=1),
        SharesAllocated(pod=uid, node=node, attempt=1, devices=(device,)),
    ]  # fmt: skip


def happenings(events: int, nodes: int) -> Iterator[Payload]:
    """Yield `events` events of many pods, interleaved as under load."""

    def endless() -> Iterator[Payload]:
        yield from (rack(f"node-{n:05}", DEVICES, slots=64) for n in range(nodes))
        for first in itertools.count(0, BATCH):
            lives = [life(n, nodes) for n in range(first, first + BATCH)]
            for stage in zip(*lives, strict=True):
                yield from stage
            for n in range(first, first + BATCH):
                if n % LEFT_RUNNING:
                    yield PodGone(uid=lives[n - first][0].uid, reason="finished")  # type: ignore[attr-defined]

    return itertools.islice(endless(), events)


async def fill(bus: Bus, events: int, nodes: int) -> None:
    """Write the events to the ledger in batches, each under its role's permissions."""
    writers = {role: await bus.connect(role) for role in set(ROLES.values())}
    chain: dict[str, str] = {}
    numbers = itertools.count(1)
    for channel, run in itertools.groupby(
        happenings(events, nodes), key=lambda data: subject_of(data).split(".")[2]
    ):
        role = ROLES[channel]
        while batch := list(itertools.islice(run, BATCH)):
            drafts = []
            for payload in batch:
                data = payload
                if isinstance(data, PodPlaced):
                    data = structs.replace(data, previous=chain.get(data.node, ""))
                name = f"{next(numbers)}"
                content = encode(Event(id=name, source=role, time=TIME, data=data))
                if isinstance(data, PodPlaced):
                    chain[data.node] = sha256(content).hexdigest()
                drafts.append(Draft(subject_of(data), name, content))
            await writers[role].append(drafts)


async def measure_follow(ledger: JetStreamLedger) -> float:
    """Read the ledger with a callback that does nothing. Return the records per second."""

    def nothing(_record: Record) -> None:
        return

    began = time.perf_counter()
    subscription = await ledger.follow(nothing)
    await subscription.caught_up()
    rate = subscription.position / (time.perf_counter() - began)
    await subscription.stop()
    return rate


async def measure_fold(ledger: JetStreamLedger) -> tuple[float, float]:
    """Fold the ledger as a service does. Return the events per second, and the CPU seconds."""
    cluster = StateFold()
    reader = Reader(ledger, cluster, metrics=Metrics())
    began, cpu = time.perf_counter(), time.process_time()
    running = asyncio.create_task(reader.run())
    await reader.caught_up()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert not reader.halted
    assert cluster.refused_count == 0, cluster.state.refused_events[:3]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return reader.revision / seconds, cpu


def full_state(nodes: int, pods: int, revision: int) -> State:
    """Return a state at this revision, with this number of nodes and live placements."""
    state = State()

    def happen(data: Payload) -> None:
        digest = f"{state.revision:064x}"
        event = Event(id="e", source="s", time=TIME, data=data)
        change = fold.apply(state, state.revision + 1, event, digest=digest)
        assert not change.refused, change.refused

    for n in range(nodes):
        happen(rack(f"node-{n:05}", DEVICES, slots=64))
    for n in range(pods):
        for data in life(n, nodes):
            if isinstance(data, PodPlaced):
                data = structs.replace(data, previous=state.nodes[data.node].chain)  # noqa: PLW2901
            happen(data)
    state.revision = revision
    return state


async def measure_snapshot(bus: Bus, nodes: int, pods: int) -> dict[str, float]:
    """Write a snapshot as a scheduler does, restore it as a service does, and measure both."""
    ledger = await bus.connect("scheduler")
    snapshots = Snapshots(ledger.wire)
    state = full_state(nodes, pods, await ledger.last_revision())
    snapshotting = Snapshotting(state, snapshots, clock=SystemClock(), metrics=Metrics())
    pauses: list[float] = []
    snapshotting._slices.observe = pauses.append  # type: ignore[method-assign, assignment]
    taken = await snapshotting.take()
    began = time.perf_counter()
    await snapshots.save(taken)
    await attest_all(bus)
    save_s, size_mb = time.perf_counter() - began, taken.size_bytes / 1e6
    del state, snapshotting, taken
    gc.collect()  # a restarting service has no such garbage to free
    began, cpu = time.perf_counter(), time.process_time()
    restored = await snapshots.restore()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert (len(restored.pods), len(restored.node_of_device)) == (pods, nodes * DEVICES)
    return {
        "snapshot_restore_s": round(seconds, 2),
        "snapshot_restore_cpu_s": round(cpu, 2),
        "snapshot_pause_ms": round(max(pauses) * 1e3, 1),
        "snapshot_pause_p50_ms": round(sorted(pauses)[len(pauses) // 2] * 1e3, 2),
        "snapshot_save_s": round(save_s, 2),
        "snapshot_mb": round(size_mb, 1),
    }


def rss_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def run(folder: Path, events: int, nodes: int, scale: float) -> dict[str, float]:
    async with running_bus(folder) as bus:
        await fill(bus, events, nodes)
        ledger = await bus.connect("auditor")
        follow = await measure_follow(ledger)
        rate, cpu = await measure_fold(ledger)
        memory = rss_mb()
        figures = await measure_snapshot(
            bus, int(SNAPSHOT_NODES * scale), int(SNAPSHOT_PODS * scale)
        )
    return {
        "events_per_s": round(rate),
        "follow_per_s": round(follow),
        "ratio": round(rate / follow, 3),
        "fold_cpu_s": round(cpu, 2),
        **figures,
        "rss_mb": round(memory),
    }


def in_a_folder(given: argparse.Namespace) -> dict[str, float]:
    seldom_look_for_cycles()  # as in every service
    with tempfile.TemporaryDirectory() as folder:
        return uvloop.run(run(Path(folder), given.events, given.nodes, given.snapshot_scale))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--snapshot-scale", type=float, default=1.0, metavar="PART")
    tell(parser, in_a_folder)


if __name__ == "__main__":
    main()
