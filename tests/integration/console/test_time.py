"""The console's pages can show the cluster at any past time, and one page compares two times."""

import re
from datetime import UTC, datetime, timedelta, timezone

from playwright.sync_api import Browser, Page, expect

from tests.integration.console.cards import fail, recover
from tests.integration.console.test_questions import NEVER
from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, shown, visit
from tests.support.polling import wait_until
from tests.support.standalone import Standalone


def revision(cluster: Standalone, *words: str) -> int:
    """Return the revision of the last event whose line contains these words."""
    told = cluster.run("tail", "--from", "1", "--no-follow").stdout.splitlines()
    [*_, last] = [line for line in told if all(word in line for word in words)]
    return int(last.split()[0].replace(",", ""))


def failed(page: Page) -> None:
    """Wait until the fleet page reports one unhealthy GPU."""
    expect(page.locator("h1")).to_contain_text("1 unhealthy")


def to_the_newest_mark(page: Page, when: int) -> None:
    """Select the newest mark of the time bar repeatedly, until this is the mark of revision
    `when`."""

    def there() -> bool:
        page.keyboard.press("n")
        page.keyboard.press("[")
        expect(page.locator("html")).to_have_class("past")
        return page.url.endswith(f"at={when}")

    wait_until(there, f"the mark of revision {when}")


