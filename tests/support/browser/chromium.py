"""Drive this machine's own Chromium with Playwright. Nothing is downloaded.

A test fails if its page logs or throws an error, or violates the content security policy. If there
is no browser, the tests are skipped with the reason; if a browser is required, they fail."""

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
"""Error statuses that pages handle but browsers log: a bad revision, no login, not found, and a
wait in which nothing happened."""


def executable() -> str:
    """Return the path of the browser, or "" if none is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), "")


def skip_unless_here() -> None:
    """Skip a module's tests if there is no browser.

    Raises AssertionError if a browser is required."""
    if executable():
        return
    reason = f"no browser: {INSTALL}"
    assert REQUIRED not in os.environ, f"pages must be tried here ({REQUIRED}), but {reason}"
    pytest.skip(reason, allow_module_level=True)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Yield a headless browser. Its sandbox is off, because the sandbox does not work for root."""
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
    """Yield a page in a new browser context, for the gateway at the URL `base`.

    The test fails if the page logs an error. The exceptions are messages about failed API requests
    that contain one of `answers`."""
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
        except BaseException as error:
            for complaint in complaints:
                error.add_note(complaint)
            raise
        finally:  # open routes would otherwise fail the next test
            page.unroute_all(behavior="ignoreErrors")
        if complaints:
            raise AssertionError("\n".join(complaints))
    finally:
        context.close()


def visit(page: Page, address: str) -> None:
    """Open a page of the console, and wait until the page has loaded its data."""
    page.goto(f"/{address}")
    shown(page, address)


def follow(page: Page, link: Locator) -> None:
    """Follow a link to a page of the console, and wait until that page has loaded its data."""
    address = link.get_attribute("href")
    assert address, "the link goes nowhere"
    link.click()
    shown(page, address)


def shown(page: Page, address: str) -> None:
    """Wait until the page at this address has loaded its data."""
    page.wait_for_function(SHOWN, arg=address)
