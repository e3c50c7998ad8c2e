"""While the What if page evaluates a scenario, it shows that it is working. Afterwards it reports
how the evaluation ended."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.browser.held import Held, listen
from tests.support.polling import wait_until

WORKING = "Computing the plan…"
PLAN = re.compile(r"/api/v1/plan")
WAITS = re.compile(r"/api/v1/(lines|pods/.*/why)")
LOSE = "#/whatif?lose=t4-1"
BEGUN = datetime(2026, 11, 20, 14, 20, tzinfo=UTC)


def without_time(page: Page) -> None:
    """Stop the page's clock, so that time passes only when the test advances it."""
    page.clock.install(time=BEGUN)
    page.clock.pause_at(BEGUN + timedelta(seconds=1))


def works(page: Page, words: str = WORKING) -> None:
    """Check that the page shows and announces `words`, in the place where the result will be."""
    expect(page.locator("h1")).to_have_text(words)
    expect(page.locator("h1")).to_be_in_viewport(ratio=1)
    expect(page.locator("#result")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#said")).to_have_attribute("role", "status")
    expect(page.locator("#said")).to_contain_text(words.removesuffix("…"))
    assert offences(page) == []


def ended(page: Page, words: str) -> None:
    """Check that the answer contains `words`, is announced, and shows no progress any more."""
    expect(page.locator("h1")).to_contain_text(words)
    expect(page.locator("#result")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#said")).to_contain_text(words)
    expect(page.locator(".working, [data-stop]")).to_have_count(0)
    assert offences(page) == []


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_that_is_opened_with_work_says_that_it_works(
    browser: Browser, base: str, size: tuple[int, int], theme: str
) -> None:
    """A What if page that is opened by a link shows at once that it is working."""
    with opened(browser, base, size=size, theme=theme) as page:
        without_time(page)
        plans = Held(page, PLAN)
        page.goto(f"/{LOSE}")
        works(page)
        plans.come().continue_()
        ended(page, "would move")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_press_is_seen_at_once(browser: Browser, base: str, size: tuple[int, int]) -> None:
    """The page shows at once that a press was received, and marks the old result as the previous
    one."""
    with opened(browser, base, size=size) as page:
        without_time(page)
        visit(page, LOSE)
        plans = Held(page, PLAN)
        page.locator("[data-policy=spread]").scroll_into_view_if_needed()
        page.locator("[data-policy=spread]").click()
        works(page)
        expect(page.locator(".working")).to_contain_text("previous result")
        plans.come().continue_()
        ended(page, "would move")
        expect(page.locator("#same")).to_contain_text("--policy spread")


def test_who_waits_is_looked_for_in_sight(browser: Browser, base: str) -> None:
    """The What if page shows its form at once while the first pod of the queue is still loading."""
    with opened(browser, base) as page:
        without_time(page)
        waits = Held(page, WAITS)
        page.goto("/#/whatif")
        works(page, "Loading the queue…")
        expect(page.locator("#manifest")).to_be_editable()
        for _ in range(2):
            waits.come().continue_()
        ended(page, "the first in the queue")


def test_long_work_says_so_and_for_how_long(browser: Browser, base: str) -> None:
    """While an evaluation takes long, the What if page counts the seconds. Screen readers announce
    the wait once."""
    with opened(browser, base) as page:
        without_time(page)
        plans = Held(page, PLAN)
        page.goto(f"/{LOSE}")
        works(page)
        expect(page.locator("#long")).to_be_empty()
        page.clock.fast_forward(12_000)
        expect(page.locator("#since")).to_have_text("12 s")
        expect(page.locator("#since")).to_have_attribute("aria-hidden", "true")
        expect(page.locator("#long")).to_contain_text("queued behind other plans")
        expect(page.locator("#said")).to_contain_text("Still working: queued")
        assert offences(page) == []
        plans.come().continue_()
        ended(page, "would move")


def test_work_that_is_stopped_is_ended_and_can_be_asked_for_again(
    browser: Browser, base: str
) -> None:
    """The Stop button of the What if page cancels the request, even one that has not been sent yet.
    Retry sends the request again."""
    with opened(browser, base) as page:
        without_time(page)
        visit(page, "#/whatif")
        plans = Held(page, PLAN)
        page.locator("#manifest").press_sequentially("kind: Pod")
        page.clock.run_for(1000)
        plans.come()
        works(page)
        with page.expect_event("requestfailed", lambda request: "plan" in request.url):
            page.get_by_role("button", name="Stop").click()
        ended(page, "Stopped")
        again = page.get_by_role("button", name="Retry")
        expect(again).to_be_focused()
        again.press("Enter")
        plans.come().continue_()
        expect(page.locator("h1")).to_contain_text("Manifest")


def are_plans(page: Page, withdrawn: list[str], count: int) -> bool:
    """Wait until at least `count` requests were cancelled.

    Return True if exactly `count` requests were cancelled, and all of them were plans."""

    def told() -> bool:
        listen(page)
        return len(withdrawn) >= count

    wait_until(told, "the question before to be withdrawn")
    return len(withdrawn) == count and all(PLAN.search(each) for each in withdrawn)


def test_whoever_asks_anew_or_leaves_waits_for_nothing(browser: Browser, base: str) -> None:
    """If the user changes the inputs or opens another page, the previous request is cancelled."""
    with opened(browser, base) as page:
        plans = Held(page, PLAN)
        withdrawn: list[str] = []
        page.on("requestfailed", lambda request: withdrawn.append(request.url))
        page.goto(f"/{LOSE}")
        plans.come()
        page.locator("[data-policy=spread]").click()
        plans.come()
        assert are_plans(page, withdrawn, 1)
        page.keyboard.press("2")
        expect(page.locator("h1")).to_contain_text("live pods ·")
        assert are_plans(page, withdrawn, 2)
        page.locator("[data-phase=pending]").click()
        expect(page.locator("[data-phase=pending]")).to_have_attribute("aria-pressed", "true")


def line(error: str, status: int) -> str:
    """Return the last line of a streamed plan that failed with this error and status."""
    return f'{{"error":{{"error":"{error}","fix":"retry later"}},"status":{status}}}\n'


TOLD: list[tuple[str, str]] = [
    (line("the plan took longer than 60 s", 503), "The plan took longer than 60 s"),
    ('{"progress":{"step":"without","done":1,"of":9}}\n', "closed the connection"),
]


@pytest.mark.parametrize(("body", "words"), TOLD, ids=["too long", "torn"])
def test_an_answer_that_does_not_come_can_be_asked_for_again(
    browser: Browser, base: str, body: str, words: str
) -> None:
    """When an evaluation fails, the What if page shows the gateway's error if there is one. Retry
    sends the request again."""
    with opened(browser, base, size=NARROW) as page:
        plans = Held(page, PLAN)
        page.goto(f"/{LOSE}")
        plans.come().fulfill(body=body, content_type="application/x-ndjson")
        ended(page, words)
        expect(page.locator("#result .again")).to_contain_text(words)
        page.get_by_role("button", name="Retry").click()
        plans.come().continue_()
        ended(page, "would move")


def test_what_is_refused_is_not_asked_again(browser: Browser, base: str) -> None:
    """If the gateway refuses a what-if, the page suggests a correction instead of a retry."""
    with opened(browser, base) as page:
        visit(page, "#/whatif?lose=t4-11")
        ended(page, "t4-11")
        expect(page.locator("#result")).to_contain_text("Did you mean t4-1?")
        expect(page.get_by_role("button", name="Retry")).to_have_count(0)


def test_every_page_that_is_asked_for_has_a_sign_of_it(browser: Browser, base: str) -> None:
    """Every page shows an indicator until it has loaded. A comparison also shows the two times that
    are compared."""
    with opened(browser, base) as page:
        visit(page, "#/waiting")
        diffs = Held(page, re.compile(r"/api/v1/diff"))
        page.goto("/#/events?diff=1,now")
        expect(page.locator("h1")).to_have_text("Comparing #1 with now…")
        shown = "() => getComputedStyle(document.getElementById('main'), '::before').content"
        assert page.evaluate(shown) == '""'
        diffs.come().continue_()
        expect(page.locator("h1")).to_contain_text("between #1 and now")
        assert page.evaluate(shown) == "none"


def test_a_page_that_is_not_there_yet_has_a_skeleton(browser: Browser, base: str) -> None:
    """A loading page shows a skeleton, and no content of the previous page."""
    with opened(browser, base) as page:
        scripts = Held(page, re.compile(r"/console/js/app\.js"))
        page.goto("/#/events", wait_until="commit")
        expect(page.locator(".skeleton")).to_be_visible()
        scripts.come().continue_()
        expect(page.locator("h1")).to_contain_text("events since")
        usage = Held(page, re.compile(r"/api/v1/report/usage"))
        page.locator('#nav [data-page="reports"]').click()
        answer = usage.come()
        expect(page.locator(".skeleton")).to_be_visible()
        expect(page.locator("#main h1")).to_have_count(0)
        answer.continue_()
        expect(page.locator("h1")).to_contain_text("GPU-hours")
        expect(page.locator(".skeleton")).to_have_count(0)
