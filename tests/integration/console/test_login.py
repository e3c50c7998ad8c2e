"""The console of a gateway with a login: a token first, then a cordon in its owner's name."""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import running_bus
from tests.support.processes import ServiceProcess
from tests.support.tokens import people


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that knows who has which token, on a loop of its own: the browser has ours."""
    folder = tmp_path_factory.mktemp("login")
    ready, done = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with running_bus(folder / "nats") as bus:
            facts = Facts(bus)
            await facts.open()
            await facts.write(rack("n1", 2))
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
        assert ready.wait(60), "the gateway did not begin"
        yield found[0]
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_token_is_asked_for_first(
    browser: Browser, gate: str, size: tuple[int, int], theme: str
) -> None:
    """Nothing of the cluster is there before; a wrong token is refused in words, a right one in."""
    with opened(browser, gate, size=size, theme=theme) as page:
        page.goto("/#/pods")
        expect(page.locator("h1")).to_have_text("Who are you?")
        assert offences(page) == []
        if folder := os.environ.get("APPORTION_PICTURES"):  # to look at them
            page.screenshot(path=f"{folder}/login-{size[0]}-{theme}.png")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#refused")).to_have_text(
            "this token is nobody's here, or it has ended."
        )
        page.get_by_label("Token").fill("mei")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("live")
        assert page.evaluate("document.cookie") == ""
        page.reload()
        expect(page.locator("h1")).to_contain_text("live")


def test_who_may_cordons_a_node_with_a_reason(browser: Browser, gate: str) -> None:
    """It stands there in his name, and he lifts it again; who may not is told so."""
    with opened(browser, gate) as page:
        page.goto("/")
        page.get_by_label("Token").fill("olga")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("granted")
        visit(page, "#/fleet?card=n1:0")
        page.get_by_role("button", name="Cordon…").click()
        page.get_by_label("Why").fill("fan replaced on Monday")
        page.keyboard.press("Enter")
        expect(page.locator("#panel")).to_contain_text("fan replaced on Monday (olga")
        page.get_by_role("button", name="Lift my cordon").click()
        page.get_by_role("button", name="Lift", exact=True).click()
        expect(page.get_by_role("button", name="Cordon…")).to_be_visible()
        page.get_by_role("button", name="olga: log out").click()
        expect(page.locator("h1")).to_have_text("Who are you?")
        page.get_by_label("Token").fill("mei")
        page.keyboard.press("Enter")
        visit(page, "#/fleet?card=n1:0")
        expect(page.get_by_role("button", name="Cordon…")).to_be_disabled()
