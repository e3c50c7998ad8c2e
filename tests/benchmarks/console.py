"""Measure how smoothly a browser draws every GPU of a large fleet while the fleet changes.

    python -m tests.benchmarks.console --json

Runs a real ledger, a real gateway, and headless Chromium. The page's picture of the fleet is
dragged to and fro while GPUs fail and recover, so that each frame redraws every GPU.

- `first_s` is the time from opening the page to the first picture.
- `fleet_mib` is the size of the picture's data as JSON, and `fleet_wire_mib` its size with gzip.
- Frame times are the milliseconds from one frame to the next. The target is 30 frames per second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import itertools
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

from playwright.async_api import Page, ViewportSize, async_playwright

from apportion_schemas import Device, DeviceHealthChanged, Host, NodeReported, PodAdopted, Share
from apportion_schemas.quantities import Payload
from tests.benchmarks.telling import parser_of, tell
from tests.support.browser.chromium import executable
from tests.support.facts import Facts
from tests.support.nats import running_bus
from tests.support.pods import ask, pod
from tests.support.processes import ServiceProcess

BATCH = 200
MODELS = (
    ("NVIDIA H100 80GB HBM3", 81_559),
    ("NVIDIA A100-SXM4-40GB", 40_960),
    ("Tesla T4", 15_360),
)
HOST = Host(cpu_milli=128_000, memory_mib=1_048_576)
CARDS = 8
SIZE = ViewportSize(width=1280, height=800)
WANTED_PER_S = 30
FRAMES = """
async seconds => {
  const canvas = document.getElementById("cards");
  const box = canvas.getBoundingClientRect();
  const gaps = [];
  const began = performance.now();
  let last = 0;
  for (let at = 0; performance.now() - began < seconds * 1000; at += 1) {
    const now = await new Promise(requestAnimationFrame);
    if (last) gaps.push(now - last);
    last = now;
    const clientX = box.left + 400 + (at % 2 ? 8 : -8);
    const clientY = box.top + 200 + (at % 2 ? 1 : -1);
    canvas.dispatchEvent(new PointerEvent("pointermove", { pointerId: 1, clientX, clientY }));
  }
  return gaps;
}
"""


def devices(node: int) -> Iterator[Device]:
    """Yield the GPUs of a node. All GPUs of a node have the same model."""
    model, memory_mib = MODELS[node % len(MODELS)]
    for index in range(CARDS):
        yield Device(
            id=f"GPU-{node:08}-{index}", index=index, family="nvidia", model=model,
            memory_mib=memory_mib, physical_memory_mib=memory_mib,
        )  # fmt: skip


def adopted(number: int, nodes: int) -> PodAdopted:
    """Return a running pod that uses half of each of two GPUs of a node."""
    node = number % nodes
    first = number // nodes * 2 % CARDS
    memory_mib = MODELS[node % len(MODELS)][1] // 2
    return PodAdopted(
        pod=f"u{number}",
        node=f"node-{node}",
        submitted=pod(
            f"u{number}", ask(memory_mib, count=2), name=f"pod-{number}",
            namespace=f"team-{number % 11}",
        ),
        shares=tuple(
            Share(container="main", device=f"GPU-{node:08}-{first + at}", memory_mib=memory_mib,
                  cores=0)
            for at in range(2)
        ),
        running=True,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def cluster(folder: Path, nodes: int, pods: int) -> AsyncIterator[tuple[Facts, str]]:
    """Yield the ledger and the URL of a ready gateway."""
    async with running_bus(folder / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        reports = (
            NodeReported(node=f"node-{at}", devices=tuple(devices(at)), host=HOST)
            for at in range(nodes)
        )
        pods_there = (adopted(at, nodes) for at in range(pods))
        for payloads in (reports, pods_there):
            for batch in _batches(payloads):
                await facts.write(*batch)
        url = bus.server.url_for("gateway")
        async with ServiceProcess("gateway", url, "--listen", "127.0.0.1:0") as gateway:
            await gateway.ready(300)
            line = await gateway.logged("answering")
            yield facts, str(line["console"]).rstrip("/")


def _batches(payloads: Iterable[Payload]) -> Iterator[tuple[Payload, ...]]:
    rest = iter(payloads)
    while batch := tuple(itertools.islice(rest, BATCH)):
        yield batch


async def happen(facts: Facts, nodes: int, each_s: float, stopped: asyncio.Event) -> None:
    """Make GPUs fail and recover, one every `each_s` seconds, until `stopped` is set."""
    for number in itertools.count():
        node = number * 37 % nodes
        device = f"GPU-{node:08}-{number % CARDS}"
        healthy = number // nodes % 2 == 1
        reason = "" if healthy else "XID 79"
        await facts.write(
            DeviceHealthChanged(node=f"node-{node}", device=device, healthy=healthy, reason=reason)
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(each_s):
                await stopped.wait()
                return


async def frames(page: Page, seconds: float) -> list[float]:
    """Drag the fleet picture for `seconds`. Return the milliseconds between frames, sorted."""
    box = await page.locator("#cards").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 400, box["y"] + 200)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 420, box["y"] + 210)
    gaps: list[float] = await page.evaluate(FRAMES, seconds)
    await page.mouse.up()
    return sorted(gaps)


def _sizes(base: str) -> tuple[float, float]:
    with urllib.request.urlopen(f"{base}/api/v1/fleet", timeout=120) as answer:  # noqa: S310 - ours
        body = answer.read()
    return len(body) / (1 << 20), len(gzip.compress(body, 6)) / (1 << 20)


async def _measure(given: argparse.Namespace) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        facts, base = await stack.enter_async_context(cluster(folder, given.nodes, given.pods))
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(
            executable_path=executable(), args=["--no-sandbox", "--disable-gpu"]
        )
        stack.push_async_callback(browser.close)
        json_mib, wire_mib = await asyncio.to_thread(_sizes, base)
        page = await browser.new_page(viewport=SIZE)
        began = time.perf_counter()
        await page.goto(base)
        await page.wait_for_selector("h1:not(:empty)", timeout=120_000)
        first_s = time.perf_counter() - began
        before = await page.inner_text("h1")
        stopped = asyncio.Event()
        happening = asyncio.create_task(happen(facts, given.nodes, 1 / given.events, stopped))
        gaps = await frames(page, given.seconds)
        stopped.set()
        await happening
        after = await page.inner_text("h1")
    median = gaps[len(gaps) // 2]
    return {
        "cards": given.nodes * CARDS,
        "pods": given.pods,
        "fleet_mib": round(json_mib, 2),
        "fleet_wire_mib": round(wire_mib, 2),
        "first_s": round(first_s, 2),
        "frame_median_ms": round(median, 1),
        "frame_p95_ms": round(gaps[int(len(gaps) * 0.95)], 1),
        "frames_per_s": round(1000 / median, 1),
        "frames": len(gaps),
        "changed_meanwhile": before != after,
        "within": 1000 / median >= WANTED_PER_S and before != after,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=24_000)
    parser.add_argument("--events", type=float, default=50.0, help="a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    tell(parser, lambda given: asyncio.run(_measure(given)))


if __name__ == "__main__":
    main()
