"""A late response never undoes what the user has done since the request."""

import re

from playwright.sync_api import Browser, Page, expect

from tests.support.browser.chromium import opened, shown, visit
from tests.support.browser.held import Held
from tests.support.browser.settled import settled

CARD = re.compile(r"/api/v1/nodes/h100-1$")
REVISION = re.compile(r"/api/v1/revision$")


def go(page: Page, address: str) -> None:
    """Open an address without waiting for its page."""
    page.evaluate("address => { location.hash = address; }", address)


def test_two_pages_of_one_moment_are_both_of_that(browser: Browser, base: str) -> None:
    """If a user leaves a page while it loads a past time, the next page shows that time too."""
    with opened(browser, base) as page:
        newest = page.request.get("/api/v1/revision").json()["revision"]
        visit(page, f"#/pods?at={newest}")
        then = page.locator("h1").inner_text()
        visit(page, "#/pods?at=1")
        expect(page.locator("h1")).not_to_have_text(then)
        moments = Held(page, re.compile("/api/v1/moment"))
        go(page, f"#/waiting?at={newest}")
        late = moments.come()
        go(page, f"#/pods?at={newest}")
        late.continue_()
        shown(page, f"#/pods?at={newest}")
        expect(page.locator("h1")).to_have_text(then)


def test_a_card_that_is_kept_is_asked_for_no_more(browser: Browser, base: str) -> None:
    """If the user removes a GPU from the What if page while its id is being looked up, the late
    response does not bring the GPU back."""
    with opened(browser, base) as page:
        cards = Held(page, CARD)
        page.goto("/#/whatif?lose=h100-1:2")
        late = cards.come()
        page.get_by_label("Remove h100-1:2").click()
        expect(page.locator("h1")).to_contain_text("What would")
        with page.expect_response(CARD) as answered:
            late.continue_()
        settled(page, answered.value)
        expect(page.locator("h1")).to_contain_text("What would")
        expect(page.locator(".working")).to_have_count(0)


def test_what_is_named_next_stays_while_a_card_gets_its_id(browser: Browser, base: str) -> None:
    """When a late response replaces NODE:NUMBER with the GPU's id, text typed since then stays."""
    with opened(browser, base) as page:
        visit(page, "#/whatif")
        field = page.locator("#lose")
        cards = Held(page, CARD)
        field.fill("h100-1:2")
        field.press("Enter")
        late = cards.come()
        page.keyboard.type("t4")
        late.continue_()
        expect(page.locator(".tag.lose")).to_contain_text("GPU-")
        page.keyboard.type("-1")
        expect(field).to_be_focused()
        expect(field).to_have_value("t4-1")


def test_a_list_of_places_leaves_the_next_dialog_alone(browser: Browser, base: str) -> None:
    """A late response for the closed "Go To" dialog does not affect the next dialog."""
    with opened(browser, base) as page:  # which hears what a page throws
        visit(page, "#/pods")
        revisions = Held(page, REVISION)
        page.keyboard.press("Control+k")
        late = revisions.come()
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        with page.expect_response(re.compile(r"/api/v1/pods\?")):
            late.continue_()
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        page.locator("#pal").fill("t4-1")
        expect(page.locator("#pal-rows")).to_contain_text("t4-1")


def test_who_leaves_while_a_manifest_is_typed_takes_nothing_along(
    browser: Browser, base: str
) -> None:
    """If the user leaves the What if page while typing a manifest, the next page's address contains
    nothing of the manifest."""
    with opened(browser, base) as page:
        page.clock.install()
        visit(page, "#/pods")
        visit(page, "#/whatif")
        page.locator("#manifest").press_sequentially("kind: Pod")
        page.evaluate("history.back()")
        shown(page, "#/pods")
        page.clock.run_for(2000)
        assert page.url.endswith("#/pods")
