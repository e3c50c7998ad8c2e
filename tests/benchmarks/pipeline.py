"""Measure how fast pods go through the whole system on this machine, with fsync.

    python -m tests.benchmarks.pipeline --json
    APPORTION_TEST_TLS=1 python -m tests.benchmarks.pipeline --json       the same over TLS

Runs real services and 100 simulated nodes of 8 devices. 5,000 pods are submitted in batches of 100,
with at most `--window` of them pending.

- `placed_per_s` is measured from the first submission to the last placement.
- `raw_append_per_s` is the ledger's own limit: a loop appends the same events to a fresh ledger.
- `ratio` is the pipeline's events per second divided by `raw_append_per_s`.
- A pod's latency is measured from its acknowledged submission until a reader gets its placement."""

import argparse
import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import Draft, Record
from apportion_schemas import (
    Ask,
    Event,
    NodeConstraints,
    PodPlaced,
    PodSubmitted,
    Shape,
    SharesAllocated,
    decode,
    encode,
    subject_of,
)
from tests.benchmarks.telling import parser_of, tell
from tests.support.nats import running_bus
from tests.support.processes import ServiceProcess

TIME = "2026-01-01T00:00:00.000000Z"
BATCH = 100
BATCH_MAX = 256  # the services' largest batch
SERVICES = (
    ("scheduler", "--name", "bench"),
    ("binder",),
    ("gateway",),
    ("intake",),
    ("agent", "--simulate", "8xH100-80GB", "--nodes", "100", "--node", "node-{}"),
)
# The events of a pod, and the role that writes each.
WRITERS = {
    "workload": "watcher",
    "placement": "scheduler",
    "pending": "scheduler",
    "binding": "binder",
    "allocation": "intake",
}


def submissions(pods: int) -> list[Draft]:
    """Return the submissions of `pods` pods of eight shapes.

    All these pods together fit 800 devices."""
    drafts = []
    for number in range(pods):
        ask = Ask(
            container="main",
            family="nvidia",
            memory_mib=4000 + 1000 * (number % 8),
            cores=5 + number % 8,
        )
        node = NodeConstraints(cpu_milli=100, memory_mib=256)
        data = PodSubmitted(
            uid=f"pod-{number:06}",
            namespace="bench",
            name=f"pod-{number:06}",
            dialect="hami",
            shape=Shape(asks=(ask,), node=node),
        )
        event = Event(id=f"{data.uid}/submitted", source="bench", time=TIME, data=data)
        drafts.append(Draft(subject_of(data), event.id, encode(event), 0))
    return drafts


class Watch:
    """A reader of the ledger that records when it receives the events of pods."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Record]] = []
        self.placed: dict[str, float] = {}
        self.allocated = 0
        self._moved = asyncio.Event()

    def deliver(self, record: Record) -> None:
        """Keep the record, and note when a placement arrives."""
        event = decode(record.payload, subject=record.subject)
        if isinstance(event.data, PodPlaced):
            self.placed[event.data.pod] = time.perf_counter()
        self.allocated += isinstance(event.data, SharesAllocated)
        if record.subject.split(".")[2] in WRITERS:
            self.records.append((event.source.partition("/")[0], record))
        self._moved.set()

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._moved.clear()
            await self._moved.wait()


async def submit(
    watch: Watch, ledger: JetStreamLedger, drafts: list[Draft], window: int
) -> dict[str, float]:
    """Submit all pods, with at most `window` pending. Return each pod's time of acknowledgement."""
    submitted: dict[str, float] = {}
    for start in range(0, len(drafts), BATCH):
        await watch.until(lambda: len(submitted) - len(watch.placed) < window)
        batch = drafts[start : start + BATCH]
        await ledger.append(batch)
        now = time.perf_counter()
        submitted.update((draft.id.partition("/")[0], now) for draft in batch)
    return submitted


async def raw_append_per_s(folder: Path, records: list[tuple[str, Record]]) -> float:
    """Append these records to a fresh ledger as fast as possible. Return the events per second."""
    batches: list[list[Draft]] = []
    for _, run in itertools.groupby(records, key=lambda entry: entry[0]):
        drafts = [Draft(record.subject, str(record.revision), record.payload) for _, record in run]
        batches += [drafts[at : at + BATCH_MAX] for at in range(0, len(drafts), BATCH_MAX)]
    async with running_bus(folder) as bus:
        writers = {prefix: await bus.connect(role) for prefix, role in WRITERS.items()}
        begun = time.perf_counter()
        for batch in batches:
            await writers[batch[0].subject.split(".")[2]].append(batch)
        return len(records) / (time.perf_counter() - begun)


async def run(folder: Path, pods: int, window: int) -> dict[str, float]:
    watch = Watch()
    async with running_bus(folder / "pipeline") as bus, contextlib.AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(
                ServiceProcess(verb, bus.server.url_for(verb), *options)
            )
            for verb, *options in SERVICES
        ]
        await asyncio.gather(*(service.ready() for service in services))
        await (await bus.connect("auditor")).follow(watch.deliver)
        writer = await bus.connect("watcher")
        begun = time.perf_counter()
        submitted = await submit(watch, writer, submissions(pods), window)
        await watch.until(lambda: len(watch.placed) == pods)
        placed_s = max(watch.placed.values()) - begun
        await watch.until(lambda: watch.allocated == pods)
        allocated_s = time.perf_counter() - begun
    raw = await raw_append_per_s(folder / "raw", watch.records)
    waits_ms = sorted((watch.placed[pod] - submitted[pod]) * 1e3 for pod in submitted)
    return {
        "placed_per_s": round(pods / placed_s),
        "allocated_per_s": round(pods / allocated_s),
        "p50_ms": round(waits_ms[pods // 2], 1),
        "p99_ms": round(waits_ms[pods * 99 // 100], 1),
        "raw_append_per_s": round(raw),
        "ratio": round(len(watch.records) / allocated_s / raw, 3),
    }


def in_a_folder(given: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder), given.pods, given.window))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--pods", type=int, default=5_000)
    parser.add_argument("--window", type=int, default=1_000)
    tell(parser, in_a_folder)


if __name__ == "__main__":
    main()
