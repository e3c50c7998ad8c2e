"""Chromium, driven by Playwright: the machine's own, none is downloaded. The one without a window
is taken where it is there: the engine is the same, and it costs half of the time.

A page that says an error on its console, breaks the policy or throws has failed, whatever it looks
like. Without a browser the tests are skipped with the reason, unless it is required."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

REQUIRED = "APPORTION_REQUIRE_BROWSER"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
INSTALL = "apt-get install chromium-headless-shell"
WIDE = (1280, 800)
NARROW = (390, 844)
TIMEOUT_MS = 40_000
LAUNCH_MS = 90_000
SHOWN = """address => {
  const { dataset } = document.getElementById("main");
  return document.getElementById("main").ariaBusy === "false" && dataset.shown === address;
}"""
ANSWERS = ("status of 400", "status of 401", "status of 404", "status of 408")
"""The API's own answers, which pages put into words and browsers call errors: a wrong
moment, nobody who is known, no such thing, and nothing that happened while somebody waited."""


def executable() -> str:
    """The browser of this machine; empty where it has none."""
    return next((found for name in NAMES if (found := shutil.which(name))), "")


def skip_unless_here() -> None:
    """Skip the tests of a module where there is no browser; AssertionError if it must be there."""
    if executable():
        return
    reason = f"no browser: {INSTALL}"
    assert REQUIRED not in os.environ, f"pages must be tried here ({REQUIRED}), but {reason}"
    pytest.skip(reason, allow_module_level=True)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser without a screen, and without the sandbox that root cannot have."""
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"]
        browser = playwright.chromium.launch(
            executable_path=executable(), args=arguments, timeout=LAUNCH_MS
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser,
    base: str,
    *,
    size: tuple[int, int] = WIDE,
    theme: str = "light",
    zone: str = "UTC",
    answers: Collection[str] = ANSWERS,
) -> Iterator[Page]:
    """A page of one gateway in a context of its own; what it complains about fails the test.

    `answers` are parts of what the browser says of answers of the API that are no fault here."""
    context = browser.new_context(
        base_url=base,
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if theme == "dark" else "light",
        timezone_id=zone,
        locale="en-GB",
    )
    context.set_default_timeout(TIMEOUT_MS)
    complaints: list[str] = []

    def said(message: ConsoleMessage) -> None:
        url = str(message.location.get("url", ""))
        answered = "/api/v1/" in url and any(each in message.text for each in answers)
        if message.type in {"error", "warning"} and not answered:
            complaints.append(f"{message.type}: {message.text} {url}")

    try:
        page = context.new_page()
        page.on("console", said)
        page.on("pageerror", lambda error: complaints.append(f"threw: {error}"))
        try:
            yield page
        finally:  # what a test answers may be under way, and would fail whoever comes next
            page.unroute_all(behavior="ignoreErrors")
        if complaints:
            raise AssertionError("\n".join(complaints))
    finally:
        context.close()


def visit(page: Page, address: str) -> None:
    """Go to a page of the console, and wait until it has answered."""
    page.goto(f"/{address}")
    shown(page, address)


def follow(page: Page, link: Locator) -> None:
    """Follow a link to a page of the console, and wait until that has answered."""
    address = link.get_attribute("href")
    assert address, "the link goes nowhere"
    link.click()
    shown(page, address)


def shown(page: Page, address: str) -> None:
    """Wait until the page of an address has answered."""
    page.wait_for_function(SHOWN, arg=address)
