"""Hold back requests of a page, so that a test can check what is shown while they are pending."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, Route

from tests.support.polling import wait_until


class Held:
    """Requests that have not reached the gateway yet; the test releases each.

    Holds all of them, or only the next `times`."""

    def __init__(self, page: Page, pattern: re.Pattern[str], *, times: int | None = None) -> None:
        self._page = page
        self._routes: list[Route] = []
        self._act: Callable[[Route], None] = self._routes.append
        intercept(page, pattern, self._hold, times=times)

    def _hold(self, route: Route) -> None:
        self._act(route)

    def end(self, act: Callable[[Route], None]) -> None:
        """Apply `act` to all held requests and to those still to come."""
        self._act = act
        for route in self._routes:
            act(route)

    def come(self) -> Route:
        """Wait for a request, and hand it to the test."""
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
    """Route requests as `page.route` does, and wait for a round trip to the open page.

    On a busy page, `page.route` can return before it takes effect: the request of a key that is
    pressed at once then reaches the gateway."""
    page.route(pattern, handler, times=times)
    listen(page)


def listen(page: Page) -> None:
    """Let Playwright process the browser's events."""
    page.evaluate("() => 0")
