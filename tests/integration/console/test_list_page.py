"""On pages without live updates the newest request wins, in whatever order the responses arrive."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.browser.chromium import opened, visit
from tests.support.browser.held import Held
from tests.support.browser.settled import painted, settled, shows_newer
from tests.support.standalone import Standalone

PODS = re.compile(r"/api/v1/pods\?")
USAGE = re.compile("/api/v1/report/usage")
REFUSED = {"error": "nobody knows", "fix": "ask again"}


@pytest.mark.parametrize("refused", [False, True], ids=["answered", "refused"])
def test_a_report_has_the_rows_of_its_heading(browser: Browser, base: str, refused: bool) -> None:
    """If a user switches a report from node to queue, a late response for nodes changes nothing."""
    with opened(browser, base) as page:
        visit(page, "#/reports")
        asked = Held(page, USAGE)
        page.locator("[data-by=node]").click()
        by_node = asked.come()
        page.locator("[data-by=queue]").click()
        asked.come().continue_()
        expect(page.locator("thead th").first).to_have_text("Queue")
        with page.expect_response(lambda response: "by=node" in response.url) as late:
            if refused:
                by_node.fulfill(status=400, json=REFUSED)
            else:
                by_node.continue_()
        settled(page, late.value)
        expect(page.locator("thead th").first).to_have_text("Queue")
        expect(page.locator("tbody").first).to_contain_text("training")
        expect(page.locator("[data-by=queue]")).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#chart svg")).to_be_visible()


def test_a_chart_is_there_though_the_page_grew_while_it_was_asked_for(
    browser: Browser, base: str
) -> None:
    """A chart appears even if the window is resized while the chart's data is loading."""
    with opened(browser, base) as page:
        visit(page, "#/reports")
        before = page.locator("#chart svg").get_attribute("width")
        asked = Held(page, USAGE)
        page.locator("[data-by=node]").click()
        by_node = asked.come()
        page.set_viewport_size({"width": 1000, "height": 800})
        expect(page.locator("#chart svg")).not_to_have_attribute("width", before or "")
        by_node.continue_()
        expect(page.locator("thead th").first).to_have_text("Node")
        expect(page.locator("#chart svg")).to_be_visible()


def test_a_moment_that_was_played_is_not_drawn_over_now(browser: Browser, base: str) -> None:
    """A late response for a past time does not replace the current view after the user returns to
    now."""
    with opened(browser, base) as page:
        visit(page, "#/pods?at=2")
        expect(page.locator("h1")).to_have_text("No live pods")
        asked = Held(page, PODS)
        page.locator("#t-play").click()
        played = asked.come()
        page.locator("#t-live").click()
        asked.come().continue_()
        expect(page.locator("h1")).to_contain_text("live pods ·")
        words = page.locator("h1").inner_text()
        with page.expect_response(played.request.url) as late:
            played.continue_()
        settled(page, late.value)
        expect(page.locator("h1")).to_have_text(words)


def test_what_is_typed_while_a_moment_is_asked_for_stays(browser: Browser, base: str) -> None:
    """Text typed while a page loads stays, with focus and cursor, and triggers no shortcut."""
    with opened(browser, base) as page:
        visit(page, "#/pods?at=2")
        painted(page)
        asked = Held(page, PODS)
        page.keyboard.press("n")
        now = asked.come()
        page.keyboard.press("/")
        page.keyboard.type("hai")
        page.keyboard.press("ArrowLeft")
        now.continue_()
        expect(page.locator("h1")).to_contain_text("live pods ·")
        page.keyboard.type("m")
        expect(page.locator("#q")).to_have_value("hami")
        expect(page.locator("#q")).to_be_focused()
        expect(page.locator("#matching")).to_contain_text("matching, newest first")
        assert page.evaluate("location.hash") == "#/pods?q=hami"


@contextmanager
def newer(page: Page, cluster: Standalone) -> Iterator[Locator]:
    """Cordon a node, and yield the button that offers to show newer entries."""
    assert cluster.run("cordon", "t4-1", "--reason", "newer").returncode == 0
    try:
        button = page.locator("#newer")
        expect(button).to_be_visible()
        yield button
    finally:
        assert cluster.run("uncordon", "t4-1").returncode == 0


def test_the_keyboard_stays_on_what_a_report_is_by(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A grouping that the user picks for a report keeps the focus. Tab moves to the next
    grouping."""
    with opened(browser, base) as page:
        visit(page, "#/reports")
        with newer(page, cluster):
            page.locator("[data-by=queue]").press("Enter")
            expect(page.locator("thead th").first).to_have_text("Queue")
            expect(page.locator("[data-by=queue]")).to_be_focused()
            page.keyboard.press("Tab")
            expect(page.locator("[data-by=user]")).to_be_focused()


@pytest.mark.parametrize("name", ["pods", "pod/default/hami-pod", "waiting", "reports", "doctor"])
def test_what_is_newer_comes_and_the_keyboard_is_on_the_page(
    browser: Browser, base: str, cluster: Standalone, name: str
) -> None:
    """When the user presses the button for newer entries, the button disappears and the focus moves
    to the page."""
    with opened(browser, base) as page:
        visit(page, f"#/{name}")
        with newer(page, cluster) as button:
            with shows_newer(page):
                button.press("Enter")
            expect(page.locator("main")).to_be_focused()
