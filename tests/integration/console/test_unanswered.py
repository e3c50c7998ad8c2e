"""If a request fails, the page shows the error in place of its content, unless a newer request
succeeds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.browser.chromium import ANSWERS, opened, visit
from tests.support.browser.held import Held, intercept
from tests.support.browser.settled import settled
from tests.support.standalone import Standalone

PODS = re.compile(r"/api/v1/pods\?")
USAGE = re.compile("/api/v1/report/usage")
DIFF = re.compile("/api/v1/diff")
MOMENT = re.compile("/api/v1/moment")
FLEET = re.compile("/api/v1/fleet")
LOG = re.compile(r"/api/v1/log\?")
OLDER = re.compile(r"/api/v1/log\?(?!.*text=).*before=")
LATE = {"error": "the query about the past took longer than 30 s", "fix": "retry; it continues"}
SAID = "The query about the past took longer than 30 s."
BUSY, PROXY, TORN = "status of 503", "status of 502", "net::ERR_FAILED"
SAMPLE_MS = 5_000


@contextmanager
def troubled(browser: Browser, base: str) -> Iterator[Page]:
    """Yield a page whose browser may report failed requests without failing the test."""
    with opened(browser, base, answers=(*ANSWERS, BUSY, PROXY, TORN)) as page:
        yield page


@contextmanager
def cordoned(cluster: Standalone) -> Iterator[None]:
    """Cordon a node during a `with` block, so that live pages receive an event."""
    assert cluster.run("cordon", "t4-1", "--reason", "unanswered").returncode == 0
    try:
        yield
    finally:
        assert cluster.run("uncordon", "t4-1").returncode == 0


def refuse(route: Route) -> None:
    """Answer a request with 503, as a gateway does after a timeout."""
    route.fulfill(status=503, json=LATE)


def first(page: Page, pattern: re.Pattern[str]) -> Held:
    """Hold the next request that matches the pattern, and let later requests pass."""
    return Held(page, pattern, times=1)


def refuse_late(page: Page, route: Route) -> None:
    """Answer a request with 503, and wait until the page has processed the answer."""
    with page.expect_response(lambda response: response.request == route.request) as late:
        refuse(route)
    settled(page, late.value)


@pytest.mark.parametrize(
    ("name", "pattern", "then"),
    [
        ("pods", PODS, "live pods ·"),
        ("fleet", FLEET, "allocated"),
        ("reports", USAGE, "GPU-hours since"),
        ("events", LOG, "events since"),
    ],
)
def test_a_moment_without_an_answer(
    browser: Browser, base: str, name: str, pattern: re.Pattern[str], then: str
) -> None:
    """When a request for another time fails, the page shows the error instead of the previous
    time's content."""
    with troubled(browser, base) as page:
        visit(page, f"#/{name}?at=2")
        intercept(page, pattern, refuse)
        page.keyboard.press("n")
        expect(page.locator("h1")).to_have_text(SAID)
        expect(page.locator("main")).to_contain_text("Retry; it continues.")
        page.unroute(pattern)
        page.locator("#again").click()
        expect(page.locator("h1")).to_contain_text(then)


@pytest.mark.parametrize("pattern", [PODS, MOMENT], ids=["pods", "moment"])
def test_a_moment_that_is_played(browser: Browser, base: str, pattern: re.Pattern[str]) -> None:
    """If a request fails while the user plays a time range, playing stops at that time and does not
    jump to now."""
    with troubled(browser, base) as page:
        visit(page, "#/pods?at=2")
        intercept(page, pattern, refuse)
        page.locator("#t-play").click()
        expect(page.locator("h1")).to_have_text(SAID)
        expect(page.locator("#t-play")).to_have_attribute("aria-label", "Play")
        assert "at=" in page.evaluate("location.hash")


@pytest.mark.parametrize("status", [502, 503])
def test_a_report(browser: Browser, base: str, status: int) -> None:
    """If a report fails to load, the focus moves to the Retry button, which loads it again."""
    with troubled(browser, base) as page:
        visit(page, "#/reports")
        intercept(page, USAGE, lambda route: route.fulfill(status=status, body="<html>"))
        page.locator("[data-by=node]").press("Enter")
        expect(page.locator("h1")).to_have_text(f"The gateway returned HTTP {status}.")
        expect(page.locator("#again")).to_be_focused()
        page.unroute(USAGE)
        page.keyboard.press("Enter")
        expect(page.locator("thead th").first).to_have_text("Node")
        expect(page.locator("main")).to_be_focused()


def test_one_question_that_is_torn(browser: Browser, base: str, cluster: Standalone) -> None:
    """If the connection breaks during a request, the page reports the failure and retries it."""
    with troubled(browser, base) as page:
        visit(page, "#/pods?at=2")
        intercept(page, PODS, lambda route: route.abort())
        page.keyboard.press("n")
        expect(page.locator("h1")).to_have_text("Gateway unreachable")
        expect(page.locator("main")).to_contain_text("This page retries automatically.")
        page.unroute(PODS)
        with cordoned(cluster):
            expect(page.locator("h1")).to_contain_text("live pods ·")


