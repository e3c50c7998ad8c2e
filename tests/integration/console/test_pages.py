"""Every page of the console answers its question and meets the accessibility rules. Each page is
tested on wide and narrow screens, in light and dark themes."""

import re

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.integration.console.cards import fail, recover
from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.browser.pages import navigation
from tests.support.browser.settled import shows_newer
from tests.support.standalone import Standalone

PAGES = {
    "fleet": "allocated",
    "fleet?q=node:t4-1&card=t4-1:0": "allocated",
    "pods": "live pods ·",
    "pod/default/hami-pod": "Running on",
    "pod/default/ascend-pod": "Pending for",
    "pod/default/nobody": "No pod default/nobody",
    "waiting": "need",
    "no-such-page": "No such page: no-such-page",
    "toString": "No such page: toString",
}


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_answers_and_keeps_the_rules(
    browser: Browser, base: str, size: tuple[int, int], theme: str
) -> None:
    """Every page answers its question in the headline, and keeps the rules for accessible pages."""
    with opened(browser, base, size=size, theme=theme) as page:
        for address, answer in PAGES.items():
            visit(page, f"#/{address}")
            expect(page.locator("#main h1")).to_contain_text(answer)
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
            assert offences(page) == [], address


def test_every_page_of_the_navigation_is_reached_by_its_key(browser: Browser, base: str) -> None:
    """Every page of the navigation opens by its key, highlights its entry, and is accessible."""
    with opened(browser, base) as page:
        visit(page, "#/pods")
        for key, path in enumerate(navigation(), 1):
            page.keyboard.press(str(key))
            row = page.locator(f'#nav a[data-page="{path}"]')
            expect(row).to_have_attribute("aria-current", "page")
            expect(page).to_have_title(f"{row.locator('span').inner_text()} · Apportion")
            expect(page.locator("#main h1")).to_have_count(1)
            expect(page.locator("#main")).to_have_attribute("aria-busy", "false")
            assert offences(page) == [], path


