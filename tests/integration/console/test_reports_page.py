"""Tests of the Reports page: reports by pod label, and the chart of lost hours."""

import re

from playwright.sync_api import Browser, Route, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.standalone import Standalone

LABELLED = b"""\
apiVersion: v1
kind: Pod
metadata: {name: labelled, labels: {team: vision}}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}}
"""


def test_a_report_is_by_a_label(browser: Browser, base: str, cluster: Standalone) -> None:
    """A report by label loads once the user has entered a label key. It has one row for each value
    of that label."""
    assert cluster.run("submit", "--wait", "-f", "-", stdin=LABELLED).returncode == 0
    try:
        for size in (WIDE, NARROW):
            with opened(browser, base, size=size) as page:
                visit(page, "#/reports")
                page.get_by_role("button", name="Label").click()
                key = page.get_by_label("Label key")
                expect(key).to_be_focused()
                expect(page.locator("thead th").first).to_have_text("Namespace")
                assert offences(page) == []
                page.keyboard.type("team")
                page.keyboard.press("Enter")
                expect(page.locator("thead th").first).to_have_text("team")
                expect(page.locator("tbody").first).to_contain_text("vision")
                expect(key).to_be_focused()
                assert page.evaluate("location.hash") == "#/reports?by=label:team"
                assert offences(page) == []
                page.reload()
                expect(key).to_have_value("team")
                page.get_by_role("button", name="Queue").click()
                expect(key).to_be_hidden()
                expect(page.locator("thead th").first).to_have_text("Queue")
    finally:
        cluster.json("delete", "labelled")


def test_lost_hours_are_one_chart_by_cause(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The page shows the worked hours and the causes of lost hours as a chart and as a table. The
    causes are those that the CLI reports. If the report fails, the page shows the error."""
    total = cluster.json("report", "lost")["total"]
    assert total["no_demand_gpu_hours"] > 0
    for size in (WIDE, NARROW):
        with opened(browser, base, size=size) as page:
            visit(page, "#/reports")
            card = page.locator("section", has=page.locator("#lost"))
            expect(card.locator("#lost svg")).to_have_attribute("role", "img")
            expect(card.locator("#lost")).to_contain_text("no demand")
            expect(card.locator("tbody")).to_contain_text("No demand")
            expect(card.locator("tbody")).to_contain_text("Worked")
            expect(card.locator("tfoot")).to_contain_text("100 %")
            expect(page.locator("#main")).to_contain_text(re.compile("of capacity lost, most to"))
            assert offences(page) == []
    with opened(browser, base) as page:
        refused = {"error": "the report took too long", "fix": "use a shorter period"}
        page.route(
            re.compile("/api/v1/report/lost"), lambda it: it.fulfill(status=404, json=refused)
        )
        visit(page, "#/reports")
        expect(page.locator("#main")).to_contain_text("Use a shorter period")
        expect(page.locator("#chart svg")).to_be_visible()


def test_the_page_does_not_wait_for_the_lost_hours(browser: Browser, base: str) -> None:
    """The Reports page shows other charts and tables while the gateway still computes lost
    hours."""
    with opened(browser, base) as page:
        asked: list[Route] = []

        def hold(route: Route) -> None:
            asked.append(route)

        address = re.compile("/api/v1/report/lost")
        page.route(address, hold)
        with page.expect_request(address):
            visit(page, "#/reports")
        expect(page.locator("#chart svg")).to_be_visible()
        expect(page.locator("#lost")).to_have_count(0)
        [route] = asked
        route.continue_()
        expect(page.locator("#lost svg")).to_be_visible()
