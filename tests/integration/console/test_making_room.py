"""While pods are evicted to make room for a pending pod, the queue and the pod's page show the
evictions first."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, skip_unless_here, visit
from tests.support.polling import wait_until
from tests.support.standalone import Standalone

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  priority: PRIORITY
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: CARDS}}}
"""


def pod(name: str, priority: int, cards: int = 2) -> bytes:
    """Return the manifest of a pod that requests `cards` of the node's two GPUs."""
    text = POD.replace("NAME", name).replace("PRIORITY", str(priority))
    return text.replace("CARDS", str(cards)).encode()


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a gateway. Two pods in its cluster are being evicted and never end."""
    skip_unless_here()
    data = Path(tmp_path_factory.mktemp("room")) / "data"
    options = ("--no-samples", "--fleet", "2xA100-80GB", "--nodes", "1")
    with Standalone(data, *options) as running:
        up = running.up()
        for name in ("low-a", "low-b"):
            up.json("submit", "-f", "-", "--wait", stdin=pod(name, -10, cards=1))
        watcher = up.processes()["watcher"]
        os.kill(watcher, signal.SIGSTOP)
        try:
            up.json("submit", "-f", "-", stdin=pod("high", 9))
            wait_until(lambda: len(up.json("why", "high")["evicts"]) == 2, "both to be evicted")
            yield str(json.loads((data / "connection.json").read_text())["gateway"])
        finally:
            os.kill(watcher, signal.SIGCONT)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_who_waits_shows_that_room_is_made(
    browser: Browser, leaving: str, size: tuple[int, int]
) -> None:
    """The queue's row of a pending pod shows that pods are being evicted for it. The pod's page
    shows the same, above the reasons."""
    with opened(browser, leaving, size=size) as page:
        visit(page, "#/waiting")
        expect(page.locator(".answer")).to_contain_text("making room for 1")
        row = page.locator(".line tbody tr", has_text="high")
        expect(row.get_by_text("after 2 evictions").locator("visible=true")).to_have_attribute(
            "title", "it will run on node-1 once default/low-a, default/low-b have left"
        )
        expect(row).to_contain_text("priority 9")
        assert offences(page) == []
        visit(page, "#/pod/default/high")
        headings = page.locator(".stack h2").all_inner_texts()
        assert headings[0].startswith("Making room")
        assert headings[1].startswith("Why no node fits")
        fact = page.locator(".tl li", has_text="Making room")
        expect(fact).to_have_count(1)
        for name in ("low-a", "low-b"):
            said = (
                f"default/{name} (priority -10) evicted from node-1 for default/high (priority 9)"
            )
            expect(fact).to_contain_text(said)
            expect(fact.locator(".rev")).to_have_count(2)
        assert offences(page) == []
        visit(page, "#/pod/default/low-a")
        expect(page.locator(".tl li", has_text="Evicted")).to_contain_text(
            "This pod (priority -10) was evicted from node-1 for default/high (priority 9)"
        )
        assert offences(page) == []
