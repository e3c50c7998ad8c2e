"""After an answer that must change nothing: the page has had it, and shown what it would."""

from __future__ import annotations

from playwright.sync_api import Page, Response

DRAWN = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
FRAMES = 3


def settled(page: Page, response: Response) -> None:
    """The answer is whole, and frames have been drawn since."""
    response.finished()
    for _ in range(FRAMES):
        page.evaluate(DRAWN)
