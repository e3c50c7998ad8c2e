"""If a page's address names something unknown, the page names the bad value and what it shows
instead."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.polling import wait_until
from tests.support.standalone import Standalone


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_what_there_is_not_is_said(browser: Browser, base: str, size: tuple[int, int]) -> None:
    """If an address has an unknown time span, phase or pod, the page quotes it and stays usable."""
    with opened(browser, base, size=size) as page:
        visit(page, "#/reports?span=3h")
        expect(page.locator(".answer")).to_contain_text("“3h”. Use 1h, 6h, 1d or 7d; showing 1d")
        expect(page.locator("[data-span='1d']")).to_have_attribute("aria-pressed", "true")
        assert offences(page) == []
        page.locator("[data-span='6h']").click()
        expect(page.locator(".answer")).not_to_contain_text("3h")
        visit(page, "#/pods?phase=sleeping")
        expect(page.locator(".answer")).to_contain_text(
            "“sleeping”. Use pending, placed, bound, allocated or rejected."
        )
        expect(page.locator("#rows td.name")).not_to_have_count(0)
        expect(page.locator("[data-phase='']")).to_have_attribute("aria-pressed", "true")
        assert offences(page) == []
        page.locator("[data-phase='pending']").click()
        expect(page.locator(".answer")).not_to_contain_text("sleeping")
        visit(page, "#/whatif?pod=x/y")
        expect(page.locator("h1")).to_have_text("No pod x/y")
        assert offences(page) == []
        visit(page, "#/whatif?pod=x/y&add=1x8xH100-80GB")
        expect(page.locator("h1")).to_have_text("No pod x/y")


def test_a_change_for_a_pod_is_answered_about_that_pod(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """If the What if page is opened for one pod, its headline is about that pod. The page requests
    no data about nodes that exist only in the simulation."""
    pods = cluster.json("get", "pods")["items"]
    waits = next(f"{pod['namespace']}/{pod['name']}" for pod in pods if pod["reasons"])
    runs = next(f"{pod['namespace']}/{pod['name']}" for pod in pods if pod["node"])
    asked: list[str] = []
    with opened(browser, base) as page:
        page.on("request", lambda request: asked.append(request.url))
        visit(page, f"#/whatif?pod={waits}&policy=spread")
        expect(page.locator("h1")).to_contain_text(
            re.compile(f"^{re.escape(waits)} would stay pending")
        )
        expect(page.locator("h1 a")).to_have_text(waits)
        visit(page, f"#/whatif?pod={runs}&policy=spread")
        expect(page.locator("h1")).to_contain_text(f"{runs} is not pending")
        assert offences(page) == []
    manifest = BIG.encode()
    cluster.json("submit", "-f", "-", "--wait", stdin=manifest, code=1)
    wait_until(
        lambda: "big" in {pod["name"] for pod in cluster.json("get", "pods")["items"]},
        "the gateway to fold the pod",
    )
    with opened(browser, base) as page:
        page.on("request", lambda request: asked.append(request.url))
        visit(page, "#/whatif?pod=default/big&add=1x16xH100-80GB")
        expect(page.locator("h1")).to_have_text("default/big would be placed on added-1")
        expect(page.locator(".answer")).to_contain_text("1 pending pod would start: default/big")
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
