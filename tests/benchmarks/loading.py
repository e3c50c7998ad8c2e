"""Generate the load of the scale benchmark: submit pods, and note when they are placed.

The load generator has its own process. Its times are from the monotonic clock, so the parent
process may compare them with its own times."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import uvloop

from apportion.runtime.jetstream.client import JetStreamLedger, connect
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import Draft, Record
from apportion_schemas import PodPlaced, decode
from tests.benchmarks.pipeline import submissions

BATCH = 500  # smaller batches would measure the load's own fsyncs
Append = Callable[[list[Draft]], Awaitable[object]]
PLACEMENTS = "apportion.v1.placement.*"


@dataclass
class Seen:
    """When each pod was sent, acknowledged and placed, as observed by the load generator."""

    sent: dict[str, float] = field(default_factory=dict)
    acknowledged: dict[str, float] = field(default_factory=dict)
    placed: dict[str, float] = field(default_factory=dict)
    placements: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Urls:
    """The nats-server URLs for the load generator: one for writing, one for reading."""

    writer: str
    reader: str


class _Load:
    """The load generator's two connections to the ledger, and the times that it records."""

    def __init__(self, urls: Urls) -> None:
        self._urls = urls
        self._records: list[tuple[float, Record]] = []
        self._moved = asyncio.Event()
        self.seen = Seen()

    async def __aenter__(self) -> JetStreamLedger:
        self._reader = await connect(self._urls.reader, name="load, reading")
        await self._reader.follow(self._deliver, subjects=[PLACEMENTS])
        self._writer = await connect(self._urls.writer, name="load, writing")
        self.seen.cpu_s = -time.process_time()
        return self._writer

    async def __aexit__(self, *_error: object) -> None:
        self.seen.cpu_s += time.process_time()
        await self._writer.close()
        await self._reader.close()
        for moment, record in self._records:
            event = decode(record.payload, subject=record.subject)
            if isinstance(event.data, PodPlaced):
                self.seen.placed.setdefault(event.data.pod, moment)
                self.seen.placements[event.data.pod] += 1

    def _deliver(self, record: Record) -> None:
        # Decode at the end: the load has no CPU to spare.
        self._records.append((time.monotonic(), record))
        self._moved.set()

    @property
    def count(self) -> int:
        """Return how many placements the load generator has observed."""
        return len(self._records)

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._moved.clear()
            await self._moved.wait()

    async def send(self, append: Append, drafts: list[Draft]) -> None:
        """Append these drafts, and record the times before and after."""
        names = [draft.id.partition("/")[0] for draft in drafts]
        self.seen.sent.update(dict.fromkeys(names, time.monotonic()))
        await append(drafts)
        self.seen.acknowledged.update(dict.fromkeys(names, time.monotonic()))


def flood(urls: Urls, pods: int, window: int) -> Seen:
    """Submit pods as fast as the schedulers place them, with at most `window` pods pending."""

    async def run() -> Seen:
        load = _Load(urls)
        drafts = submissions(pods)
        async with load as writer:
            for start in range(0, pods, BATCH):
                await load.until(lambda: len(load.seen.sent) - load.count < window)
                await load.send(writer.append, drafts[start : start + BATCH])
            await load.until(lambda: load.count >= pods)
        return load.seen

    return uvloop.run(run())


def pace(urls: Urls, pods: int, per_s: float) -> Seen:
    """Submit pods one by one at a fixed rate, without waiting for placements.

    As in the watcher, pods that arrive during an append go into the next append."""

    async def run() -> Seen:
        load = _Load(urls)
        drafts = submissions(pods)
        async with load as writer, GroupCommit(writer) as commit, asyncio.TaskGroup() as under_way:
            loop = asyncio.get_running_loop()

            def submit(draft: Draft) -> None:
                under_way.create_task(load.send(commit.append_group, [draft]))

            for number, draft in enumerate(drafts):
                loop.call_later(number / per_s, submit, draft)
            await load.until(lambda: load.count >= pods)
        return load.seen

    return uvloop.run(run())
