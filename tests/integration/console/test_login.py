"""The console of a gateway with a login: users enter a token, and cordon in their own name."""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from apportion_schemas import NodeCordoned
from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import running_bus
from tests.support.processes import ServiceProcess
from tests.support.tokens import people


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a gateway that requires tokens. The gateway runs on an event loop of its
    own, because the browser occupies the test's loop."""
    folder = tmp_path_factory.mktemp("login")
    ready, done = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with running_bus(folder / "nats") as bus:
            facts = Facts(bus)
            await facts.open()
            await facts.write(rack("n1", 2), rack("n2", 2))
            await facts.write(NodeCordoned(node="n2", by="root@vm", reason="dust"))
            url = bus.server.url_for("gateway")
            options = ("--listen", "127.0.0.1:0", "--tokens", str(people(folder)))
            async with ServiceProcess("gateway", url, *options) as process:
                await process.ready()
                found.append(str((await process.logged("answering"))["console"]).rstrip("/"))
                ready.set()
                await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(150), "the gateway did not begin"
        yield found[0]
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_token_is_asked_for_first(
    browser: Browser, gate: str, size: tuple[int, int], theme: str
) -> None:
    """Before the login the page shows nothing of the cluster. A wrong token is refused with a
    message."""
    with opened(browser, gate, size=size, theme=theme) as page:
        page.goto("/#/pods")
        expect(page.locator("h1")).to_have_text("Log in")
        assert offences(page) == []
        if folder := os.environ.get("APPORTION_PICTURES"):  # to look at them
            page.screenshot(path=f"{folder}/login-{size[0]}-{theme}.png")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#refused")).to_have_text("the token is unknown or has expired.")
        page.get_by_label("Token").fill("")
        page.keyboard.press("Enter")
        expect(page.locator("#refused")).to_be_empty()
        page.get_by_label("Token").fill("mei")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("live")
        assert page.evaluate("document.cookie") == ""
        page.reload()
        expect(page.locator("h1")).to_contain_text("live")


def entered(page: Page, who: str) -> None:
    """Log in as this user, whose token equals the name."""
    page.goto("/")
    page.get_by_label("Token").fill(who)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("allocated")


def test_who_may_cordons_a_node_with_a_reason(browser: Browser, gate: str) -> None:
    """A user with the right to cordon gets buttons to cordon and uncordon a node with a reason.

    Other users see the command instead."""
    with opened(browser, gate) as page:
        entered(page, "olga")
        visit(page, "#/fleet?card=n1:0")
        page.get_by_role("button", name="Cordon n1…").click()
        expect(page.locator("#dialog h2")).to_have_text("Cordon n1 and all its devices")
        page.get_by_label("Reason", exact=True).fill("fan replaced on Monday")
        page.keyboard.press("Enter")
        expect(page.locator("#panel")).to_contain_text("fan replaced on Monday (olga")
        expect(page.locator("#panel .mini")).to_contain_text("node n1 cordoned by olga")
        page.get_by_role("button", name="Uncordon n1…").click()
        page.get_by_role("button", name="Uncordon", exact=True).click()
        expect(page.get_by_role("button", name="Cordon n1…")).to_be_visible()
        page.get_by_role("button", name="olga: Log out…").click()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="olga: Log out…").click()
        page.get_by_role("button", name="Log out", exact=True).click()
        expect(page.locator("h1")).to_have_text("Log in")
        page.get_by_label("Token").fill("mei")
        page.keyboard.press("Enter")
        visit(page, "#/fleet?card=n1:0")
        expect(page.locator("#panel")).to_contain_text("mei is not allowed to cordon.")
        expect(page.get_by_role("button", name="Cordon n1…")).to_have_count(0)
        expect(page.locator(".cmds")).to_contain_text("apportion cordon n1 --reason")
        assert offences(page) == []


def test_a_card_is_cordoned_by_keyboard_alone(browser: Browser, gate: str) -> None:
    """A user can find a GPU and cordon it with the keyboard alone."""
    with opened(browser, gate) as page:
        entered(page, "olga")
        page.keyboard.press("Control+k")
        page.keyboard.type("n2")
        expect(page.locator("#pal-rows a").first).to_contain_text("n2")
        page.keyboard.press("Enter")
        panel = page.locator("#panel")
        expect(panel.locator(".hc-h")).to_contain_text("n2 node")
        expect(page.locator("#cards")).to_be_focused()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(panel.locator(".hc-h")).to_contain_text("n2 device 1")
        button = page.get_by_role("button", name="Cordon device 1…")
        expect(button).to_be_visible()
        page.keyboard.press("Tab")
        while not button.evaluate("each => each === document.activeElement"):
            assert panel.evaluate("each => each.contains(document.activeElement)")
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#dialog h2")).to_have_text("Cordon device 1 on n2")
        page.keyboard.press("Escape")
        expect(page.locator("#dialog")).to_be_hidden()
        expect(panel).to_be_visible()
        expect(button).to_be_focused()
        page.keyboard.press("Enter")
        for blank in ("", "  "):
            page.get_by_label("Reason", exact=True).fill(blank)
            page.keyboard.press("Enter")
            expect(page.locator("#refused")).to_have_text("Enter a reason; others will see it.")
        page.get_by_label("Reason", exact=True).fill("XID 79")
        page.keyboard.press("Enter")
        expect(panel).to_contain_text("Cordoned: XID 79 (olga")
        expect(page.get_by_role("button", name="Uncordon device 1…")).to_be_focused()
        assert "2 cordoned" in page.locator("h1").inner_text()  # those of n2, by root@vm
        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
        expect(page.locator("#cards")).to_be_focused()


def test_a_cordon_of_somebody_else_names_the_command_that_lifts_it(
    browser: Browser, gate: str
) -> None:
    """For another user's cordon the panel shows the command that lifts the cordon, and the drain
    command."""
    with opened(browser, gate) as page:
        entered(page, "olga")
        visit(page, "#/node/n2")
        expect(page.locator(".cmds")).to_contain_text("apportion uncordon n2 --of root@vm")
        expect(page.locator(".cmds")).to_contain_text("apportion drain n2 --reason")
        expect(page.get_by_role("button", name="Cordon n2…")).to_be_enabled()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_has_what_the_side_has(browser: Browser, gate: str, theme: str) -> None:
    """On a phone, the More menu can change the theme, open the search and log out."""
    with opened(browser, gate, size=NARROW, theme=theme) as page:
        entered(page, "olga")
        page.get_by_role("button", name="More").click()
        assert offences(page) == []
        page.get_by_role("button", name="Toggle theme").click()
        other = "dark" if theme == "light" else "light"
        expect(page.locator("html")).to_have_attribute("data-theme", other)
        page.get_by_role("button", name="More").click()
        page.get_by_role("button", name="Go to…").click()
        page.keyboard.type("n1")
        expect(page.locator("#pal-rows a").first).to_contain_text("n1")
        page.keyboard.press("Enter")
        expect(page.locator("#panel .holders li")).to_have_count(2)
        assert offences(page) == []
        page.get_by_role("button", name="More").click()
        page.get_by_role("button", name="olga: Log out…").click()
        page.get_by_role("button", name="Log out", exact=True).click()
        expect(page.locator("h1")).to_have_text("Log in")
