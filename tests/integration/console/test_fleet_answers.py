"""Responses that arrive while the fleet page is in use are applied in order, and do not disturb a
click."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser.chromium import opened, shown, visit
from tests.support.browser.held import Held
from tests.support.browser.settled import settled
from tests.support.standalone import Standalone

CHANGES = re.compile(r"/api/v1/fleet\?after=")


def to_the_beginning(page: Page) -> None:
    """Move the time bar to the first event, and wait until the page shows that time."""
    was = page.locator("h1").inner_text()
    page.locator("#t-range").focus()
    page.keyboard.press("Home")
    expect(page.locator("h1")).not_to_have_text(was)


def test_the_past_is_never_taken_for_now(browser: Browser, base: str) -> None:
    """Live data that arrives late never overwrites a view of the past. When the user returns to
    now, the whole fleet is loaded again."""
    with opened(browser, base) as page:
        visit(page, "")
        now = page.locator("h1 a").first.inner_text()  # what follows says the use, which goes on
        changes = Held(page, CHANGES)
        late = changes.come()
        to_the_beginning(page)
        past = page.locator("h1").inner_text()
        with page.expect_response(late.request.url) as answer:
            late.continue_()
        settled(page, answer.value)
        expect(page.locator("h1")).to_have_text(past)
        page.unroute_all()
        page.keyboard.press("n")
        expect(page.locator("#t-ago")).to_have_text("live")
        expect(page.locator("h1 a").first).to_have_text(now)


def test_a_panel_of_the_past_tells_nothing_of_later(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A panel that shows a node at an earlier time ignores late responses with live data."""
    with opened(browser, base) as page:
        [[first, *_], *_] = page.request.get("/api/v1/fleet?at=1").json()["nodes"]
        assert cluster.run("cordon", first, "--reason", "dust").returncode == 0
        assert cluster.run("uncordon", first).returncode == 0
        details = Held(page, re.compile(f"/api/v1/nodes/{first}$"))
        visit(page, f"#/fleet?card={first}")
        late = details.come()
        to_the_beginning(page)
        story = page.locator("#panel .mini")
        expect(story.locator("li")).to_have_count(1)
        with page.expect_response(late.request.url) as answer:
            late.continue_()
        settled(page, answer.value)
        expect(story).not_to_contain_text("cordoned")


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("", "h1 a"),
        ("", "#notes a"),
        ("#/fleet?q=node:t4-1", "#matches-list a"),
        ("#/fleet?card=t4-1:0", "#panel .acts a"),
    ],
    ids=["heading", "notes", "list", "panel"],
)
def test_a_press_lasts_over_an_answer(
    browser: Browser, base: str, address: str, where: str
) -> None:
    """A response that arrives during a mouse press does not change where the pressed link leads."""
    with opened(browser, base) as page:
        visit(page, address)
        if "list" in where:
            page.locator("#matches-count").click()
        link = page.locator(where).first
        goal = link.get_attribute("href")
        link.hover()
        page.mouse.down()
        with page.expect_response(CHANGES) as answer:
            expect(link).to_be_focused()
        settled(page, answer.value)
        page.mouse.up()
        assert goal
        shown(page, goal)


def test_the_keyboard_stays_on_what_moves(browser: Browser, base: str, cluster: Standalone) -> None:
    """A link keeps the focus when other rows are inserted before it, and when the heading or panel
    that contains it changes."""
    assert cluster.run("cordon", "h100-2", "--reason", "dust").returncode == 0
    try:
        with opened(browser, base) as page:
            visit(page, "#/fleet?show=cordoned&card=h100-1")
            page.locator("#matches-count").click()
            card = page.get_by_role("link", name="h100-2 device 7")
            card.focus()
            assert cluster.run("cordon", "h100-1", "--reason", "dust").returncode == 0
            expect(page.locator("#matches-list")).to_contain_text("h100-1 device 7")
            expect(card).to_be_focused()
            # The panel loads again after the list has changed, and redraws its receipts.
            expect(page.locator("#panel .mini li").first).to_contain_text("cordoned by")
            receipt = page.locator("#panel .rev").first
            told = receipt.evaluate(HOLD)
            assert cluster.run("uncordon", "h100-1").returncode == 0
            expect(receipt).not_to_have_text(told)
            expect(page.locator("#panel .rev:focus")).to_have_text(told)
            waiting = page.locator('h1 a[href="#/waiting"]')
            waiting.focus()
            assert cluster.run("uncordon", "h100-2").returncode == 0
            expect(page.locator("h1")).not_to_contain_text("cordoned")
            expect(waiting).to_be_focused()
    finally:
        cluster.run("uncordon", "h100-1")
        cluster.run("uncordon", "h100-2")


def test_the_keyboard_leaves_a_panel_that_goes(browser: Browser, base: str) -> None:
    """When the user moves to a time before a node existed, the node's panel closes and the focus
    moves to the GPU picture."""
    with opened(browser, base) as page:
        [[first, *_]] = page.request.get("/api/v1/fleet?at=1").json()["nodes"]
        visit(page, f"#/fleet?card={'h100-2' if first == 'h100-1' else 'h100-1'}")
        page.locator("#panel .acts a").focus()
        page.locator("#t-range").evaluate(TO_THE_BEGINNING)
        expect(page.locator("#panel")).to_be_hidden()
        expect(page.locator("#cards")).to_be_focused()


def test_a_panel_is_updated_while_the_time_changes(browser: Browser, base: str) -> None:
    """If live data arrives after the user has moved to a time before a node existed, the panel asks
    for the node at that time. The answer is not an error: the panel closes with the next fleet."""
    with opened(browser, base) as page:
        [[first, *_]] = page.request.get("/api/v1/fleet?at=1").json()["nodes"]
        visit(page, f"#/fleet?card={'h100-2' if first == 'h100-1' else 'h100-1'}")
        live = Held(page, CHANGES).come()
        moment = Held(page, re.compile(r"/api/v1/moment\?"))
        page.locator("#t-range").evaluate(TO_THE_BEGINNING)
        late = moment.come()
        with page.expect_response(lambda each: "/api/v1/nodes/" in each.url and each.status == 404):
            live.continue_()
        late.continue_()
        expect(page.locator("#panel")).to_be_hidden()


HOLD = """link => {
  link.focus();
  return link.innerText;
}"""
TO_THE_BEGINNING = """range => {
  range.value = range.min;
  range.dispatchEvent(new Event("input"));
}"""
"""The slider moves, and the keyboard is elsewhere."""
