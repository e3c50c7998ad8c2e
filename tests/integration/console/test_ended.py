"""The page of a pod that has ended: it speaks of what was, and offers nothing that would help."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.console.test_pages import LATER
from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.standalone import Standalone

TOO_LARGE = LATER.replace(b"nvidia.com/gpu: 1", b"nvidia.com/gpu: 1, nvidia.com/gpumem: 900000")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_pod_that_ended_while_it_waited_waits_no_more(
    browser: Browser, base: str, cluster: Standalone, size: tuple[int, int]
) -> None:
    """Headline and story say that it ended without a place; nothing offers to help it."""
    name = f"in-vain-{size[0]}"
    manifest = TOO_LARGE.replace(b"later", name.encode())
    cluster.json("submit", "-f", "-", "--wait", stdin=manifest, code=1)
    with opened(browser, base, size=size) as page:
        visit(page, f"#/pod/default/{name}")
        expect(page.locator("h1")).to_contain_text("Waits for")
        expect(page.locator(".tl .open")).to_have_count(1)
        cluster.json("delete", name)
        page.reload()
        expect(page.locator(".crumb .chip")).to_have_text("ended")
        expect(page.locator("h1")).to_contain_text("Ended at ")
        expect(page.locator("h1")).to_contain_text("without ever having a place, after ")
        expect(page.locator("h1")).not_to_contain_text("Waits")
        expect(page.locator(".tl li").last).to_contain_text("Ended")
        expect(page.locator(".tl .open")).to_have_count(0)
        expect(page.get_by_role("heading", name="Why none fitted")).to_be_visible()
        expect(page.locator("a", has_text="Try a change")).to_have_count(0)
        assert offences(page) == []
