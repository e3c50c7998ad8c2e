"""The fleet page: headline, GPU picture, search, selection and live updates."""

import re

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.integration.console.cards import fail, recover
from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.standalone import Standalone

CARDS = 32


def blue(page: Page) -> int:
    """Return the number of pixels of the picture in the colour of allocated devices."""
    count: int = page.evaluate(
        """() => {
          const shown = document.getElementById("pixels");
          const copy = new OffscreenCanvas(shown.width, shown.height).getContext("2d");
          copy.drawImage(shown, 0, 0);
          const { data } = copy.getImageData(0, 0, shown.width, shown.height);
          let found = 0;
          for (let at = 0; at < data.length; at += 4) {
            if (data[at] === 0x1d && data[at + 1] === 0x6f && data[at + 2] === 0xbe) found += 1;
          }
          return found;
        }"""
    )
    return count


def test_the_answer_is_that_of_the_command_line(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The headline counts the same allocated GPUs as the CLI, and the picture shows every GPU."""
    devices = cluster.json("get", "devices")["items"]
    held = sum(bool(device["holders"]) for device in devices)
    with opened(browser, base) as page:
        visit(page, "")
        expect(page.locator("h1")).to_contain_text(f"{held} of {len(devices)} GPUs allocated")
        assert len(devices) == CARDS
        assert blue(page) > 500


SWATCHES = """() => Object.fromEntries([...document.querySelectorAll(".legend .sw")].map(each =>
  [each.className.split(" ").at(-1), getComputedStyle(each).background]))"""
FILL = "each => getComputedStyle(each).backgroundColor"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_state_looks_the_same_on_every_page(
    browser: Browser, base: str, cluster: Standalone, theme: str
) -> None:
    """Each device state has one colour: in the GPU picture, on the pod's page, on the What if page
    and in legends."""
    pods = cluster.json("get", "pods")["items"]
    [runs] = [pod for pod in pods if pod["name"] == "hami-pod"]
    assert runs["phase"] == "allocated"
    with opened(browser, base, theme=theme) as page:
        visit(page, "")
        fleet = page.evaluate(SWATCHES)
        assert list(fleet) == ["used", "granted", "free", "broken", "cordoned"]
        assert len(set(fleet.values())) == len(fleet)
        fleet["running"] = fleet.pop("used")  # pages without the use of shares show what runs
        visit(page, "#/pod/default/hami-pod")
        own = page.locator(".gauge .running.own").first
        running = own.evaluate(FILL)
        assert running in fleet["running"]
        shown = page.evaluate(SWATCHES)
        assert shown.pop("own")
        assert shown.items() <= fleet.items()
        expect(own).to_have_css("box-shadow", re.compile("inset"))
        visit(page, f"#/whatif?lose={runs['node']}")
        before = page.locator(".ba > div").first.locator(".gauge .running").first
        assert before.evaluate(FILL) == running
        broken = page.locator(".ba > div").last.locator(".gauge.broken").first
        assert broken.evaluate("each => getComputedStyle(each).background") == fleet["broken"]
        shown = page.evaluate(SWATCHES)
        assert {"running", "broken"} <= set(shown) & set(fleet)
        assert all(shown[name] == fleet[name] for name in set(shown) & set(fleet))


def test_a_card_is_found_and_says_who_holds_it(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A GPU can be selected and opened with only the keyboard. The opened page's address leads back
    to that GPU."""
    with opened(browser, base) as page:
        visit(page, "")
        page.locator("#cards").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#hover")).to_contain_text("device 1")
        page.keyboard.press("Enter")
        panel = page.locator("#panel")
        expect(panel).to_contain_text("hami-core")
        title = panel.locator("b").first.inner_text()
        address = page.url
        assert re.search(rf"card={title}:1$", address)
        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
        page.goto("about:blank")
        page.goto(address)
        expect(page.locator("#panel")).to_contain_text(title)
        [device] = [
            each for each in cluster.json("get", "devices")["items"]
            if (each["node"], each["index"]) == (title, 1)
        ]  # fmt: skip
        for holder in device["holders"]:
            expect(page.locator("#panel .holders")).to_contain_text(holder["pod"])


HOVER = """() => {
  const hover = document.getElementById("hover");
  return hover.hidden ? "" : hover.querySelector(".hc-h").innerText;
}"""


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_tooltip_follows_a_zoom_by_key(
    browser: Browser, base: str, size: tuple[int, int]
) -> None:
    """After a zoom by key the tooltip names the device under the pointer or the keyboard's
    focus."""
    with opened(browser, base, size=size) as page:
        visit(page, "")
        canvas = page.locator("#cards")
        box = canvas.bounding_box()
        assert box
        places = [
            (box["x"] + across, box["y"] + 90) for across in range(60, min(700, size[0] - 20), 20)
        ]
        for x, y in places:
            page.mouse.move(x, y)
            for key in ("+", "+", "-", "0"):
                page.keyboard.press(key)
                told = page.evaluate(HOVER)
                page.mouse.move(x, y + 0.25)
                page.mouse.move(x, y)
                assert page.evaluate(HOVER) == told, (x, key)
        page.mouse.move(5, 5)
        canvas.focus()
        page.keyboard.press("ArrowRight")
        told = page.evaluate(HOVER)
        page.keyboard.press("+")
        assert page.evaluate(HOVER) in ("", told)


def test_a_filter_shows_free_devices_in_a_colour_of_their_own(browser: Browser, base: str) -> None:
    """The filter for free devices shows free devices, and their legend entry, in a stronger
    colour."""
    with opened(browser, base) as page:
        visit(page, "")
        swatch = page.locator(".legend .sw.free")
        pale = swatch.evaluate(FILL)
        page.locator("[data-show=free]").click()
        expect(swatch).not_to_have_css("background-color", pale)
        page.locator("[data-show=all]").click()
        expect(swatch).to_have_css("background-color", pale)


def test_a_filter_tells_its_cards_in_words_too(browser: Browser, base: str) -> None:
    """A filter also lists the matching GPUs as text, and dims all other GPUs in the picture."""
    with opened(browser, base) as page:
        visit(page, "")
        before = blue(page)
        page.keyboard.press("/")
        page.keyboard.type("node:t4-1")
        expect(page.locator("#matches-count")).to_have_text("4 GPUs")
        page.locator("#matches-count").click()
        expect(page.locator("#matches-list li").first).to_contain_text("t4-1 device 0")
        assert blue(page) < before
        assert page.url.endswith("?q=node:t4-1")


def test_what_happens_is_shown_without_a_reload(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A cordon and its removal appear without a reload. The headline's count of cordoned GPUs links
    to those GPUs."""
    with opened(browser, base) as page:
        visit(page, "#/fleet?card=h100-10:0")
        expect(page.locator("h1")).not_to_contain_text("cordoned")
        assert cluster.run("cordon", "h100-10", "--reason", "fan of rack 4").returncode == 0
        expect(page.locator("h1")).to_contain_text("8 cordoned")
        expect(page.locator("#panel")).to_contain_text("fan of rack 4")
        page.locator("h1 a", has_text="cordoned").click()
        expect(page.locator("#matches-count")).to_have_text("8 GPUs")
        assert cluster.run("uncordon", "h100-10").returncode == 0
        expect(page.locator("h1")).not_to_contain_text("cordoned")


def without_a_node(route: Route) -> None:
    """Answer a request with the gateway's fleet, changed as if node t4-1 were not ready."""
    answer = route.fetch().json()
    for row in answer["nodes"]:
        if row[0] == "t4-1":
            row[2] = 0
    route.fulfill(json=answer)


def test_counts_of_cards_add_up(browser: Browser, base: str, cluster: Standalone) -> None:
    """The headline's counts add up to all GPUs, even if some GPUs are in use and also unhealthy or
    cordoned."""
    devices = cluster.json("get", "devices")["items"]
    failing = next(each for each in devices if each["node"] == "h100-1" and each["holders"])
    fail(cluster, failing["device"], reason="XID 79")
    assert cluster.run("cordon", "h100-1", "--reason", "dust").returncode == 0
    try:
        with opened(browser, base) as page:
            page.route(re.compile("/api/v1/fleet"), without_a_node)
            visit(page, "")
            expect(page.locator("h1")).to_contain_text("5 unhealthy (")
            expect(page.locator("h1")).to_contain_text("8 cordoned (")
            answer = page.locator(".answer").inner_text()
            assert added(answer) == (len(devices), len(devices)), answer
            page.locator("#notes a", has_text="4 unreachable").click()
            expect(page.locator("#matches-count")).to_have_text("4 GPUs")
            page.locator("#matches-count").click()
            expect(page.locator("#matches-list li").first).to_contain_text("unreachable")
    finally:
        cluster.run("uncordon", "h100-1")
        recover(cluster, failing["device"])


def added(answer: str) -> tuple[int, int]:
    """Return the number of GPUs in the headline, and the sum of the headline's counts by state.

    The sum counts each GPU once."""
    [(granted, cards)] = re.findall(r"(\d+) of (\d+) GPUs", answer)
    [free] = re.findall(r"(\d+) free", answer)
    total = int(granted) + int(free)
    for what in ("unhealthy", "cordoned"):
        [(count, again)] = re.findall(rf"(\d+) {what} \((\d+) in use[^)]*\)", answer)
        total += int(count) - int(again)
    return int(cards), total


def test_on_a_phone_what_is_found_covers_no_card(browser: Browser, base: str) -> None:
    """On a phone the list of search matches is above the GPU picture and covers none of it."""
    with opened(browser, base, size=NARROW) as page:
        visit(page, "#/fleet?q=node:t4-1")
        expect(page.locator("#matches-count")).to_have_text("4 GPUs")
        told = page.locator("#matches").bounding_box()
        stage = page.locator("#stage").bounding_box()
        assert told
        assert stage
        assert told["y"] + told["height"] <= stage["y"], (told, stage)
        page.locator("#matches-count").click()
        expect(page.locator("#matches-list")).to_be_in_viewport(ratio=1)
        assert offences(page) == []


def test_what_if_of_a_card_loses_that_card_alone(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A device's link "Simulate device loss" opens the What if page for the loss of that device
    only. This also holds for a free device."""
    devices = cluster.json("get", "devices")["items"]
    free = next(each for each in devices if not each["holders"])
    with opened(browser, base) as page:
        visit(page, f"#/fleet?card={free['node']}:{free['index']}")
        page.locator("#panel").get_by_role("link", name="Simulate device loss").click()
        expect(page.locator("#same")).to_contain_text(f"apportion plan --lose {free['device']}")
        expect(page.locator(".ba .gauge.broken")).to_have_count(1)


def test_cordoned_cards_are_said_to_be_what_they_are(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The headline counts a cordoned GPU as cordoned, and not also as unhealthy."""
    held = [each for each in cluster.json("get", "devices")["items"] if each["holders"]]
    assert cluster.run("cordon", held[0]["device"], "--reason", "dust").returncode == 0
    try:
        with opened(browser, base) as page:
            visit(page, "")
            expect(page.locator("h1")).to_contain_text("0 unhealthy · 1 cordoned (1 in use)")
    finally:
        cluster.run("uncordon", held[0]["device"])


COVERED = """() => {
  const panel = document.getElementById("panel");
  const stage = document.getElementById("stage").getBoundingClientRect();
  const box = panel.getBoundingClientRect(), over = document.getElementById("cards");
  const copy = new OffscreenCanvas(over.width, over.height).getContext("2d");
  copy.drawImage(over, 0, 0);
  const { data } = copy.getImageData(0, 0, over.width, over.height);
  const accent = [0x0b, 0x5c, 0xad];
  let [seen, hidden] = [0, 0];
  for (let at = 0; at < data.length; at += 4) {
    if (accent.some((part, place) => data[at + place] !== part) || data[at + 3] < 255) continue;
    const x = stage.left + (at / 4 % over.width) * stage.width / over.width;
    const y = stage.top + Math.floor(at / 4 / over.width) * stage.height / over.height;
    const inside = x >= box.left && x < box.right && y >= box.top && y < box.bottom;
    if (inside) hidden += 1; else seen += 1;
  }
  return [seen > 20, hidden];
}"""
"""Whether the line around what is chosen is seen, and how much of it a panel lies over."""


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", ["t4-1", "h100-10"])
def test_a_panel_lies_over_no_card_of_its_own(
    browser: Browser, base: str, size: tuple[int, int], name: str
) -> None:
    """A panel covers none of the GPUs that it describes, and its buttons are always visible."""
    with opened(browser, base, size=size) as page:
        for address in (f"#/fleet?card={name}:3", f"#/fleet?card={name}"):
            visit(page, address)
            expect(page.locator("#panel .mini")).to_be_attached()
            page.wait_for_function(f"() => String(({COVERED})()) === 'true,0'")
            buttons = page.locator("#panel > .acts > *")
            for button in buttons.all():
                expect(button).to_be_in_viewport(ratio=1)
            assert offences(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_node_has_a_panel_with_its_cards(
    browser: Browser, base: str, cluster: Standalone, theme: str
) -> None:
    """A node's panel opens from the picture, an address or a GPU, and links back to its GPUs."""
    [node] = [each for each in cluster.json("get", "nodes")["items"] if each["node"] == "h100-1"]
    with opened(browser, base, theme=theme) as page:
        visit(page, "#/node/h100-1")
        panel = page.locator("#panel")
        expect(panel.locator(".hc-h")).to_contain_text(re.compile("h100-1 node ?ready"))
        expect(panel.locator(".holders li")).to_have_count(8)
        used, all_ = (f"{node[each] / 1000:.0f}" for each in ("cpu_used_milli", "cpu_milli"))
        expect(panel).to_contain_text(f"{used} of {all_} CPU")
        expect(panel).to_contain_text("Log in to cordon.")
        expect(panel).to_contain_text("apportion cordon h100-1 --reason")
        assert offences(page) == []
        panel.get_by_role("link", name="Device 0").click()
        expect(panel.locator(".hc-h")).to_contain_text("h100-1 device 0")
        assert page.url.endswith("card=h100-1:0")
        panel.locator('a[data-choose="h100-1"]').click()
        expect(panel.locator(".hc-h")).to_contain_text("h100-1 node")
        page.keyboard.press("Escape")
        visit(page, "#/fleet")
        page.mouse.click(*page.evaluate(NAMED_AT))
        expect(panel.locator(".hc-h")).to_contain_text("h100-1 node")
        assert page.url.endswith("card=h100-1")


NAMED_AT = """() => {
  const { left, top } = document.getElementById("stage").getBoundingClientRect();
  return [left + 28, top + 24 + 30 + 7];
}"""
"""Where the name of the first node stands: as fleet/layout.js has it."""


def test_the_panel_tells_cores_slots_and_what_the_node_went_through(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A GPU's panel shows the cores and slots in use, and the events of its node, such as a
    cordon."""
    [card] = [
        each for each in cluster.json("get", "devices")["items"]
        if (each["node"], each["index"]) == ("h100-1", 0)
    ]  # fmt: skip
    assert cluster.run("cordon", "h100-1", "--reason", "dust").returncode == 0
    try:
        with opened(browser, base) as page:
            visit(page, "#/fleet?card=h100-1:0")
            panel = page.locator("#panel")
            held = card["cores"] - card["cores_free"]
            expect(panel).to_contain_text(f"{held} % of the cores")
            taken = card["slots"] - card["slots_free"]
            expect(panel).to_contain_text(f"{taken} of {card['slots']} slots")
            expect(panel.locator(".mini")).to_contain_text("node h100-1 cordoned by")
            expect(panel.locator(".mini")).to_contain_text(": dust")
    finally:
        cluster.run("uncordon", "h100-1")


WRITTEN = """() => {
  window.written = new Set();
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (said, ...where) {
    window.written.add(said);
    return fillText.call(this, said, ...where);
  };
}"""


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_heading_says_how_many_nodes_and_cards_there_are(
    browser: Browser, base: str, size: tuple[int, int]
) -> None:
    """A group's heading shows the hardware of one node, and the number of nodes and GPUs. If the
    hardware's name is long, the numbers are on a second line."""
    with opened(browser, base, size=size) as page:
        page.add_init_script(f"({WRITTEN})()")
        visit(page, "")
        written = set(page.evaluate("[...window.written]"))
    for count, hardware in ((3, "8 x H100 80GB"), (1, "4 x A100 40GB mig"), (1, "4 x T4")):
        name = hardware.replace(" x ", " \N{MULTIPLICATION SIGN} ")
        nodes = "1 node" if count == 1 else f"{count} nodes"
        cards = f"{count * int(hardware[0])} GPUs"
        whole, split = {f"{nodes} of {name}, {cards}"}, {name, f"{nodes}, {cards}"}
        assert whole <= written or split <= written, (name, sorted(written))
