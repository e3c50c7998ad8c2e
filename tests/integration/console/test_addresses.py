"""Addresses that ask for what there is not: the page says so, and what it shows in its place."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.standalone import Standalone


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_what_there_is_not_is_said(browser: Browser, base: str, size: tuple[int, int]) -> None:
    """Neither a span nor a phase is put in the place of another one silently, nor is a pod."""
    with opened(browser, base, size=size) as page:
        visit(page, "#/reports?span=3h")
        expect(page.locator(".answer")).to_contain_text("no span 3h: it has 1h, 6h, 1d, 7d")
        expect(page.locator("[data-span='1d']")).to_have_attribute("aria-pressed", "true")
        assert offences(page) == []
        page.locator("[data-span='6h']").click()
        expect(page.locator(".answer")).not_to_contain_text("no span")
        visit(page, "#/pods?phase=sleeping")
        expect(page.locator(".answer")).to_contain_text(
            "no phase is called sleeping; waiting, placed, bound, allocated and rejected are."
        )
        expect(page.locator("#rows td.name")).not_to_have_count(0)
        expect(page.locator("[data-phase='']")).to_have_attribute("aria-pressed", "true")
        assert offences(page) == []
        page.locator("[data-phase='waiting']").click()
        expect(page.locator(".answer")).not_to_contain_text("no phase")
        visit(page, "#/whatif?pod=x/y")
        expect(page.locator("h1")).to_have_text("There is no pod x/y to help.")
        assert offences(page) == []
        visit(page, "#/whatif?pod=x/y&add=1x8xH100-80GB")
        expect(page.locator("h1")).to_have_text("There is no pod x/y to help.")


def test_a_change_for_a_pod_is_answered_about_that_pod(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """In the headline; a node that is added has no page, and nothing is asked of it."""
    pods = cluster.json("get", "pods")["items"]
    waits = next(f"{pod['namespace']}/{pod['name']}" for pod in pods if pod["reasons"])
    runs = next(f"{pod['namespace']}/{pod['name']}" for pod in pods if pod["node"])
    asked: list[str] = []
    with opened(browser, base) as page:
        page.on("request", lambda request: asked.append(request.url))
        visit(page, f"#/whatif?pod={waits}&policy=spread")
        expect(page.locator("h1")).to_contain_text(re.compile(f"^{re.escape(waits)} would still"))
        expect(page.locator("h1 a")).to_have_text(waits)
        visit(page, f"#/whatif?pod={runs}&policy=spread")
        expect(page.locator("h1")).to_contain_text(f"{runs} does not wait")
        assert offences(page) == []
    manifest = BIG.encode()
    cluster.json("submit", "-f", "-", "--wait", stdin=manifest, code=1)
    with opened(browser, base) as page:
        page.on("request", lambda request: asked.append(request.url))
        visit(page, "#/whatif?pod=default/big&add=1x16xH100-80GB")
        expect(page.locator("h1")).to_have_text("default/big would have a place, on added-1.")
        expect(page.locator(".answer")).to_contain_text("Nothing that runs would change")
        assert offences(page) == []
    cluster.json("delete", "big")
    assert not [url for url in asked if "added-" in url]


BIG = """\
apiVersion: v1
kind: Pod
metadata: {name: big}
spec:
  schedulerName: apportion
  priority: 9
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 12}}}
"""
