"""The page of queues shows them as a tree, with what each one borrows and lends."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from apportion_schemas import QueueObserved
from tests.integration.console.test_starts import served
from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, follow, opened, visit
from tests.support.fleet import rack
from tests.support.pods import cards, pod
from tests.support.story import Story

QUEUES = (("ops", "", 2), ("org", "", 8), ("research", "org", 6), ("vision", "org", 2))
PODS = {"research": 3, "vision": 5}  # of one GPU each
PENDING = 2  # of the queue vision, more than the rest of the node can take


def past(begin_s: int) -> Story:
    """Return a ledger in which the queue vision borrows GPUs of research."""
    story = Story(0, begin_s=begin_s)
    story.gap_s = 1
    story.play(
        rack("n3", sum(PODS.values())),
        *(QueueObserved(queue=name, parent=parent, deserved={"nvidia.com/gpu": gpus})
          for name, parent, gpus in QUEUES),
    )  # fmt: skip
    for queue, count in PODS.items():
        story.play(*(pod(f"{queue}-{number}", cards(), queue=queue) for number in range(count)))
    story.play(*(pod(f"late-{number}", cards(9), queue="vision") for number in range(PENDING)))
    return story


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the gateway of this ledger."""
    with served(tmp_path_factory.mktemp("queues"), past, "late-1") as address:
        yield address


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_queues_are_a_tree_with_loans(
    browser: Browser, gate: str, size: tuple[int, int], theme: str
) -> None:
    """A queue is below the queue above it. Its bar has a piece for what it borrows or lends."""
    with opened(browser, gate, size=size, theme=theme) as page:
        visit(page, "#/waiting")
        follow(page, page.get_by_role("link", name="View queues"))
        rows = page.locator("tbody tr")
        expect(rows.locator(".name .m")).to_have_text([name for name, _, _ in QUEUES])
        vision, research = (page.locator("tr", has_text=name) for name in ("vision", "research"))
        expect(vision).to_contain_text("1 GPU borrowed" if size == NARROW else "1 GPU")
        for row, look, other in ((vision, "borrowed", "lent"), (research, "lent", "borrowed")):
            expect(row.locator(f".q-{look}")).to_have_count(1)
            expect(row.locator(f".q-{other}")).to_have_count(0)
        expect(vision.locator("td").last).to_have_text(str(PENDING))
        assert offences(page) == []
        if folder := os.environ.get("APPORTION_PICTURES"):  # to look at them
            page.screenshot(path=f"{folder}/queues-{size[0]}-{theme}.png")


def test_without_queues(browser: Browser, base: str) -> None:
    """The page can be opened without queues, too."""
    with opened(browser, base) as page:
        visit(page, "#/queues")
        expect(page.locator("h1")).to_contain_text("queue", ignore_case=True)
        assert offences(page) == []
