"""Delay a page's requests, so that a test can check the page while they are pending."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, Route

from tests.support.polling import wait_until


class Held:
    """The requests of a page that are delayed until the test releases them.

    If `times` is given, only the next `times` matching requests are delayed."""

    def __init__(self, page: Page, pattern: re.Pattern[str], *, times: int | None = None) -> None:
        self._page = page
        self._routes: list[Route] = []
        self._act: Callable[[Route], None] = self._routes.append
        intercept(page, pattern, self._hold, times=times)

    def _hold(self, route: Route) -> None:
        self._act(route)

    def end(self, act: Callable[[Route], None]) -> None:
        """Apply `act` to all delayed requests, and to later requests as soon as they are sent."""
        self._act = act
        for route in self._routes:
            act(route)

    def come(self) -> Route:
        """Wait for the next delayed request of the page, and return it."""
        wait_until(self._any, "a question to the gateway")
        return self._routes.pop(0)

    def _any(self) -> bool:
        listen(self._page)
        return bool(self._routes)


def intercept(
    page: Page,
    pattern: re.Pattern[str],
    handler: Callable[[Route], None],
    *,
    times: int | None = None,
) -> None:
    """Let `handler` handle the requests that match `pattern`. Return once this takes effect.

    On a busy page, `page.route` alone can return before it takes effect."""
    page.route(pattern, handler, times=times)
    listen(page)


def listen(page: Page) -> None:
    """Let Playwright process the browser's pending events."""
    page.evaluate("() => 0")
