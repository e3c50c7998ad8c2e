"""A pod that a limit keeps out: no page counts nodes, at which nobody looked."""

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import opened, visit
from tests.support.standalone import Standalone

LIMITED = """\
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: shut}
spec: {capability: {volcano.sh/vgpu-number: 1}}
---
apiVersion: v1
kind: Pod
metadata: {name: kept-out, annotations: {volcano.sh/queue-name: shut}}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 1000}}}
"""
SAID = "its queue shut allows 1 of volcano.sh/vgpu-number in all, and it needs 2"


def heading(page: Page, words: str) -> Locator:
    """A heading of that text, whatever stands small behind it."""
    return page.get_by_role("heading", name=words)


@pytest.mark.timeout(180)
def test_a_limit_is_named_and_no_node_is_counted(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """On the page of the pod, in its line, before a question is asked, and in the answer."""
    cluster.run("submit", "--wait", "-f", "-", stdin=LIMITED.encode())
    with opened(browser, base) as page:
        visit(page, "#/pod/default/kept-out")
        expect(heading(page, "Why it waits and what would unblock it")).to_have_count(1)
        expect(page.locator(".stack .causes > li")).to_contain_text(SAID)
        expect(page.locator("#main")).not_to_contain_text("0 nodes")
        assert offences(page) == []
        visit(page, "#/waiting")
        line = page.locator(".line", has_text=SAID)
        expect(line.get_by_role("heading", name="Why not yet")).to_have_count(1)
        expect(line.locator(".causes b")).to_have_count(0)
        visit(page, "#/whatif?pod=default/kept-out")
        expect(heading(page, "Why it waits a limit keeps it out")).to_have_count(1)
        visit(page, "#/whatif?pod=default/kept-out&add=1x4xT4")
        expect(page.locator("#main")).not_to_contain_text("0 nodes")
    assert cluster.run("delete", "kept-out").returncode == 0
