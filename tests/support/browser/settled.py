"""Wait until a page has processed an API response, for tests that check that it changes nothing."""

from __future__ import annotations

from playwright.sync_api import Page, Response

DRAWN = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
FRAMES = 3


def settled(page: Page, response: Response) -> None:
    """Wait until this response is complete and the browser has since drawn a few frames."""
    response.finished()
    for _ in range(FRAMES):
        page.evaluate(DRAWN)
