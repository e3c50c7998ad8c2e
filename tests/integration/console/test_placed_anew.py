"""The page of an evicted and resubmitted pod says from when it counts the pending time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from apportion.core.explain.text.vocabulary import STORY
from tests.integration.console.test_making_room import pod
from tests.support.browser.chromium import WIDE, opened, skip_unless_here, visit
from tests.support.polling import wait_until
from tests.support.standalone import Standalone

pytestmark = pytest.mark.slow


def test_the_wait_is_that_of_the_newest_of_the_name(browser: Browser, tmp_path: Path) -> None:
    """If a pod was evicted and submitted again, the page counts its pending time from the new
    submission, and says so."""
    skip_unless_here()
    options = ("--no-samples", "--fleet", "2xA100-80GB", "--nodes", "1")
    with Standalone(tmp_path / "data", *options) as running:
        up = running.up()

        def runs(name: str) -> bool:
            said = up.json("get", "pods")["items"]
            return {each["name"]: each["phase"] for each in said}.get(name) == "allocated"

        up.json("submit", "-f", "-", "--wait", stdin=pod("low", 0))
        up.json("submit", "-f", "-", stdin=pod("high", 9))
        wait_until(lambda: runs("high"), "the important one to run")
        up.json("delete", "high")
        wait_until(lambda: runs("low"), "the one that waited to run again")
        base = str(json.loads((tmp_path / "data" / "connection.json").read_text())["gateway"])
        with opened(browser, base, size=WIDE) as page:
            visit(page, "#/pod/default/low")
            expect(page.locator(".answer")).to_contain_text("resubmitted at")
            expect(page.locator(".tl b", has_text="Evicted")).to_have_count(1)
            visit(page, "#/pod/default/high")
            expect(page.locator(".tl b", has_text=STORY["PodRefused"])).not_to_have_count(0)
            expect(page.locator(".answer")).not_to_contain_text("at once")
