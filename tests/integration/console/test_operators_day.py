"""The day of an operator, with the console alone: something breaks, and all of it is found.

Who was hit, why a pod waits, what it looked like before, what would happen without the node, and
what the day was worth: each from the page before by a link, a key or a field, as people do it.
"""

import re

from playwright.sync_api import Browser, Page, expect

from tests.support.browser.chromium import opened, visit
from tests.support.standalone import Standalone

REASON = "XID 79: fallen off the bus"
GREEDY = """\
apiVersion: v1
kind: Pod
metadata: {name: greedy, namespace: research}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 8}}}
"""


def test_the_day(browser: Browser, base: str, cluster: Standalone) -> None:
    """Every question is answered by going on from the answer before."""
    cluster.run("submit", "--wait", "-f", "-", stdin=GREEDY.encode())
    pods = {pod["name"]: pod for pod in cluster.json("get", "pods")["items"]}
    holder, waiting = pods["hami-pod"], pods["greedy"]
    assert holder["node"]
    assert not waiting["node"]
    device = holder["shares"][0]["device"]
    assert cluster.run("simulate", "fail", device, "--reason", REASON).returncode == 0
    try:
        with opened(browser, base) as page:
            visit(page, "")
            it_is_found_who_was_hit(page, holder["name"], holder["node"])
            it_is_found_how_it_was_and_who_waits(page, waiting["name"])
            it_is_found_what_would_be_and_what_it_was_worth(page, holder["name"], holder["node"])
    finally:
        cluster.run("simulate", "recover", device)
        cluster.run("delete", "research/greedy")


def it_is_found_who_was_hit(page: Page, pod: str, node: str) -> None:
    """From the count of broken cards to the card, and from there to its pod."""
    expect(page.locator("h1")).to_contain_text("1 broken")
    page.locator("h1 a", has_text="broken").click()
    page.locator("#matches-count").click()
    page.locator("#matches-list a").click()
    panel = page.locator("#panel")
    expect(panel).to_contain_text(REASON)
    panel.locator(".holders a", has_text=pod).click()
    expect(page.locator("h1")).to_contain_text(f"Runs on {node}")
    expect(page.locator("#main")).to_contain_text("cannot rely on what it holds")
    expect(page.locator(".tl")).to_contain_text(REASON)


def it_is_found_how_it_was_and_who_waits(page: Page, pod: str) -> None:
    """By keys: the mark of the failure, a minute before, now, and the lines."""
    page.keyboard.press("[")
    page.keyboard.press("Shift+ArrowLeft")
    expect(page.locator("html")).to_have_class("past")
    page.keyboard.press("n")
    page.keyboard.press("3")
    expect(page.locator("h1")).to_contain_text("wait for")
    page.locator(".line td a", has_text=pod).click()
    expect(page.locator("h1")).to_contain_text(re.compile("Waits for .*: "))


def it_is_found_what_would_be_and_what_it_was_worth(page: Page, pod: str, node: str) -> None:
    """What if the node is lost, the report of the day, and the health of it all."""
    visit(page, f"#/fleet?card={node}:0")
    page.get_by_role("link", name="What if it is lost?").click()
    expect(page.locator("#result")).to_contain_text("Who is hit")
    expect(page.locator("#result")).to_contain_text(pod)
    page.locator("#nav a", has_text="Reports").click()
    expect(page.locator("table").first).to_contain_text("default")
    page.locator("#nav a", has_text="Doctor").click()
    expect(page.locator("h1")).to_contain_text(re.compile("as they must be|checks pass"))
