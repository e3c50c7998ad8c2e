"""The page of pending pods shows when each request should start, or why that is unknown."""

import asyncio
import json
import os
import random
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from apportion.core.explain.text.vocabulary import START_UNKNOWN
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import Draft, Record
from apportion_schemas import PodGone, QueueObserved, decode
from apportion_schemas.catalogue import BY_PAYLOAD
from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, skip_unless_here, visit
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import ServiceProcess
from tests.support.story import A30S, T4S, Story

ROUNDS = 120
MINUTE_S = 60
EXPECTED = re.compile(r"^\s*(now|about|(\d\d-\d\d )?\d\d:\d\d)[\s,].*80 %", re.DOTALL)


def past(begin_s: int) -> Story:
    """Return a ledger in which pods waited for minutes to hours, and in which pods are pending."""
    story, chance = Story(0, begin_s=begin_s), random.Random(3)
    story.gap_s = 1
    runs = ["", ""]
    for number in range(ROUNDS):
        kind = number % 2
        shape, lengths = ((A30S, (20, 240)), (T4S, (2, 20)))[kind]
        story.play(pod(f"p{number}", shape=shape))
        story.now_s += MINUTE_S * chance.randrange(*lengths)
        if runs[kind]:
            story.play(PodGone(uid=runs[kind]))
        runs[kind] = f"p{number}"
    story.play(
        QueueObserved(queue="shut", open=False),
        *(pod(f"train-{number}", shape=A30S) for number in range(3)),
        *(pod(f"infer-{number}", shape=T4S) for number in range(2)),
        pod("large-0", ask(900_000)), pod("limited-0", ask(1_000), queue="shut"),
    )  # fmt: skip
    return story


async def append(bus: Bus, story: Story) -> None:
    """Append the events of the story, each in the role that writes such events."""

    def role(record: Record) -> str:
        data = decode(record.payload, subject=record.subject).data
        return BY_PAYLOAD[type(data)].appender

    pens: dict[str, JetStreamLedger] = {}
    for name, records in groupby(story.records, role):
        if name not in pens:
            pens[name] = await bus.connect(name)
        await pens[name].append(
            [Draft(each.subject, f"e{each.revision}", each.payload) for each in records]
        )


@contextmanager
def served(folder: Path, past: Callable[[int], Story], ready_if: str) -> Iterator[str]:
    """Yield the address of a gateway whose ledger has a story that ends now.

    The gateway is ready if a regular expression matches its answer to `lines?start=1`. It runs on
    an event loop of its own, because the browser occupies the test's loop."""
    skip_unless_here()
    ready, done = threading.Event(), threading.Event()
    found: list[str] = []
    length_s = past(0).now_s

    async def serve() -> None:
        async with running_bus(folder / "nats") as bus:
            await append(bus, past(int(time.time()) - length_s))
            url = bus.server.url_for("gateway")
            async with ServiceProcess("gateway", url, "--listen", "127.0.0.1:0") as process:
                await process.ready()
                address = str((await process.logged("answering"))["console"]).rstrip("/")

                async def read() -> bool:
                    answer = await asyncio.to_thread(lines_at, address)
                    return re.search(ready_if, answer) is not None

                await until(read, f"the gateway to answer {ready_if}")
                found.append(address)
                ready.set()
                await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(150), "the gateway did not begin"
        yield found[0]
    finally:
        done.set()
        thread.join()


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a gateway that has learned from past waits."""
    with served(tmp_path_factory.mktemp("starts"), past, r'"median": ?"2') as address:
        yield address


def lines_at(address: str) -> str:
    """Return the gateway's groups of pending pods with forecasts, as JSON."""
    with urllib.request.urlopen(f"{address}/api/v1/lines?start=1", timeout=30) as answer:  # noqa: S310 - our own
        return str(answer.read().decode())


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_request_shows_when_it_should_start(
    browser: Browser, gate: str, size: tuple[int, int], theme: str
) -> None:
    """A request shows its band as times and as a bar, or else why its start is unknown."""
    with opened(browser, gate, size=size, theme=theme) as page:
        visit(page, "#/waiting")
        shown = {
            name: page.locator(".line", has_text=name).locator(".line-s").first
            for name in ("A30", "T4", "shut", "900,000")
        }
        bars = []
        for name in ("T4", "A30"):
            expect(shown[name]).to_have_text(EXPECTED)
            bar = shown[name].locator("rect").bounding_box()
            assert bar is not None
            bars.append((bar["x"], bar["x"] + bar["width"]))
        assert bars == sorted(bars)
        assert all(low + 2 < high for low, high in bars)
        expect(shown["shut"]).to_contain_text(START_UNKNOWN["limit"])
        expect(shown["900,000"].locator("rect")).to_have_count(0)
        expect(page.locator(".line-axis")).to_contain_text("now")
        if folder := os.environ.get("APPORTION_PICTURES"):  # to look at them
            page.screenshot(path=f"{folder}/starts-{size[0]}-{theme}.png")
        assert offences(page) == []


def test_the_past_has_no_forecast(browser: Browser, gate: str) -> None:
    """A page about a past moment shows no starts, and the live page shows them again."""
    with opened(browser, gate) as page:
        visit(page, f"#/waiting?at={json.loads(lines_at(gate))['revision']}")
        expect(page.locator(".line")).not_to_have_count(0)
        expect(page.locator(".line-s")).to_have_count(0)
        visit(page, "#/waiting")
        expect(page.locator(".line-s").first).to_be_visible()


MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {name: new, annotations: {nvidia.com/use-gputype: A30}}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 16000}}}
"""


def test_a_planned_pod_shows_when_it_would_start(browser: Browser, gate: str) -> None:
    """A plan forecasts when its pending pods would start, and the What if page shows that."""
    request = urllib.request.Request(  # noqa: S310 - our own gateway
        f"{gate}/api/v1/plan", json.dumps({"manifest": MANIFEST}).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own gateway
        [planned] = json.load(answer)["pods"]
    assert planned["outcome"] == "not-now"
    assert "" < planned["start"]["earliest"] <= planned["start"]["median"]
    with opened(browser, gate) as page:
        visit(page, f"#/whatif?manifest={quote(MANIFEST)}")
        expect(page.locator("#result")).to_contain_text(re.compile(r"Expected (now|in \d)"))
        assert offences(page) == []
