"""A user limited to some namespaces sees no name, link or page of other pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.browser.tenant import seen_by_a_tenant
from tests.support.standalone import Standalone

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: SPACE}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: AMOUNT}}}
"""


def pod(space: str, name: str, amount: int) -> bytes:
    """Return a manifest of a pod that requests `amount` MiB of a GPU's memory."""
    text = POD.replace("NAME", name).replace("SPACE", space)
    return text.replace("AMOUNT", str(amount)).encode()


@pytest.fixture(scope="module")
def shared(cluster: Standalone) -> Iterator[str]:
    """Yield the name of a node on which a pod of the namespace `theirs` runs. Another pod of that
    namespace is pending."""
    cluster.json("submit", "-f", "-", "--wait", stdin=pod("theirs", "runs", 1000))
    cluster.json("submit", "-f", "-", "--wait", stdin=pod("theirs", "waits", 900_000), code=1)
    pods = cluster.json("get", "pods", "--namespace", "theirs")["items"]
    yield next(each["node"] for each in pods if each["node"])
    cluster.json("delete", "theirs/runs", "theirs/waits")


@pytest.mark.parametrize("sees", ["default", "nobodys"])
def test_what_if_begins_with_no_pod_of_others(
    browser: Browser, base: str, shared: str, sees: str
) -> None:
    """The What if page never opens with a pod of another namespace."""
    with opened(browser, base) as page, seen_by_a_tenant(page, sees):
        visit(page, "#/whatif")
        expect(page.locator("h1")).to_contain_text("What would")
        expect(page.locator("#main")).not_to_contain_text("another namespace/")
        if sees == "nobodys":
            expect(page.locator("h1")).to_contain_text("Start with a manifest")


def test_who_is_not_told_has_no_dangling_name(
    browser: Browser, base: str, cluster: Standalone, shared: str
) -> None:
    """GPU panels and events do not name a pod of another namespace. Consecutive events of such pods
    are merged."""
    [device] = [
        each for each in cluster.json("get", "devices", "--node", shared)["items"]
        if any(holder["pod"] == "runs" for holder in each["holders"])
    ]  # fmt: skip
    with opened(browser, base) as page, seen_by_a_tenant(page, "nobodys"):
        visit(page, f"#/fleet?card={shared}:{device['index']}")
        panel = page.locator("#panel")
        expect(panel).to_contain_text("a pod in another namespace")
        expect(panel).not_to_contain_text("another namespace/")
        visit(page, "#/events")
        expect(
            page.locator("#rows .say", has_text="events in another namespace")
        ).not_to_have_count(0)
        assert not page.locator("#rows .say").evaluate_all(
            """rows => rows.some((row, at) => /another namespace/.test(row.textContent)
              && /another namespace/.test(rows[at + 1]?.textContent))"""
        )
        assert offences(page) == []


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_plan_that_moves_pods_of_others_is_shown(
    browser: Browser, base: str, shared: str, size: tuple[int, int]
) -> None:
    """To a tenant, plans and lists show pods of other namespaces without names or links."""
    asked: list[str] = []
    with opened(browser, base, size=size) as page, seen_by_a_tenant(page, "default"):
        page.on("request", lambda request: asked.append(request.url))
        for address in (f"#/whatif?lose={shared}", "#/waiting", "#/pods"):
            visit(page, address)
            expect(page.locator("#main")).to_contain_text("a pod in another namespace")
            expect(page.locator("#main")).not_to_contain_text("another namespace/")
            expect(page.locator("#main a[href*='another']")).to_have_count(0)
            assert offences(page) == [], address
    assert not [url for url in asked if "/-" in url or "another" in url]
