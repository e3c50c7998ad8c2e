"""Pages that are asked for once: of several questions the newest is answered, whoever is first."""

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser.chromium import ANSWERS, BUSY, opened, visit
from tests.support.browser.held import Held
from tests.support.browser.settled import settled
from tests.support.standalone import Standalone

PODS = re.compile(r"/api/v1/pods\?")
USAGE = re.compile("/api/v1/report/usage")
FLEET = re.compile("/api/v1/fleet")
LOG = re.compile(r"/api/v1/log\?")
REFUSED = {"error": "nobody knows", "fix": "ask again"}
LATE = {"error": "the past did not answer within 30 s", "fix": "ask again: it goes on"}


@pytest.mark.parametrize("refused", [False, True], ids=["answered", "refused"])
def test_a_report_has_the_rows_of_its_heading(browser: Browser, base: str, refused: bool) -> None:
    """By queue, though the answer by node, or that there is none, comes later; with its chart."""
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
    """What is drawn anew meanwhile is the chart before it."""
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
    """Whoever goes back to now stays there, though the past is answered last."""
    with opened(browser, base) as page:
        visit(page, "#/pods?at=2")
        expect(page.locator("h1")).to_have_text("No pod is live.")
        asked = Held(page, PODS)
        page.locator("#t-play").click()
        played = asked.come()
        page.locator("#t-live").click()
        asked.come().continue_()
        expect(page.locator("h1")).to_contain_text("pods are live")
        words = page.locator("h1").inner_text()
        with page.expect_response(played.request.url) as late:
            played.continue_()
        settled(page, late.value)
        expect(page.locator("h1")).to_have_text(words)


def test_what_is_typed_while_a_moment_is_asked_for_stays(browser: Browser, base: str) -> None:
    """The keyboard stays in the field, and at its place there: no later letter is a key."""
    with opened(browser, base) as page:
        visit(page, "#/pods?at=2")
        asked = Held(page, PODS)
        page.keyboard.press("n")
        now = asked.come()
        page.keyboard.press("/")
        page.keyboard.type("hai")
        page.keyboard.press("ArrowLeft")
        now.continue_()
        expect(page.locator("h1")).to_contain_text("pods are live")
        page.keyboard.type("m")
        expect(page.locator("#q")).to_have_value("hami")
        expect(page.locator("#q")).to_be_focused()
        expect(page.locator("#matching")).to_contain_text("match, newest first")
        assert page.evaluate("location.hash") == "#/pods?q=hami"


@pytest.mark.parametrize(
    ("name", "pattern", "then"),
    [
        ("pods", PODS, "pods are live"),
        ("fleet", FLEET, "cards are granted"),
        ("reports", USAGE, "GPU hours were granted"),
        ("events", LOG, "events since"),
    ],
)
def test_a_moment_without_an_answer_says_so(
    browser: Browser, base: str, name: str, pattern: re.Pattern[str], then: str
) -> None:
    """The page of the moment before does not stand there as if it were of this one."""
    with opened(browser, base, answers=(*ANSWERS, BUSY)) as page:
        visit(page, f"#/{name}?at=2")
        asked = Held(page, pattern)
        page.keyboard.press("n")
        asked.come().fulfill(status=503, json=LATE)
        expect(page.locator("h1")).to_have_text("The past did not answer within 30 s.")
        expect(page.locator("main")).to_contain_text("Ask again: it goes on.")
        page.locator("#again").click()
        asked.come().continue_()
        expect(page.locator("h1")).to_contain_text(then)


def test_a_report_without_an_answer_says_so(browser: Browser, base: str) -> None:
    """Whoever asked by the keyboard asks again by it, for the same."""
    with opened(browser, base, answers=(*ANSWERS, BUSY)) as page:
        visit(page, "#/reports")
        asked = Held(page, USAGE)
        page.locator("[data-by=node]").press("Enter")
        asked.come().fulfill(status=503, json=LATE)
        expect(page.locator("#again")).to_be_focused()
        page.keyboard.press("Enter")
        asked.come().continue_()
        expect(page.locator("thead th").first).to_have_text("Node")


def test_the_keyboard_stays_on_what_a_report_is_by(browser: Browser, base: str) -> None:
    """Tab goes on to the next one."""
    with opened(browser, base) as page:
        visit(page, "#/reports")
        page.locator("[data-by=queue]").press("Enter")
        expect(page.locator("thead th").first).to_have_text("Queue")
        expect(page.locator("[data-by=queue]")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.locator("[data-by=user]")).to_be_focused()


def test_what_is_newer_comes_and_the_keyboard_stays_in_the_page(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """Though the button that was pressed has nothing more to offer, and is gone."""
    with opened(browser, base) as page:
        visit(page, "#/waiting")
        assert cluster.run("cordon", "t4-1", "--reason", "newer").returncode == 0
        try:
            newer = page.locator(".newer")
            expect(newer).to_be_visible()
            newer.press("Enter")
            expect(newer).to_be_hidden()
            expect(page.locator("main :focus")).to_have_count(1)
        finally:
            assert cluster.run("uncordon", "t4-1").returncode == 0
