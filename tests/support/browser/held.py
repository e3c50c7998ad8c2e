"""Requests of a page that wait for a test's word, which looks at what is shown meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, Route

from tests.support.polling import wait_until


class Held:
    """Requests that have not reached the gateway yet: each goes on when it is told to.

    All of them, or the next `times`: those after them are not stopped here."""

    def __init__(self, page: Page, pattern: re.Pattern[str], *, times: int | None = None) -> None:
        self._page = page
        self._routes: list[Route] = []
        self._act: Callable[[Route], None] = self._routes.append
        page.route(pattern, self._hold, times=times)

    def _hold(self, route: Route) -> None:
        self._act(route)

    def end(self, act: Callable[[Route], None]) -> None:
        """Do this with all that are held, and with those that come yet."""
        self._act = act
        for route in self._routes:
            act(route)

    def come(self) -> Route:
        """Wait for one, which is the test's then."""
        wait_until(self._any, "a question to the gateway")
        return self._routes.pop(0)

    def _any(self) -> bool:
        listen(self._page)
        return bool(self._routes)


def listen(page: Page) -> None:
    """What the browser tells is heard while it is asked."""
    page.evaluate("() => 0")
