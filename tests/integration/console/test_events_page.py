"""The events page always shows the newest events, and new ones do not move the keyboard focus."""

import re
from datetime import UTC, datetime, timedelta

from playwright.sync_api import Browser, Page, Route, expect

from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.browser.held import Held
from tests.support.browser.settled import settled
from tests.support.polling import wait_until
from tests.support.standalone import Standalone

BEGUN = datetime(2026, 11, 20, 14, 20, tzinfo=UTC)
FRAME_MS = 50
KNOWN = """async () => (await import("/console/js/moment.js")).moment.newest"""
REVISIONS = "each => each.map(row => Number(row.dataset.first))"


def newest(page: Page) -> int:
    """Return the newest revision of the ledger."""
    return int(page.request.get("/api/v1/revision").json()["revision"])


def knows(page: Page, revision: int) -> None:
    """Wait until the page knows that the ledger has reached `revision`."""
    wait_until(lambda: page.evaluate(KNOWN) >= revision, f"word of revision {revision}")


def in_small_pages(page: Page, size: int = 10) -> None:
    """Make the page load few events at a time, so that even a small ledger has older events to
    load."""

    def few(route: Route) -> None:
        route.continue_(url=route.request.url.replace("limit=150", f"limit={size}"))

    page.route(re.compile(r"/api/v1/log\?"), few)


def under(route: Route) -> re.Pattern[str]:
    """Return a pattern for log requests with the same `before` revision as the request of
    `route`."""
    [before] = re.findall(r"before=\d+", route.request.url)
    return re.compile(rf"/api/v1/log\?.*{before}\b")


def revisions(page: Page) -> list[int]:
    """Return the revisions of the events in the table from top to bottom."""
    return [int(each) for each in page.locator("#rows [data-revision]").evaluate_all(REVISIONS)]


def older_than(page: Page, revision: int) -> None:
    """Wait until the page shows events before this revision."""
    wait_until(lambda: revisions(page)[-1] < revision, f"events before {revision}")


def test_what_is_typed_last_is_answered(browser: Browser, base: str) -> None:
    """The page shows the answer to the last text typed, even if the answer to an earlier text
    arrives later."""
    with opened(browser, base) as page:
        visit(page, "#/events")
        # a new event lets the page repeat a request, so only those for the earlier text are held
        asked = Held(page, re.compile(r"/api/v1/log\?.*text=bound"))
        page.locator("#q").fill("bound")
        bound = asked.come()
        page.locator("#q").fill("reports")
        row = page.locator("tbody tr .say").first
        expect(row).to_contain_text("reports")
        with page.expect_response(lambda response: "text=bound" in response.url) as late:
            bound.continue_()
        settled(page, late.value)
        expect(row).to_contain_text("reports")


def test_older_events_are_those_of_the_list_that_they_are_under(
    browser: Browser, base: str
) -> None:
    """If the filter changes while older events load, the page ignores the response with these
    events. No event appears twice."""
    with opened(browser, base) as page:
        in_small_pages(page)
        visit(page, "#/events")
        before = revisions(page)
        asked = Held(page, re.compile(r"/api/v1/log\?(?!.*text=).*before="))
        for _ in range(2):
            page.locator("#older").click()
        once, twice = asked.come(), asked.come()
        asked.end(Route.fallback)  # if the page loaded its list again, it also repeats its request
        once.fallback()
        older_than(page, before[-1])
        with page.expect_response(under(twice)) as late:
            twice.fallback()
        settled(page, late.value)
        assert revisions(page) == sorted(set(revisions(page)), reverse=True)
        asked = Held(page, re.compile(r"/api/v1/log\?(?!.*text=).*before="))
        page.locator("#older").click()
        older = asked.come()
        page.locator("#q").fill("t4-1 reports")
        expect(page.locator("#answer [role=status]")).to_have_text(re.compile("matching$"))
        row = page.locator("tbody tr .say")
        count = row.count()
        with page.expect_response(under(older)) as late:
            older.fallback()
        settled(page, late.value)
        expect(row).to_have_count(count)