@pytest.mark.parametrize(("name", "pattern"), [("events", LOG), ("pods", PODS)])
def test_what_is_typed_goes_on(
    browser: Browser, base: str, name: str, pattern: re.Pattern[str]
) -> None:
    """If a request fails while the user types in the filter, no keystroke is lost or misread."""
    with troubled(browser, base) as page:
        visit(page, f"#/{name}?at=2")
        asked = Held(page, pattern)
        page.keyboard.press("n")
        now = asked.come()
        page.keyboard.press("/")
        page.keyboard.type("hi")
        page.keyboard.press("ArrowLeft")
        refuse(now)
        asked.end(refuse)
        expect(page.locator("h1")).to_have_text(SAID)
        page.keyboard.type("am")
        page.keyboard.press("End")
        page.keyboard.type(" 2")
        expect(page.locator("#q")).to_have_value("hami 2")
        assert page.evaluate("location.hash") == f"#/{name}?q=hami+2"
        page.unroute(pattern)
        again = Held(page, pattern)
        page.keyboard.press("Enter")
        found = again.come()
        page.keyboard.type("1 ")
        page.keyboard.press("ArrowLeft")
        found.continue_()
        again.end(Route.continue_)
        expect(page.locator("#rows")).to_be_visible()
        page.keyboard.type("4")
        expect(page.locator("#q")).to_have_value("hami 214 ")
        assert page.evaluate("location.hash") == f"#/{name}?q=hami+214"


def test_what_is_typed_into_another_page(browser: Browser, base: str) -> None:
    """If a user goes back to a page that fails to load, the page shows no search field."""
    with troubled(browser, base) as page:
        visit(page, "#/reports")
        visit(page, "#/pods")
        page.locator("#q").focus()
        intercept(page, USAGE, refuse)
        page.go_back()
        expect(page.locator("h1")).to_have_text(SAID)
        expect(page.locator("#again")).to_be_focused()
        expect(page.locator("#q")).to_have_count(0)


def test_what_is_typed_into_compare(browser: Browser, base: str) -> None:
    """When a comparison fails, the form keeps the typed text and its button tries again."""
    with troubled(browser, base) as page:
        asked = Held(page, DIFF)
        page.goto("/#/events?diff=3,6")
        compared = asked.come()
        field = page.locator("[name=from]")
        field.fill("#4")
        refuse(compared)
        expect(page.locator("h1")).to_have_text(SAID)
        expect(field).to_be_focused()
        field.press("Enter")
        asked.come().continue_()
        expect(page.locator("h1")).to_contain_text("between #4 and #6")


def test_older_events_of_another_list(browser: Browser, base: str) -> None:
    """The page ignores a failed request for older events of a previous filter."""
    with troubled(browser, base) as page:
        page.route(LOG, lambda route: route.continue_(url=route.request.url.replace("=150", "=10")))
        visit(page, "#/events")
        asked = first(page, OLDER)
        page.locator("#older").click()
        older = asked.come()
        page.locator("#q").fill("t4-1 reports")
        matching = page.locator("#answer [role=status]")
        expect(matching).to_have_text(re.compile("matching$"))
        refuse_late(page, older)
        expect(matching).to_have_text(re.compile("matching$"))
        expect(page.locator("#q")).to_be_focused()


def test_an_older_question_of_the_fleet(browser: Browser, base: str, cluster: Standalone) -> None:
    """The failure of an older fleet request is ignored once a newer request for the same time has
    been answered."""
    with troubled(browser, base) as page:
        visit(page, "#/fleet?at=2")
        asked = first(page, FLEET)
        page.keyboard.press("n")
        now = asked.come()
        with cordoned(cluster):
            expect(page.locator("h1")).to_contain_text("cordoned")
            refuse_late(page, now)
            expect(page.locator("h1")).to_contain_text("cordoned")


@pytest.mark.parametrize(("name", "pattern"), [("events", LOG), ("fleet", FLEET)])
def test_what_takes_the_place_of_a_question(
    browser: Browser, base: str, cluster: Standalone, name: str, pattern: re.Pattern[str]
) -> None:
    """If a background refresh replaces a request and then fails, the page shows the error."""
    with troubled(browser, base) as page:
        visit(page, f"#/{name}?at=5")
        page.mouse.move(5, 5)
        intercept(page, pattern, refuse)
        asked = first(page, pattern)
        page.keyboard.press("n")
        now = asked.come()
        with cordoned(cluster):
            expect(page.locator("h1")).to_have_text(SAID)
            now.abort()


def test_what_is_used_without_an_answer(browser: Browser, base: str) -> None:
    """When a background refresh fails, the page keeps its content and tries again."""
    with troubled(browser, base) as page:
        page.clock.install()
        visit(page, "#/fleet")
        intercept(page, FLEET, refuse)
        for _ in range(2):
            with page.expect_response(FLEET) as sample:
                page.clock.run_for(SAMPLE_MS)
            settled(page, sample.value)
        expect(page.locator("h1")).to_contain_text("allocated")
