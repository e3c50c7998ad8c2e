"""A pod name in the address bar opens the pod's page, or lists the pods that the name may mean."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.console.test_pages import LATER
from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.standalone import Standalone

FULL_NAME = re.compile(r"[a-z0-9-]+/[a-z0-9.-]+")


def pod(name: str, namespace: str) -> bytes:
    """Return a manifest of a pod that requests one GPU."""
    return LATER.replace(b"name: later", f"name: {name}, namespace: {namespace}".encode())


@pytest.fixture(scope="module")
def named(cluster: Standalone) -> Iterator[Standalone]:
    """Provide two pods with the same name in two namespaces, a pod with a unique name, and an ended
    pod."""
    for name, namespace in (("twin", "red"), ("twin", "blue"), ("lone", "red"), ("gone", "red")):
        cluster.json("submit", "-f", "-", "--wait", stdin=pod(name, namespace))
    assert cluster.run("delete", "red/gone").returncode == 0
    yield cluster
    assert cluster.run("delete", "red/twin", "blue/twin", "red/lone").returncode == 0


def offered(page: Page) -> set[str]:
    """Return the names of the pods to which the page has links."""
    links = page.locator("#main .lead a[href^='#/pod/']")
    return {each for each in links.all_inner_texts() if FULL_NAME.fullmatch(each)}


def told(cluster: Standalone, *words: str) -> set[str]:
    """Return the pods that `apportion why` suggests for an unknown or ambiguous name."""
    done = cluster.run("why", *words)
    assert done.returncode == 1, done.stdout
    [_, meant] = re.split(r"did you mean|several pods have this name:", done.stderr)
    return set(FULL_NAME.findall(meant.partition("; write")[0]))


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_pod_that_is_typed_is_shown(
    browser: Browser, base: str, cluster: Standalone, size: tuple[int, int]
) -> None:
    """The typed address `#/pods/NAMESPACE/NAME` opens the pod's page, also with a past time, and is
    replaced by the canonical address."""
    at = cluster.json("get", "pods")["revision"]
    with opened(browser, base, size=size) as page:
        visit(page, "#/waiting")
        visit(page, "#/pods/default/hami-pod")
        expect(page.locator("h1")).to_contain_text("Running on")
        expect(page.locator(".crumb b")).to_have_text("hami-pod")
        assert page.url.endswith("/#/pod/default/hami-pod")
        expect(page.locator("#nav [aria-current]")).to_have_attribute("data-page", "pods")
        page.go_back()
        expect(page.locator("h1")).to_contain_text(re.compile(r"needs?\s"))
        visit(page, f"#/pods/default/hami-pod?at={at}")
        expect(page.locator("h1")).to_contain_text("Running on")
        expect(page.locator("html")).to_have_class("past")
        assert page.url.endswith(f"/#/pod/default/hami-pod?at={at}")
        visit(page, "#/pods/")
        expect(page.locator("h1")).to_contain_text("live pods ·")


def test_a_name_alone_is_that_of_why(browser: Browser, base: str, named: Standalone) -> None:
    """A name without a namespace means the pod in `default` if there is one, then a live pod, then
    an ended pod. `why` uses the same order."""
    said = {"hami-pod": "default", "lone": "red", "gone": "red"}
    with opened(browser, base) as page:
        for name, namespace in said.items():
            assert named.json("why", name)["namespace"] == namespace
            for path in ("pods", "pod"):
                visit(page, f"#/{path}/{name}")
                expect(page.locator(".crumb b")).to_have_text(name)
                assert page.url.endswith(f"/#/pod/{namespace}/{name}")
        expect(page.locator(".crumb .chip")).to_have_text("ended")


def test_of_a_name_that_is_there_again_the_newest_is_shown(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """For a reused pod name the page shows the newest pod, not one that has ended."""
    for _ in range(2):
        cluster.json("submit", "-f", "-", "--wait", stdin=pod("again", "red"))
        newest = cluster.json("why", "red/again")["history"][0]["revision"]
        with opened(browser, base) as page:
            visit(page, "#/pods/red/again")
            expect(page.locator("h1")).to_contain_text(" on ")
            story = page.locator(".tl li", has_text="Submitted").last
            expect(story.locator(".rev")).to_have_text(f"#{newest:,}")
        assert cluster.run("delete", "red/again").returncode == 0


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_what_may_be_meant_is_what_the_command_line_offers(
    browser: Browser, base: str, named: Standalone, size: tuple[int, int]
) -> None:
    """For an ambiguous or unknown name the page suggests the same pods as the command line."""
    asked = {"twin": ["twin"], "default/twin": ["default/twin"], "hami-pdo": ["hami-pdo"],
             "default/hami-pdo": ["default/hami-pdo"]}  # fmt: skip
    with opened(browser, base, size=size) as page:
        for typed, words in asked.items():
            visit(page, f"#/pods/{typed}")
            assert offered(page) == told(named, *words), typed
            assert offences(page) == [], typed
        page.locator("#main .lead a").first.click()
        expect(page.locator(".crumb b")).to_have_text("hami-pod")
        visit(page, "#/pods/twin")
        expect(page.locator("h1")).to_have_text("2 pods named twin")
        visit(page, "#/pods/zzzzzzzz")
        expect(page.locator("h1")).to_have_text("No pod named zzzzzzzz, now or before")
        assert offered(page) == set()
        visit(page, "#/pods/t4-1")
        page.locator("#main .lead").get_by_role("link", name="t4-1").click()
        expect(page.locator("#matches-count")).to_have_text("4 GPUs")
        visit(page, "#/pods/red")
        page.get_by_role("link", name="pods in red").click()
        expect(page.locator("tbody tr", has_text="lone")).to_be_visible()


def test_a_pod_that_came_later_is_offered_with_its_moment(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """If a pod did not exist yet at the time of a past view, its page shows an error. The error
    links to the pod's first revision."""
    came = cluster.json("why", "hami-pod")["history"][0]["revision"]
    with opened(browser, base) as page:
        visit(page, f"#/pods/default/hami-pod?at={came - 1}")
        expect(page.locator("h1")).to_have_text("No pod default/hami-pod at this time or before")
        assert offences(page) == []
        page.locator("#main .lead").get_by_role("link", name=f"#{came:,}").click()
        expect(page.locator(".crumb b")).to_have_text("hami-pod")
        assert page.url.endswith(f"/#/pod/default/hami-pod?at={came}")
        visit(page, f"#/pods/hami-pod?at={came - 1}")
        expect(page.locator("h1")).to_contain_text("named hami-pod at this time")
        page.keyboard.press("n")
        expect(page.locator(".crumb b")).to_have_text("hami-pod")
