"""Pages of somebody who sees some namespaces: what is not told has no name, no link and no page."""

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
    """The manifest of one that takes so much of a card."""
    text = POD.replace("NAME", name).replace("SPACE", space)
    return text.replace("AMOUNT", str(amount)).encode()


@pytest.fixture(scope="module")
def shared(cluster: Standalone) -> Iterator[str]:
    """A node on which a pod of another namespace runs; one of that waits as well."""
    cluster.json("submit", "-f", "-", "--wait", stdin=pod("theirs", "runs", 1000))
    cluster.json("submit", "-f", "-", "--wait", stdin=pod("theirs", "waits", 900_000), code=1)
    pods = cluster.json("get", "pods", "--namespace", "theirs")["items"]
    yield next(each["node"] for each in pods if each["node"])
    cluster.json("delete", "theirs/runs", "theirs/waits")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_plan_that_moves_pods_of_others_is_shown(
    browser: Browser, base: str, shared: str, size: tuple[int, int]
) -> None:
    """Nothing is asked for by a name that is not told, and every page says whose it is not."""
    asked: list[str] = []
    with opened(browser, base, size=size) as page, seen_by_a_tenant(page, "default"):
        page.on("request", lambda request: asked.append(request.url))
        for address in (f"#/whatif?lose={shared}", "#/waiting", "#/pods"):
            visit(page, address)
            expect(page.locator("#main")).to_contain_text("a pod of another namespace")
            expect(page.locator("#main")).not_to_contain_text("another namespace/")
            expect(page.locator("#main a[href*='another']")).to_have_count(0)
            assert offences(page) == [], address
    assert not [url for url in asked if "/-" in url or "another" in url]
