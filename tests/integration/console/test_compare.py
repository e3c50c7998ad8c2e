"""On the page that compares two points in time, the headline, form and address always agree."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, shown, visit
from tests.support.browser.held import Held

TIME = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}")
DIFF = re.compile(r"#/events\?diff=([^,]*),([^,&]*)$")


def asked(page: Page) -> tuple[str, str]:
    """Return both points in time that the page's address contains."""
    found = DIFF.search(page.url)
    assert found, page.url
    return found[1], found[2]


def told(page: Page) -> list[str]:
    """Return both times that the form shows. Check that the headline shows the same times."""
    fields = [page.locator(f"#moments [name={name}]").input_value() for name in ("from", "to")]
    expect(page.locator("h1")).to_contain_text(f"between {fields[0]} and {fields[1]}")
    return fields


def compare(page: Page, **moments: str) -> list[str]:
    """Fill in the form, press Compare and return the times that the page then shows."""
    for name, text in moments.items():
        page.locator(f"#moments [name={name}]").fill(text)
    page.evaluate("() => { document.getElementById('main').dataset.shown = ''; }")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_function("() => document.getElementById('main').dataset.shown")
    return told(page)


def answered(page: Page) -> Any:
    """Return the gateway's diff for the points in time in the address."""
    begin, end = asked(page)
    answer = page.request.get("/api/v1/diff", params={"from": begin, "to": end})
    assert answer.ok, answer.text()
    return answer.json()


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_headline_and_fields_tell_the_same_moments(
    browser: Browser, base: str, size: tuple[int, int], zone: str
) -> None:
    """Headline and fields show the same times, in the browser's time zone, however the comparison
    was opened."""
    with opened(browser, base, size=size, zone=zone) as page:
        visit(page, "#/events")
        page.get_by_role("link", name="Compare…").click()
        expect(page.locator("h1")).to_contain_text("between")
        begin, end = told(page)
        assert TIME.fullmatch(begin)
        assert end == "now", "who was at now stays there"
        assert compare(page, **{"from": "#3", "to": "now"}) == ["#3", "now"]
        assert asked(page) == ("3", "now")
        begin, end = compare(page, **{"from": "-30s", "to": "-1s"})
        assert TIME.fullmatch(begin)
        assert TIME.fullmatch(end)
        assert compare(page, to=end) == [begin, end], "what stands there is a moment to write"
        address = page.evaluate("location.hash")
        visit(page, f"{address}&x=")
        assert told(page) == [begin, end], "and so is the address, for whoever opens it"
        assert offences(page) == []


def test_a_time_of_day_is_meant_as_the_page_shows_it(browser: Browser, base: str) -> None:
    """A time typed into a field is in the browser's time zone. A time in an address is in UTC, as
    with `--at`."""
    with opened(browser, base, zone="Asia/Tokyo") as page:
        visit(page, "#/events?diff=2020-01-02T03:00,now")
        assert told(page) == ["2020-01-02 12:00:00", "now"]
        assert compare(page, **{"from": "2020-01-02 08:00"}) == ["2020-01-02 08:00:00", "now"]
        assert asked(page) == ("2020-01-01T23:00:00Z", "now")
        visit(page, "#/events?diff=2020-01-02T03:00:00+02:00,now")
        assert asked(page) == ("2020-01-02T01:00:00Z", "now")
        expect(page.locator("#forms")).to_contain_text("Asia/Tokyo")


def test_what_the_moments_have_come_to_is_said_once(browser: Browser, base: str) -> None:
    """For each of two compared times, the page shows the revision and time of the newest event up
    to that time."""
    with opened(browser, base) as page:
        visit(page, "#/events?diff=-0s,-0s")
        answer = answered(page)
        said = page.locator(".answer .sub")
        expect(said).to_contain_text(f"Compares #{answer['from']['revision']:,} (")
        expect(said).to_contain_text("the newest events at these times")
        visit(page, "#/events?diff=1,2")
        answer = answered(page)
        time = answer["to"]["time"].replace("T", " ")[:19]
        expect(said).to_contain_text(f"with #2 ({time})")
        expect(said).not_to_contain_text("at these times")
        expect(page.get_by_text(time)).to_have_count(1)


@pytest.mark.parametrize("begin", ["1", "2020-01-01"])
def test_what_the_first_event_told_is_said_to_count_as_there_before(
    browser: Browser, base: str, begin: str
) -> None:
    """A comparison from the first event on says that this event is not listed as a change."""
    with opened(browser, base) as page:
        visit(page, f"#/events?diff={begin},2")
        first, second = (
            page.request.get(f"/api/v1/log/{each}").json()["row"]["sentence"] for each in (1, 2)
        )
        said = page.locator(".answer .sub")
        expect(said).to_contain_text(f"the first event: {first}")
        assert second.split()[0] in page.locator(".dg").inner_text()
        assert first.split()[0] not in page.locator(".dg .mini").inner_text().split()
        visit(page, "#/events?diff=2,3")
        expect(said).not_to_contain_text("first event")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_bar_and_its_keys_move_the_later_moment(
    browser: Browser, base: str, size: tuple[int, int]
) -> None:
    """The time bar and its keys change the later time of a comparison. Other pages then show that
    time."""
    with opened(browser, base, size=size) as page:
        visit(page, "#/events?diff=1,now")
        expect(page.locator("#t-range")).to_have_attribute("aria-valuetext", re.compile("now$"))
        expect(page.locator("#forms")).to_contain_text("time bar moves the later moment")
        page.locator("#t-range").focus()
        page.keyboard.press("Home")
        expect(page.locator("h1")).to_contain_text("Nothing changed between #1 and #1")
        assert asked(page) == ("1", "1")
        expect(page.locator("html")).to_have_class("past")
        page.keyboard.press("n")
        expect(page.locator("h1")).to_contain_text("between #1 and now")
        assert told(page) == ["#1", "now"]
        visit(page, "#/events?diff=1,3&at=2")
        assert asked(page) == ("1", "3")
        expect(page.locator("#t-clock")).to_have_text(told_time(page))
        page.keyboard.press("[")
        expect(page.locator("h1")).to_contain_text("between #1 and #1")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("move the later moment")
        page.keyboard.press("Escape")
        page.keyboard.press("1")
        expect(page.locator("#main")).to_have_attribute("data-shown", "#/fleet?at=1")


