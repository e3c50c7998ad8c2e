"""Wait until a page has processed an API response, or a press of a key or button."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, Response

DRAWN = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
FRAMES = 3
WATCH = """() => {
  const main = document.getElementById("main");
  globalThis.wasHidden = false;
  new MutationObserver(() => {
    globalThis.wasHidden ||= document.getElementById("newer")?.hidden ?? false;
  }).observe(main, { subtree: true, childList: true, attributes: true });
}"""
PAINTED = """() => performance.getEntriesByName("first-contentful-paint").length > 0"""
WAS_HIDDEN = "() => globalThis.wasHidden"


def painted(page: Page) -> None:
    """Wait for the first paint, because a browser may drop a key that is pressed before it."""
    page.wait_for_function(PAINTED)


def settled(page: Page, response: Response) -> None:
    """Wait until this response is complete and the browser has since drawn a few frames."""
    response.finished()
    for _ in range(FRAMES):
        page.evaluate(DRAWN)


@contextmanager
def shows_newer(page: Page) -> Iterator[None]:
    """Let the block press the button for newer entries. Then wait until the page has hidden it."""
    painted(page)
    page.evaluate(WATCH)
    yield
    page.wait_for_function(WAS_HIDDEN)
