"""Measure how fast the gateway answers requests for past states.

    python -m tests.benchmarks.past --json

A real gateway reads a ledger of 1,000,000 events over 5,000 nodes of 8 devices. Most requests ask
for a summary of a state.

- `index_s` and `index_mb`: the time to build the gateway's index, and its size on disk
- `first_*_s`: requests at random revisions, each far from the previous one
- `beside_*_s`: requests close to the previous one, as from a dragged slider
- `now_*_s` and `now_alone_*_s`: requests for the newest state, with and without concurrent requests
  for past states
- `story_s` and `who_s`: the history of a pod, and all pods that a node has had
- `diff_s`: a comparison of two states that are a tenth of the ledger apart
- `*_cpu_s` and `rss_mb`: CPU time and peak memory of the process that reads past states"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import tempfile
import time
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from apportion.gateway.past_process import NAME
from tests.benchmarks.refold import fill
from tests.benchmarks.telling import parser_of, tell
from tests.support.nats import Bus, running_bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess

SEED = 20260501
READ_S = 900.0
MODULE = b"apportion.gateway.past_process"


class PastProcess:
    """The process in which a gateway reads past states. Its figures are read from /proc."""

    def __init__(self, kept: Path) -> None:
        self._kept = str(kept).encode()

    def cpu_s(self) -> float:
        text = (self._folder() / "stat").read_text(encoding="ascii")
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        """Return the process's peak memory in MB."""
        status = (self._folder() / "status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def _folder(self) -> Path:
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if MODULE in words and self._kept in words:
                    return folder
        raise AssertionError("nobody looks back")


class Asking:
    """A client that sends requests to one gateway and measures them."""

    def __init__(self, session: aiohttp.ClientSession, url: str, kept: Path) -> None:
        self._session = session
        self._url = url
        self.past = PastProcess(kept)

    async def ask(self, path: str, **query: object) -> tuple[float, Any]:
        """Send a request that must succeed. Return its seconds and the decoded answer."""
        began = time.perf_counter()
        target = f"{self._url}/{path}?{urllib.parse.urlencode(query)}"
        async with self._session.get(target) as answer:
            body = json.loads(await answer.read())
            assert answer.status == 200, body
        return time.perf_counter() - began, body

    async def at(self, revision: int) -> tuple[float, float]:
        """Request the summary at one revision. Return its wall-clock seconds and CPU seconds."""
        before = self.past.cpu_s()
        seconds, body = await self.ask("summary", at=revision)
        assert body["revision"] == revision
        return seconds, self.past.cpu_s() - before


@contextlib.asynccontextmanager
async def gateway_on(bus: Bus, kept: Path) -> AsyncIterator[Asking]:
    """Yield a client of a ready gateway on this ledger. The gateway keeps its index in `kept`."""
    options = ("--listen", "127.0.0.1:0", "--past", str(kept))
    async with ServiceProcess("gateway", bus.server.url_for("gateway"), *options) as process:
        await process.ready(timeout_s=READ_S)
        url = str((await process.logged("answering"))["url"]).rstrip("/")
        async with aiohttp.ClientSession() as session:
            yield Asking(session, url, kept)


async def indexed(asking: Asking, revision: int) -> None:
    """Wait until the gateway's index covers the ledger up to `revision`."""

    async def done() -> bool:
        try:
            _, line = await asking.ask("timeline", bins=1)
        except AssertionError:
            return False
        return bool(line["revision"] >= revision)

    await until(done, "the index", timeout_s=READ_S)


async def looks(asking: Asking, given: argparse.Namespace) -> dict[str, float]:
    """Measure requests for random past states, for nearby ones, and for the present."""
    draw = random.Random(SEED)
    first: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    alone = [(await asking.ask("summary"))[0] for _ in range(20)]
    for _ in range(given.looks):
        revision = draw.randrange(given.events // 20, given.events - given.beside)
        first.append(await asking.at(revision))
        for _ in range(4):
            revision += draw.randrange(-given.beside, given.beside)
            beside.append(await asking.at(revision))
    moments = [draw.randrange(given.events // 20, given.events) for _ in range(8)]
    dragging = [asyncio.create_task(asking.at(each)) for each in moments]
    now = []
    while not all(task.done() for task in dragging):
        now.append((await asking.ask("summary"))[0])
    await asyncio.gather(*dragging)
    found = {"now": now, "now_alone": alone}
    for name, taken in (("first", first), ("beside", beside)):
        found[name] = [seconds for seconds, _ in taken]
        found[f"{name}_cpu"] = [cpu for _, cpu in taken]
    return {
        f"{name}_{kind}_s": round(of(seconds), 3)
        for name, seconds in found.items()
        for kind, of in (("p50", statistics.median), ("max", max))
    }


async def stories(asking: Asking, given: argparse.Namespace) -> dict[str, float]:
    """Measure the time to read a pod's history, a node's pods, and a diff."""
    events = given.events
    _, pods = await asking.ask("pods", at=events // 2, limit=1)
    name = pods["items"][0]["name"]
    story, _ = await asking.ask(f"history/pods/team/{name}")
    who, _ = await asking.ask("who", node="node-00000", since=1)
    diff, _ = await asking.ask("diff", **{"from": events // 2, "to": events // 2 + events // 10})
    return {"story_s": round(story, 3), "who_s": round(who, 3), "diff_s": round(diff, 3)}


async def run(folder: Path, given: argparse.Namespace) -> dict[str, float]:
    kept = folder / NAME
    async with running_bus(folder / "nats") as bus:
        await fill(bus, given.events, given.nodes)
        began = time.perf_counter()
        async with gateway_on(bus, kept) as asking:
            await indexed(asking, given.events)
            seconds = time.perf_counter() - began
            figures = {
                "index_s": round(seconds, 1),
                "index_cpu_s": round(asking.past.cpu_s(), 1),
                "index_mb": round(sum(f.stat().st_size for f in kept.iterdir()) / 1e6, 1),
                **await looks(asking, given),
                **await stories(asking, given),
                "rss_mb": round(asking.past.rss_mb()),
            }
    return figures


def in_a_folder(given: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder), given))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--looks", type=int, default=20)
    parser.add_argument("--beside", type=int, default=1_000, metavar="EVENTS")
    tell(parser, in_a_folder)


if __name__ == "__main__":
    main()