def told_time(page: Page) -> str:
    """Return the time of day at the end of the compared range, from the gateway's answer."""
    return str(answered(page)["to"]["time"])[11:19]


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_moment_that_cannot_be_is_mended_where_it_stands(
    browser: Browser, base: str, size: tuple[int, int]
) -> None:
    """For an invalid time the headline shows the gateway's error. The field with the invalid time
    keeps its text."""
    with opened(browser, base, size=size) as page:
        for moments, name, problem in (
            ("yesterdy,2", "from", "'yesterdy' is not a time"),
            (",2", "from", "is missing"),
            ("2,999999999", "to", "the ledger ends at"),
            ("5,2", "from", ", which is later than to"),
        ):
            visit(page, f"#/events?diff={moments}")
            expect(page.locator("h1")).to_contain_text(problem)
            expect(page.locator("#moments [aria-invalid]")).to_have_attribute("name", name)
            if "yesterdy" in moments:  # the forms that the fields take, not those of a verb
                expect(page.locator(".sub")).to_contain_text("Write 14:20, ")
            assert offences(page) == [], moments
        assert compare(page, **{"from": "1"}) == ["#1", "#2"]


def test_each_list_of_the_answer_has_its_place_on_the_page(browser: Browser, base: str) -> None:
    """The comparison page has one section for each non-empty list in the gateway's answer."""
    headings = {
        "devices": "GPUs", "nodes": "Nodes", "waiting": "Pending pods", "limits": "Limits",
        "policy": "Policy", "configuration": "Configuration", "placements": "Placements",
    }  # fmt: skip
    with opened(browser, base) as page:
        visit(page, "#/events?diff=1,now")
        answer = answered(page)
        lists = {name for name, value in answer.items() if isinstance(value, list)}
        assert lists == set(headings)
        assert answer["waiting"], "somebody waits in this cluster"
        waits = page.locator(".dg", has_text="Pending pods").locator("li").first
        expect(waits).to_contain_text(re.compile(r"\S\s+\w+ by \S"))
        for name, heading in headings.items():
            there = page.locator(".dg h2", has_text=heading)
            expect(there).to_have_count(1 if answer[name] else 0)


def test_compare_asks_again_what_is_now(browser: Browser, base: str) -> None:
    """Pressing Compare again with the same times sends a new request, because "now" has changed."""
    with opened(browser, base) as page:
        visit(page, "#/events?diff=1,now")
        with page.expect_response(re.compile(r"/api/v1/diff\?")):
            page.get_by_role("button", name="Compare").click()
        assert told(page) == ["#1", "now"]


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_keyboard_stays_where_it_was(
    browser: Browser, base: str, size: tuple[int, int]
) -> None:
    """After a comparison the focus stays on the pressed button, or in the field in which Enter was
    pressed."""
    with opened(browser, base, size=size) as page:
        visit(page, "#/events?diff=1,3")
        page.locator("#moments [name=from]").fill("#2")
        button = page.get_by_role("button", name="Compare")
        button.focus()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("between #2 and #3")
        expect(button).to_be_focused()
        field = page.locator("#moments [name=to]")
        field.fill("tomorrow")
        field.press("Enter")
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_be_focused()


@pytest.mark.parametrize("last", ["3", "999999999"], ids=["answered", "refused"])
def test_what_is_typed_while_the_answer_comes_stays(browser: Browser, base: str, last: str) -> None:
    """When a response arrives while the user types, the form keeps its text, caret and focus."""
    with opened(browser, base) as page:
        visit(page, "#/events?diff=1,2")
        held = Held(page, re.compile(r"/api/v1/diff\?"))
        address = f"#/events?diff=1,{last}"
        page.evaluate("address => { location.hash = address; }", address)
        asked_for = held.come()
        expect(page.locator("h1")).to_contain_text("Comparing #1 with #")
        field = page.locator("#moments [name=from]")
        field.press("Control+a")
        page.keyboard.type("#")
        asked_for.continue_()
        shown(page, address)
        page.keyboard.type("2")
        expect(field).to_be_focused()
        expect(field).to_have_value("#2")
        page.unroute_all()
        assert compare(page, to="#3") == ["#2", "#3"]


def test_on_a_phone_the_form_is_as_wide_as_the_page(browser: Browser, base: str) -> None:
    """On a phone the comparison's fields and button are as wide as the page."""
    with opened(browser, base, size=NARROW) as page:
        visit(page, "#/events?diff=1,3")
        right = "each => each.getBoundingClientRect().right"
        edge = page.locator("table.card").evaluate(right)
        for each in page.locator("#moments input, #moments button").all():
            assert abs(each.evaluate(right) - edge) <= 1
        assert offences(page) == []
