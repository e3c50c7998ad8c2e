"""While no pod can be placed, the console's badge is not green and names the cause."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser.chromium import opened, visit
from tests.support.standalone import Standalone

COLOURS = """() => ["#dot", "#t-live i"].map(
  each => getComputedStyle(document.querySelector(each)).backgroundColor)"""


@contextmanager
def full(cluster: Standalone) -> Iterator[str]:
    """Keep the stream full during a `with` block, and yield the text that the badge should show."""
    assert cluster.run("ledger", "resize", "--max-bytes", "4096").returncode == 0
    try:
        yield "ledger full"
    finally:
        assert cluster.run("ledger", "resize", "--max-bytes", "-1").returncode == 0


@contextmanager
def stopped(cluster: Standalone, service: str) -> Iterator[str]:
    """Suspend the service during a `with` block. Yield the text that the badge must show."""
    pid = cluster.processes()[service]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield f"no {service}"
    finally:
        os.kill(pid, signal.SIGCONT)


def frozen(page: Page, words: str) -> None:
    """Wait until the badge shows `words` and is not green."""
    expect(page.locator("html.frozen")).to_have_count(1, timeout=90_000)  # checked every 40 s
    expect(page.locator("#link")).to_have_text(words)


@pytest.mark.parametrize("cause", ["ledger", "scheduler", "intake"])
def test_the_badge_is_green_only_while_pods_can_be_placed(
    browser: Browser, base: str, cluster: Standalone, cause: str
) -> None:
    """The badge is not green while the ledger is full or a scheduler or intake is missing."""
    with opened(browser, base) as page, opened(browser, base) as later:
        visit(page, "#/fleet")
        expect(page.locator("#link")).to_have_text(base.removeprefix("http://"))
        green = page.evaluate(COLOURS)
        with full(cluster) if cause == "ledger" else stopped(cluster, cause) as words:
            frozen(page, words)
            assert set(page.evaluate(COLOURS)).isdisjoint(green)
            visit(later, "#/doctor")
            frozen(later, words)
        expect(page.locator("html.frozen")).to_have_count(0)
        expect(page.locator("#link")).to_have_text(base.removeprefix("http://"))
        assert page.evaluate(COLOURS) == green