def test_older_events_of_a_list_that_was_replaced(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """If the page loads its list again while older events load, it then loads the events before the
    new list."""
    with opened(browser, base) as page:
        in_small_pages(page)
        visit(page, "#/events")
        before = revisions(page)
        asked = Held(page, re.compile(r"/api/v1/log\?.*before="))
        page.locator("#older").click()
        older = asked.come()
        assert cluster.run("cordon", "t4-1", "--reason", "replaced").returncode == 0
        try:
            page.locator("#pill").click()
            asked.end(Route.fallback)
            wait_until(lambda: revisions(page)[0] > before[0], "the new event")
            older.fallback()
            older_than(page, before[-1])
            assert revisions(page) == sorted(set(revisions(page)), reverse=True)
        finally:
            assert cluster.run("uncordon", "t4-1").returncode == 0


def test_the_keyboard_stays_on_older(browser: Browser, base: str) -> None:
    """Enter on "Older" loads more events and keeps the focus on the button until no older events
    are left."""
    with opened(browser, base) as page:
        in_small_pages(page)
        visit(page, "#/events")
        page.locator("#older").focus()
        for _ in range(2):
            last = revisions(page)[-1]
            page.keyboard.press("Enter")
            older_than(page, last)
            expect(page.locator("#older")).to_be_focused()


def test_the_keyboard_goes_on_where_there_is_nothing_older(browser: Browser, base: str) -> None:
    """After the user loads the oldest events, the focus moves to the first of these events. On a
    phone the focus moves to the page."""
    for size, there in ((WIDE, "#rows a:focus"), (NARROW, "#rows a:focus, main:focus")):
        with opened(browser, base, size=size) as page:
            in_small_pages(page, 40)
            visit(page, "#/events")
            older = page.locator("#older")
            expect(older).to_be_visible()
            while older.count():
                last = revisions(page)[-1]
                older.press("Enter")
                older_than(page, last)
            expect(page.locator(there)).to_have_count(1)


def test_new_events_do_not_drop_older_ones(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """After the user loads older events, the page keeps them and only counts new events. A press of
    "Older" also works while the page loads new events."""
    with opened(browser, base) as page:
        in_small_pages(page)
        visit(page, "#/events")
        page.mouse.move(5, 5)
        before = revisions(page)
        updates = Held(page, re.compile(r"/api/v1/log\?(?!.*before=)"))
        assert cluster.run("cordon", "t4-1", "--reason", "first").returncode == 0
        try:
            update = updates.come()
            page.locator("#older").click()
            older_than(page, before[-1])
            with page.expect_response(re.compile(r"/api/v1/log\?(?!.*before=)")) as late:
                update.fallback()
            settled(page, late.value)
            both = revisions(page)
            assert both[: len(before)] == before
        finally:
            assert cluster.run("uncordon", "t4-1").returncode == 0
        expect(page.locator("#pill")).to_be_visible()
        assert revisions(page) == both


def test_the_last_of_a_burst_is_shown(browser: Browser, base: str, cluster: Standalone) -> None:
    """After many events arrive at once, the page shows the newest one, not only the first ones."""
    with opened(browser, base) as page:
        page.clock.install(time=BEGUN)
        page.clock.pause_at(BEGUN + timedelta(seconds=1))
        visit(page, "#/events?q=t4-1")
        page.mouse.move(5, 5)
        page.clock.run_for(1000)
        row = page.locator("tbody tr").first
        assert cluster.run("cordon", "t4-1", "--reason", "first").returncode == 0
        try:
            knows(page, newest(page))
            page.clock.run_for(FRAME_MS)
            expect(row).to_contain_text("first")
        finally:
            assert cluster.run("uncordon", "t4-1").returncode == 0
        knows(page, newest(page))
        page.clock.run_for(FRAME_MS)
        page.clock.run_for(1000)
        expect(row).to_contain_text("removed their own cordon")


def test_the_keyboard_stays_on_a_kind(browser: Browser, base: str, cluster: Standalone) -> None:
    """The filter button of an event kind keeps the keyboard focus when it is pressed, and when new
    events arrive."""
    with opened(browser, base) as page:
        visit(page, "#/events")
        page.mouse.move(5, 5)
        chip = page.locator("#kinds [data-kind=pod]")
        chip.focus()
        for pressed in ("false", "true"):
            chip.press("Enter")
            expect(chip).to_have_attribute("aria-pressed", pressed)
            expect(chip).to_be_focused()
        assert cluster.run("cordon", "t4-1", "--reason", "chip").returncode == 0
        try:
            expect(page.locator("#rows")).to_contain_text("chip")
            expect(chip).to_be_focused()
        finally:
            assert cluster.run("uncordon", "t4-1").returncode == 0