def test_the_navigation_counts_pending_pods_and_shows_keys_when_asked(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The navigation shows the number of pending pods, and keyboard shortcuts only on hover."""
    pods = cluster.json("get", "pods")["items"]
    pending = sum(pod["phase"] == "pending" for pod in pods)
    with opened(browser, base) as page:
        visit(page, "#/pods")
        row = page.locator('#nav a[data-page="waiting"]')
        expect(row.locator(".badge")).to_contain_text(f"{pending} pending pods")
        expect(page.locator('#nav a[data-page="events"] .badge')).to_be_hidden()
        expect(row.locator("kbd")).to_have_css("visibility", "hidden")
        row.hover()
        expect(row.locator("kbd")).to_have_css("visibility", "visible")
        expect(row).to_have_attribute("title", "Press 3")
    with opened(browser, base, size=NARROW) as page:
        visit(page, "#/pods")
        expect(page.locator('#nav a[data-page="waiting"] .badge')).to_be_in_viewport(ratio=1)
        assert offences(page) == []


def test_the_fonts_come_with_the_page(browser: Browser, base: str) -> None:
    """The page loads both of its fonts itself, so it looks the same on every machine."""
    with opened(browser, base) as page:
        visit(page, "#/pods")
        page.wait_for_function("document.fonts.status === 'loaded'")
        fonts = page.evaluate("[...document.fonts].map(each => [each.family, each.status])")
        assert sorted(fonts) == [["Inter", "loaded"], ["JetBrains Mono", "loaded"]]


def test_an_address_of_no_page_says_so_with_ways_on(browser: Browser, base: str) -> None:
    """An unknown address shows an error page with links to the real pages."""
    with opened(browser, base) as page:
        for address in ("#/nonsense", "#/nonsense?at=never"):
            visit(page, address)
            expect(page).to_have_title("No such page · Apportion")
            expect(page.locator("#nav [aria-current]")).to_have_count(0)
            expect(page.locator("#main .acts a")).to_have_count(len(navigation()))
        visit(page, "#/nonsense")
        page.locator("#main").get_by_role("link", name="Pending").click()
        expect(page.locator("h1")).to_contain_text("need")


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("#/what-if?lose=t4-1", "#/whatif?lose=t4-1"),
        ("#/node/t4-1", "#/fleet?q=node:t4-1"),
        ("#/nodes/t4-1", "#/fleet?q=node:t4-1"),
        ("#/nodes", "#/fleet"),
        ("#/report?by=node", "#/reports?by=node"),
    ],
)
def test_an_address_that_can_mean_but_one_page_leads_there(
    browser: Browser, base: str, address: str, meant: str
) -> None:
    """An incomplete address that can mean only one page opens that page, and the console replaces
    the address with the canonical one."""
    with opened(browser, base) as page:
        visit(page, address)
        assert page.evaluate("location.hash") == meant
        expect(page.locator("h1")).not_to_contain_text("No such page")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("#/fleet?card=t4-9:0", "No node “t4-9”"),
        ("#/node/t4-9", "No node “t4-9”"),
        ("#/fleet?card=t4-1:77", "t4-1 has no device 77. Its devices: 0, 1, 2, 3."),
        ("#/fleet?show=blue", "Unknown state “blue”. Use all, free"),
        ("#/fleet?by=size", "Unknown colour “size”"),
        ("#/fleet?q=state:fine", "Unknown state “fine”. Use free, allocated"),
        ("#/fleet?q=colour:red", "Unknown filter “colour:”. Use node:, pool:"),
        ("#/events?hide=wrong", "Unknown kind “wrong”. Use pod, placement"),
        ("#/events?rev=abc", "Invalid revision “abc”"),
        ("#/events?rev=99999", "No event at revision 99999"),
    ],
)
def test_what_an_address_asks_in_vain_is_said(
    browser: Browser, base: str, address: str, words: str
) -> None:
    """For invalid parameters in an address the page names them and the alternatives, and still
    loads."""
    with opened(browser, base) as page:
        visit(page, address)
        expect(page.locator("#main")).to_contain_text(words)
        expect(page.locator("h1")).to_contain_text(re.compile("allocated|events since"))
        expect(page.locator("#main")).not_to_contain_text("Loading…")
        if "q=state" in address or "q=colour" in address:
            expect(page.locator("#matches-count")).to_have_text("No matches")
        assert offences(page) == []


def test_a_recovery_looks_like_no_failure(browser: Browser, base: str, cluster: Standalone) -> None:
    """In the list of events a recovery has another colour than a failure, although both events are
    of the kind "health"."""
    [card, *_] = cluster.json("get", "devices", "--node", "t4-1")["items"]
    fail(cluster, card["device"], reason="XID 31")
    recover(cluster, card["device"])
    with opened(browser, base) as page:
        visit(page, f"#/events?q={card['device']}")
        rows = page.locator("tr.k-health")
        well = rows.filter(has_text="recovered").first
        expect(well.locator(".kd")).to_have_css("background-color", "rgb(0, 115, 79)")
        failed = rows.filter(has_text="XID 31").first
        expect(failed.locator(".kd")).to_have_css("background-color", "rgb(199, 62, 10)")


def test_who_can_never_have_a_place_is_counted(browser: Browser, base: str) -> None:
    """The queue page shows the number of pods that can never be placed."""

    def counted(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "lasting": 2})

    with opened(browser, base) as page:
        page.route(re.compile("/api/v1/lines"), counted)
        visit(page, "#/waiting")
        expect(page.locator(".answer")).to_contain_text("2 can never be placed")


LONG = """\
apiVersion: v1
kind: Pod
metadata:
  name: hyperparameter-sweep-of-the-multilingual-reranker-batch-2048-lr-3e-5-warmup-500-seed-42
  namespace: natural-language-understanding-and-retrieval-research-europe
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 900000}}}
"""
LONG_NAME = "{namespace}/{name}".format(
    **dict(line.strip().split(": ") for line in LONG.splitlines()[3:5])
)


def test_a_narrow_screen_has_all_columns_and_long_names(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """On a narrow screen the columns that do not fit appear in a second line of each row. Long
    names are never cut."""
    cluster.run("submit", "--wait", "-f", "-", stdin=LONG.encode())
    try:
        with opened(browser, base, size=NARROW) as page:
            visit(page, "#/pods?q=hami-pod")
            row = page.locator("tbody tr", has_text="hami-pod").first
            expect(row.locator("td.hide-s").first).to_be_hidden()
            expect(row.locator(".second a")).to_have_attribute("href", re.compile("q=node:"))
            queue = f"waiting?pod={LONG_NAME}"
            visit(page, f"#/{queue}")
            row = page.locator("tbody tr", has_text="hyperparameter").first
            expect(row.locator("td:nth-child(5)")).to_be_hidden()
            expect(row.locator(".second")).to_have_text(re.compile(r"closest .+ MiB missing"))
            for address in ("pods?q=hyper", queue, "events?q=hyper"):
                visit(page, f"#/{address}")
                expect(page.locator("tbody tr", has_text="seed-42").first).to_be_visible()
                assert offences(page) == [], address
            expect(page.locator("tbody tr .second a").first).to_have_class("rev")
        with opened(browser, base) as page:
            visit(page, "#/pods?q=hyper")
            expect(page.locator("tbody .second").first).to_be_hidden()
            assert offences(page) == []
    finally:
        [name] = [
            each["name"] for each in cluster.json("get", "pods")["items"] if "hyper" in each["name"]
        ]
        cluster.run(
            "delete", f"natural-language-understanding-and-retrieval-research-europe/{name}"
        )


def test_a_request_opens_to_its_reasons_and_stays_so(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """In the queue a pending request is one row. A key press or the page's address opens its
    details, which stay open after an update."""
    with opened(browser, base) as page:
        visit(page, "#/waiting")
        lines = page.locator(".line")
        assert lines.count() > 1
        expect(page.locator(".why").first).to_be_hidden()
        boxes = [each.bounding_box() for each in lines.all()]
        assert all(box is not None and box["height"] < 60 for box in boxes)
        page.keyboard.press("j")
        expect(page.locator(".line-h").first).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".why").first).to_be_visible()
        assert "pod=" in page.url
        assert cluster.run("cordon", "t4-1", "--reason", "newer").returncode == 0
        try:
            with shows_newer(page):
                page.locator("#newer").click()
            expect(page.locator(".why").first).to_be_visible()
        finally:
            assert cluster.run("uncordon", "t4-1").returncode == 0
        page.reload()
        expect(page.locator(".line[open]")).to_have_count(1)
        expect(page.locator(".why").first).to_be_visible()
        assert offences(page) == []


def test_the_first_line_begins_with_number_one(browser: Browser, base: str) -> None:
    """The queue page shows its groups in queue order, numbered from 1, whatever the size of each
    group."""
    with opened(browser, base) as page:
        visit(page, "#/waiting")
        numbers = page.locator(".line tbody tr:first-child td:first-child").all_text_contents()
        assert numbers[0] == "1"
        assert numbers == sorted(numbers, key=int)


def test_links_lead_from_a_pod_to_its_node_and_line(browser: Browser, base: str) -> None:
    """Links lead from a pod to its node, and from a pending pod to its row in the queue."""
    with opened(browser, base) as page:
        visit(page, "#/pods?q=hami-pod")
        page.locator("tbody a", has_text="hami-pod").first.click()
        expect(page.locator("h1")).to_contain_text("Running on")
        page.locator("h1 a").click()
        expect(page.locator("#matches-count")).to_contain_text("GPUs")
        visit(page, "#/pods?phase=refused")
        page.locator("tbody a").first.click()
        expect(page.locator("h1")).to_contain_text("Pending for")
        page.get_by_role("link", name="View in queue").last.click()
        expect(page.locator("h1")).to_contain_text("distinct")


def test_the_keyboard_goes_everywhere(browser: Browser, base: str) -> None:
    """Keys open pages (1, 2), select rows (j, k), find a pod (Ctrl+K) and change the theme (t).
    Inside text fields these keys only type."""
    with opened(browser, base) as page:
        visit(page, "")
        page.keyboard.press("2")
        expect(page.locator("h1")).to_contain_text("live pods ·")
        page.keyboard.press("j")
        page.keyboard.press("j")
        name = page.locator("tr:focus a").first.inner_text()
        page.keyboard.press("Enter")
        expect(page.locator(".crumb")).to_contain_text(name)
        page.keyboard.press("Control+k")
        page.keyboard.type("vgpu-perc")
        expect(page.locator("#pal-rows a").first).to_contain_text("vgpu-percentage")
        page.keyboard.press("Enter")
        expect(page.locator(".crumb")).to_contain_text("vgpu-percentage")
        page.keyboard.press("t")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        page.keyboard.press("?")
        expect(page.locator("#dialog")).to_contain_text("Light or dark")
        page.keyboard.press("Escape")
        page.keyboard.press("1")
        expect(page.locator("h1")).to_contain_text("allocated")
        page.keyboard.press("/")
        page.keyboard.type("2t")
        expect(page.locator("#q")).to_have_value("2t")
        expect(page.locator("h1")).to_contain_text("allocated")


def test_a_name_with_dots_is_found_however_its_address_has_them(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A pod name with dots is found whether its address has plain dots or `%2E`."""
    cluster.json("submit", "-f", "-", "--wait", stdin=LATER.replace(b"later", b"v1.2.dotted"))
    try:
        with opened(browser, base) as page:
            visit(page, "#/pods?q=dotted")
            page.locator("tbody a", has_text="v1.2.dotted").first.click()
            expect(page.locator("h1")).to_contain_text("on ")
            assert page.evaluate("location.hash") == "#/pod/default/v1.2.dotted"
            visit(page, "#/pod/default/v1%2E2%2Edotted")
            expect(page.locator(".crumb b")).to_have_text("v1.2.dotted")
            expect(page.locator(".tl li")).not_to_have_count(0)
    finally:
        cluster.json("delete", "v1.2.dotted")


LATER = b"""\
apiVersion: v1
kind: Pod
metadata: {name: later}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1}}}
"""


def test_a_list_stands_still_and_offers_what_is_new(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A list does not change under the mouse: new events are counted and shown on request."""
    with opened(browser, base) as page:
        visit(page, "#/pods?q=later")
        expect(page.locator("tbody")).to_contain_text("No matching pods")
        done = cluster.run("submit", "--wait", "-f", "-", stdin=LATER)
        assert done.returncode == 0, done.stderr
        expect(page.locator(".newer")).to_contain_text("newer")
        expect(page.locator("tbody")).to_contain_text("No matching pods")
        page.keyboard.press("r")
        expect(page.locator("tbody")).to_contain_text("later")