def test_the_past_is_shown_and_says_that_it_is(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A view from before a GPU failed shows the GPU as healthy, and is marked as the past."""
    [card] = [
        each for each in cluster.json("get", "devices")["items"]
        if (each["node"], each["index"]) == ("h100-2", 3)
    ]  # fmt: skip
    fail(cluster, card["device"], reason="XID 79")
    try:
        when = revision(cluster, "h100-2", "XID 79")
        with opened(browser, base) as page:
            visit(page, "")
            failed(page)
            expect(page.locator(".mk.k-broken").last).to_be_visible()
            to_the_newest_mark(page, when)
            failed(page)
            visit(page, f"#/fleet?at={when - 1}")
            expect(page.locator("h1")).to_contain_text("0 unhealthy")
            expect(page.locator("#t-ago")).to_contain_text("ago")
            expect(page.locator("#t-rev")).to_have_text(f"rev {when - 1:,}")
            page.keyboard.press("2")
            expect(page.locator("h1")).to_contain_text("live pods ·")
            assert page.url.endswith(f"#/pods?at={when - 1}")
            page.keyboard.press("n")
            expect(page.locator("html")).not_to_have_class("past")
            page.keyboard.press("Shift+ArrowLeft")
            expect(page.locator("html")).to_have_class("past")
            page.keyboard.press("n")
            page.keyboard.press("3")
            expect(page.locator("h1")).to_contain_text(re.compile(r"needs?\s"))
            page.keyboard.press("1")
            failed(page)
            visit(page, f"#/events?diff={when - 1},{when}")
            expect(page.locator("h1")).to_contain_text("1 GPU")
            expect(page.locator(".dg")).to_contain_text("XID 79")
            assert offences(page) == []
    finally:
        recover(cluster, card["device"])


APART = """() => {
  const boxes = [...document.querySelectorAll(".mk")].map(mark =>
    [mark, ...mark.children].map(each => each.getBoundingClientRect()));
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1;
  return boxes.every((one, at) => boxes.slice(at + 1).every(other =>
    one.every(a => other.every(b => !meet(a, b)))));
}"""


HOLD = """mark => {
  mark.focus();
  return Number(mark.dataset.revision);
}"""
HELD = """revision => {
  const marks = [...document.querySelectorAll(".mk")];
  const of = marks.findLast(mark => Number(mark.dataset.revision) <= revision);
  return of === document.activeElement;
}"""
"""A mark that is several begins with the first of them. It need not be the last one: some that
were one with the mark that is held may be another by now."""


def as_one(page: Page, count: int) -> bool:
    """Reload the page. Return True if the last mark of the time bar now groups at least `count`
    marks."""
    page.reload()
    page.wait_for_selector(".mk")
    told = page.locator(".mk").last.get_attribute("aria-label") or ""
    found = re.match(r"(\d+) marks, ", told)
    return found is not None and int(found[1]) >= count


def test_marks_that_would_overlap_are_one_that_lists_them(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """Marks of the time bar that would overlap are merged into one mark. The merged mark shows how
    many marks it contains, and lists them with links."""
    cards = [
        each["device"] for each in cluster.json("get", "devices", "--node", "h100-10")["items"]
    ]
    try:
        fail(cluster, *cards[:3], reason="XID 48")
        when = revision(cluster, "h100-10", "XID 48")
        with opened(browser, base, size=NARROW) as page:
            visit(page, "")
            for name in ("Previous mark", "Next mark"):  # a touch screen has no keys
                expect(page.get_by_role("button", name=name)).to_be_in_viewport()
            several = page.locator(".mk").last
            wait_until(lambda: as_one(page, 3), "what failed together to stand as one mark")
            assert page.evaluate(APART)
            held = several.evaluate(HOLD)
            page.keyboard.press("Enter")
            marks = page.locator("#t-list")
            expect(marks.locator("button").first).to_be_focused()
            expect(marks).to_be_in_viewport(ratio=1)
            assert offences(page) == []
            page.keyboard.press("Escape")
            expect(marks).to_be_hidden()
            page.wait_for_function(HELD, arg=held)
            several.click()
            marks.locator("button", has_text="XID 48").last.click()
            expect(page.locator("html")).to_have_class("past")
            expect(marks).to_be_hidden()
            assert page.url.endswith(f"at={when}")
        with opened(browser, base) as page:
            visit(page, "")
            expect(page.locator(".mk").first).to_be_visible()
            assert page.evaluate(APART)
    finally:
        recover(cluster, *cards[:3])


def test_the_keyboard_stays_on_a_mark_that_others_join(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """If a narrower page merges the focused mark of the time bar with other marks, the merged mark
    gets the focus."""
    card = cluster.json("get", "devices", "--node", "h100-10")["items"][0]["device"]
    with opened(browser, base) as page:
        visit(page, "")
        marks = page.locator(".mk")

        def joined() -> bool:
            page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
            fail(cluster, card, reason="XID 62")
            recover(cluster, card)
            page.reload()  # with these marks: none comes while the keyboard is on the last one
            expect(marks.last).to_be_visible()
            apart = marks.count()
            held = marks.last.evaluate(HOLD)
            page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
            page.wait_for_function(HELD, arg=held)
            return marks.count() < apart

        wait_until(joined, "marks that are one on a narrow page alone")


def test_the_range_is_dragged_and_played(browser: Browser, base: str) -> None:
    """The time slider has a text for screen readers. Play moves the page's time from the past
    towards now."""
    with opened(browser, base) as page:
        visit(page, "")
        slider = page.locator("#t-range")
        expect(slider).to_have_attribute("aria-valuetext", re.compile("revision .*, now"))
        slider.focus()
        page.keyboard.press("Home")
        expect(page.locator("html")).to_have_class("past")
        expect(page.locator("h1")).to_contain_text(re.compile("No GPUs|0 of"))
        page.locator("#t-speed").click()
        page.locator("#t-play").click()
        seen: set[str] = set()

        def moved() -> bool:
            seen.add(page.locator("#t-clock").inner_text())
            return len(seen) > 2

        wait_until(moved, "the clock to go on")
        page.locator("#t-live").click()
        expect(page.locator("#t-ago")).to_have_text("live")
        slider.focus()
        page.keyboard.press("ArrowLeft")
        expect(page).to_have_url(re.compile(r"at=[^&]*:\d\dZ"))
        page.keyboard.press("End")
        expect(page.locator("#t-ago")).to_have_text("live")


def test_the_time_bar_is_folded_and_stays_so(browser: Browser, base: str) -> None:
    """A collapsed time bar keeps the clock and the buttons, and stays collapsed after a reload."""
    for size in (WIDE, NARROW):
        with opened(browser, base, size=size) as page:
            visit(page, "#/pods")
            track, fold = page.locator("#t-hist"), page.get_by_role("button", name="Timeline")
            expect(fold).to_have_attribute("aria-expanded", "true")
            fold.click()
            expect(track).to_be_hidden()
            page.reload()
            expect(track).to_be_hidden()
            expect(page.get_by_role("button", name="Play")).to_be_in_viewport()
            expect(page.locator("h1")).to_be_visible()
            box = page.locator("#time").bounding_box()
            assert box is not None
            assert box["height"] < 50
            assert offences(page) == []
            page.keyboard.press("Shift+ArrowLeft")
            expect(page.locator("html")).to_have_class(re.compile("past"))
            assert offences(page) == []
            fold.click()
            expect(track).to_be_visible()
            expect(page.locator(".mk").first).to_be_visible()


def test_a_range_of_time_ends_now_and_is_kept(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The time bar keeps the chosen range after a reload. In a view of an earlier time it shows the
    whole ledger."""
    with opened(browser, base) as page:
        page.clock.install(time=datetime.now(UTC) + timedelta(hours=3))
        visit(page, "#/pods")
        slider, ranges = page.locator("#t-range"), page.get_by_label("Time range")
        expect(slider).to_be_visible()

        def hours() -> float:
            low, high = (int(slider.get_attribute(each) or 0) for each in ("min", "max"))
            return (high - low) / 3_600_000

        assert hours() > 2
        ranges.select_option("1 h")
        assert 0.99 < hours() < 1.01
        page.reload()
        expect(ranges).to_have_value("1h")
        expect(slider).to_be_visible()
        assert 0.99 < hours() < 1.01
        page.get_by_role("button", name="Previous mark").click()
        visit(page, "#/pods?at=3")
        wait_until(lambda: hours() > 2, "the whole ledger")


def test_a_moment_that_nobody_knows_is_told(browser: Browser, base: str) -> None:
    """If a page's address has an unreadable time, the headline quotes it, and the key `n` leads to
    now."""
    with opened(browser, base) as page:
        page.goto(f"{base}/#/fleet?at=yesterday-ish")
        expect(page.locator("h1")).to_contain_text("yesterday-ish")
        page.keyboard.press("n")
        expect(page.locator("h1")).to_contain_text("allocated")


def test_a_zone_ahead_of_utc_is_read_from_an_address(browser: Browser, base: str) -> None:
    """The page accepts a time zone with an unescaped plus sign in its address, and the time bar
    shows that time."""
    now = datetime.now(UTC).replace(microsecond=0)
    there = now.astimezone(timezone(timedelta(hours=2)))
    with opened(browser, base) as page:
        visit(page, f"#/fleet?at={there.isoformat()}")
        expect(page.locator("#t-clock")).to_have_text(f"{now:%H:%M:%S}")
        page.keyboard.press("2")
        expect(page.locator("h1")).to_contain_text("live")
        expect(page.locator("#t-clock")).to_have_text(f"{now:%H:%M:%S}")


def test_events_are_found_and_lead_on(browser: Browser, base: str, cluster: Standalone) -> None:
    """Users can find events by text and by kind. Each event links to its details and to the fleet
    at the event's time."""
    with opened(browser, base) as page:
        visit(page, "#/events?q=vgpu-percentage")
        expect(page.locator("tbody tr").first).to_contain_text("vgpu-percentage")
        page.locator("tbody tr", has_text="placed on").click()
        expect(page.locator("#detail")).to_contain_text('"type": "apportion.dev/PodPlaced"')
        assert re.search(r"rev=\d+", page.url)
        page.get_by_role("link", name="Fleet at this time").click()
        expect(page.locator("html")).to_have_class("past")
        visit(page, "#/events?hide=pod,placement,refusal,health,node")
        expect(page.locator("#kinds [data-kind=pod]")).to_have_attribute("aria-pressed", "false")
        page.mouse.move(5, 5)
        assert cluster.run("cordon", "t4-1", "--reason", "dust").returncode == 0
        expect(page.locator("tbody tr").first).to_contain_text("dust")
        cluster.run("uncordon", "t4-1")
    with opened(browser, base, size=NARROW) as page:
        visit(page, "#/events")
        assert offences(page) == []
        expect(page.locator("#detail")).to_be_hidden()
        page.locator("tbody tr").nth(2).click(position={"x": 60, "y": 8})
        expect(page.locator("#detail pre")).to_be_in_viewport()
        assert offences(page) == []
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#detail")).to_be_hidden()
        assert "rev=" not in page.url


def test_dates_that_are_compared_are_seen_whole(browser: Browser, base: str) -> None:
    """A date with its time and zone fits into its field, on wide and narrow screens."""
    for size in (WIDE, NARROW):
        with opened(browser, base, size=size) as page:
            visit(page, "#/events?diff=1,2")
            for name in ("from", "to"):
                field = page.locator(f"#moments input[name={name}]")
                field.fill("2026-11-25T21:34:50Z")
                assert field.evaluate("each => each.scrollWidth <= each.clientWidth"), size
            assert offences(page) == []


def test_a_time_that_is_asked_for_is_shown_as_it_was_asked_for(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A view of the past shows the requested time, not the time of the last event before it.

    Pending times are measured up to the requested time."""
    manifest = NEVER.replace("giant", "asked-for")
    cluster.json("submit", "-f", "-", "--wait", stdin=manifest.encode(), code=1)
    pods = cluster.json("get", "pods", "asked-for")
    [pod] = pods["items"]
    submitted = datetime.fromisoformat(pod["submitted_time"]).replace(microsecond=0)
    asked = submitted + timedelta(seconds=16)
    try:
        with opened(browser, base) as page:
            page.clock.set_fixed_time(asked + timedelta(minutes=8))
            newest = f"{base}/api/v1/moment?at={pods['revision']}"
            page.route(re.compile("/api/v1/moment"), lambda route: route.continue_(url=newest))
            visit(page, f"#/pod/default/asked-for?at={asked:%Y-%m-%dT%H:%M:%SZ}")
            expect(page.locator("h1")).to_have_text(re.compile(r"^Pending for 1[56] s: "))
            expect(page.locator("#t-clock")).to_have_text(f"{asked:%H:%M:%S}")
            expect(page.locator("#t-ago")).to_have_text(re.compile("8 min 00 s ago$"))
            found = page.request.get(newest).json()
            of = datetime.fromisoformat(found["time"])
            told = f"{of:%H:%M:%S}" if of.date() == asked.date() else f"{of:%m-%d %H:%M:%S}"
            expect(page.locator("#t-rev")).to_have_text(f"rev {found['revision']:,} · {told}")
            spoken = re.compile(f"^{asked:%H:%M:%S}, revision .* · {told}$")
            expect(page.locator("#t-range")).to_have_attribute("aria-valuetext", spoken)
            page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
            expect(page.locator("#t-rev")).to_be_in_viewport(ratio=1)
            assert offences(page) == []
    finally:
        cluster.json("delete", "asked-for")


def test_the_end_of_the_slider_is_now_however_long_the_past_was_shown(
    browser: Browser, base: str
) -> None:
    """The end of the time slider leads to the present, even after the page has shown the past for a
    while."""
    with opened(browser, base) as page:
        page.clock.install()
        visit(page, "")
        slider = page.get_by_role("slider")
        expect(slider).to_have_attribute("aria-valuetext", re.compile("now$"))
        slider.focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("html")).to_have_class("past")
        page.clock.run_for(5000)
        page.keyboard.press("End")
        expect(page.locator("html")).not_to_have_class("past")


def test_links_of_the_navigation_keep_the_moment_that_is_shown(browser: Browser, base: str) -> None:
    """Navigation links keep the time that the page shows now, not the time that it showed when the
    link was last followed."""
    with opened(browser, base) as page:
        visit(page, "#/fleet?at=5")
        pages = page.get_by_role("navigation")
        pages.get_by_role("link", name="Pending").click()
        shown(page, "#/waiting?at=5")
        page.keyboard.press("n")
        expect(page.locator("html")).not_to_have_class("past")
        pages.get_by_role("link", name="Pods", exact=True).click()
        shown(page, "#/pods")
        pages.get_by_role("link", name="Pending").click()
        shown(page, "#/waiting")


def test_a_mark_comes_though_nothing_happens_after_it(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The time bar shows a mark for the newest event even if no event follows, because the bar also
    refreshes on a timer."""
    [card, *_] = [each["device"] for each in cluster.json("get", "devices")["items"]]
    with opened(browser, base) as page:

        def is_last() -> bool:
            page.keyboard.press("n")
            expect(page.locator("html")).not_to_have_class("past")
            page.keyboard.press("[")
            expect(page.locator("html")).to_have_class("past")
            return page.url.endswith(f"at={when}")

        try:
            visit(page, "")
            fail(cluster, card, reason="XID 63")
            when = revision(cluster, "XID 63")
            wait_until(is_last, "the mark of what failed")
        finally:
            recover(cluster, card)
