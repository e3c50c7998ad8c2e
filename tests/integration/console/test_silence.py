"""While the gateway is down, the pages show for how long. Later they recover without a reload."""

import re

from playwright.sync_api import Browser, Route, expect

from tests.support.browser.chromium import WIDE, shown

ALONE = "delete window.SharedWorker"  # so that the page itself polls for changes
LIGHT = "document.querySelector('#t-live i')"
COLOUR = f"() => getComputedStyle({LIGHT}).backgroundColor"
NO_ANSWER = re.compile(r"^offline since \d\d:\d\d:\d\d$")


def test_nothing_is_live_while_there_is_no_answer(browser: Browser, base: str) -> None:
    """While the gateway does not answer, no page claims to be live. Once the gateway is back, the
    pages load by themselves."""
    gone = False

    def pass_on(route: Route) -> None:
        if gone:
            route.abort()
        elif "/api/v1/revision" in route.request.url:  # at once, without long polling
            route.continue_(url=route.request.url.partition("?")[0])
        else:
            route.continue_()

    context = browser.new_context(base_url=base, viewport={"width": WIDE[0], "height": WIDE[1]})
    try:
        context.add_init_script(ALONE)
        page = context.new_page()
        page.route("**/*", pass_on)
        page.goto("/#/pods")
        expect(page.locator("#t-ago")).to_have_text("live")
        expect(page.locator("h1")).to_contain_text("live")
        well = page.evaluate(COLOUR)
        gone = True
        expect(page.locator("#t-ago")).to_have_text(NO_ANSWER)
        assert page.evaluate(COLOUR) != well
        for key, address in (("7", "#/doctor"), ("3", "#/waiting")):  # with modules still to come
            page.keyboard.press(key)
            shown(page, address)
            expect(page.locator("h1")).to_have_text("Gateway unreachable")
        gone = False
        expect(page.locator("#t-ago")).to_have_text("live")
        expect(page.locator("h1")).to_contain_text(re.compile(r"needs?\s"))
        assert page.evaluate(COLOUR) == well
    finally:
        context.close()
