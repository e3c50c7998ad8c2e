"""The page of a pod that has ended describes the past, and suggests no fix."""

from __future__ import annotations

import re

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
    """A pod deleted while pending is shown as ended without a placement, and no fix is offered."""
    name = f"in-vain-{size[0]}"
    manifest = TOO_LARGE.replace(b"later", name.encode())
    cluster.json("submit", "-f", "-", "--wait", stdin=manifest, code=1)
    with opened(browser, base, size=size) as page:
        visit(page, f"#/pod/default/{name}")
        expect(page.locator("h1")).to_contain_text("Pending for")
        expect(page.locator(".tl .open")).to_have_count(1)
        cluster.json("delete", name)
        page.reload()
        expect(page.locator(".crumb .chip")).to_have_text("ended")
        expect(page.locator("h1")).to_contain_text(re.compile(r"Ended at [\d: -]+ \(deleted by "))
        expect(page.locator("h1")).to_contain_text("never placed · pending for ")
        expect(page.locator("h1")).not_to_contain_text("Pending")
        expect(page.locator(".tl li").last).to_contain_text("Ended")
        expect(page.locator(".tl .open")).to_have_count(0)
        expect(page.get_by_role("heading", name="Why no node fit")).to_be_visible()
        expect(page.locator("a", has_text="Try a change")).to_have_count(0)
        assert offences(page) == []


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_pod_that_had_its_place_is_shown_as_it_was_at_its_end(
    browser: Browser, base: str, cluster: Standalone, size: tuple[int, int]
) -> None:
    """The page of a deleted pod shows who deleted the pod and which devices it had."""
    name = f"held-{size[0]}"
    manifest = LATER.replace(b"later", name.encode())
    cluster.json("submit", "-f", "-", "--wait", stdin=manifest)
    cluster.json("delete", name)
    [told] = cluster.json("why", name)["sentence"].split(". At revision ")[0].split("Z: ")[1:]
    assert told.startswith("deleted by ")
    failed: list[str] = []
    with opened(browser, base, size=size) as page:
        page.on("response", lambda got: failed.append(got.url) if got.status >= 400 else None)
        visit(page, f"#/pod/default/{name}")
        expect(page.locator("h1")).to_contain_text(
            re.compile(rf"Ended at [\d: -]+ \({re.escape(told)}\) · (ran|was placed) on\s")
        )
        held = page.locator("section", has=page.get_by_role("heading", name="Allocation"))
        expect(held).to_contain_text("before it ended")
        expect(held.locator(".gauge .own")).to_have_count(1)
        expect(held.locator(".legend")).to_contain_text("this pod")
        expect(held.locator(".c8").first).to_have_attribute("href", re.compile(r"&at=\d+$"))
        health = page.locator("section", has=page.get_by_role("heading", name="Health"))
        expect(health).to_contain_text("Healthy until the end")
        assert offences(page) == []
    assert failed == []
