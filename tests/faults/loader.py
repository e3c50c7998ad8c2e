"""The load generator of a round, which submits and withdraws pods at a given rate.

The loader runs as `python -m tests.faults.loader`. Invariant: its journal names only events that
the ledger has acknowledged. If the loader is killed, its successor repeats the current step with
the same ids."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
from pathlib import Path
from typing import IO

from click import echo
from msgspec import structs

from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import DuplicateRefused, FenceRefused, LedgerUnavailable
from apportion.runtime.ledger.publisher import Insistence, Publisher
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import PodGone
from apportion_schemas.quantities import Payload
from tests.support.pods import ask, cards, pod

MEMORY_MIB = (1_000, 4_000, 8_000, 16_000, 40_000)
LIVE_MAX = 400
TOGETHER = 20
BEGUN = "begun"
"""Printed as soon as SIGTERM is handled."""


class Journal:
    """A file that lists acknowledged appends, one per line: `[event id, revision or null]`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done = {json.loads(line)[0] for line in self._lines()}
        self._file: IO[str] = path.open("a", encoding="utf-8", buffering=1)

    def _lines(self) -> list[str]:
        if not self._path.exists():
            return []
        whole = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [line for line in whole if line.endswith("\n")]

    def note(self, event_id: str, revision: int | None) -> None:
        """Record that the event is in the ledger, with its revision if known."""
        self._file.write(json.dumps([event_id, revision]) + "\n")
        self.done.add(event_id)


class Loader:
    """Submits one pod after another. If too many pods exist, it withdraws the oldest."""

    def __init__(self, publisher: Publisher, append: Insistence, journal: Journal) -> None:
        self._publisher = publisher
        self._append = append
        self._journal = journal

    async def step(self, number: int, seed: int) -> None:
        """Submit pod `number`. If there are too many pods, withdraw the oldest."""
        chance = random.Random(f"{seed}/{number}")
        uid = f"pod-{number}"
        asks = cards() if chance.random() < 0.05 else ask(chance.choice(MEMORY_MIB), cores=10)
        await self._say(pod(uid, asks, priority=chance.choice((0, 0, 5))), f"{uid}/submitted", 0)
        if number >= LIVE_MAX:
            old = f"pod-{number - LIVE_MAX}"
            await self._say(PodGone(uid=old, reason="done"), f"{old}/gone", None)

    async def _say(self, data: Payload, event_id: str, expect: int | None) -> None:
        if event_id in self._journal.done:
            return
        draft = self._publisher.draft(data, event_id=event_id, basis=0)
        try:
            done = await self._append.append(structs.replace(draft, expect=expect))
        except (FenceRefused, DuplicateRefused):
            self._journal.note(event_id, None)  # a killed predecessor may have sent it already
        else:
            self._journal.note(event_id, done.revision)


async def _main(given: argparse.Namespace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    echo(BEGUN)
    journal = Journal(given.journal)
    clock = SystemClock()
    ledger = None
    while ledger is None:
        try:
            ledger = await jetstream.connect(given.nats, name="loader")
        except LedgerUnavailable:
            continue
    async with ledger, GroupCommit(ledger) as commit:
        append = Insistence(commit.append)
        loader = Loader(Publisher("watcher/loader", clock, append.append), append, journal)
        number = 0
        while not stop.is_set():
            known = len(journal.done)
            batch = range(number, number + TOGETHER)
            await asyncio.gather(*(loader.step(each, given.seed) for each in batch))
            number += TOGETHER
            if len(journal.done) > known:
                await clock.pause(TOGETHER / given.rate)


def main() -> None:
    """Submit pods until SIGTERM, then finish the step in progress."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.loader", description=__doc__)
    parser.add_argument("--nats", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rate", type=float, default=40.0, help="pods per second")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
