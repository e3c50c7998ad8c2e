"""No page depends on the wording of the gateway's sentences.

If every sentence is replaced, each page keeps its CSS classes, links and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.browser.chromium import opened, visit
from tests.support.lorem import reworded
from tests.support.standalone import Standalone

API = "/api/v1/"
FACTS = """() => [...document.querySelectorAll("#main *")]
  .filter(each => each.tagName !== "CODE" && each.tagName !== "TIME")
  .flatMap(each => [each.getAttribute("class"), each.getAttribute("href"), each.dataset.copy])
  .filter(Boolean)"""
"""The facts of a page apart from its text: each part's look, its links and its commands."""


@contextmanager
def in_other_words(page: Page) -> Iterator[list[str]]:
    """Replace the sentences in all responses during a `with` block. Yield the changed addresses."""
    changed: list[str] = []

    def answer(route: Route) -> None:
        headers = {**route.request.headers, "accept": "application/json"}
        response = route.fetch(headers=headers)
        body = msgspec.json.decode(response.body()) if response.ok else None
        other = reworded(body)
        if body == other:
            route.fulfill(response=response)
            return
        changed.append(route.request.url)
        route.fulfill(response=response, body=msgspec.json.encode(other))

    page.route(re.compile(re.escape(API) + "(?!events|me$)"), answer)
    try:
        yield changed
    finally:
        page.unroute_all(behavior="ignoreErrors")  # some may be under way


@pytest.fixture(scope="module")
def addresses(cluster: Standalone) -> list[str]:
    """Provide the addresses of the pages to visit: the fleet, pending and other pods, events, What
    if, and doctor."""
    pods: list[dict[str, Any]] = cluster.json("get", "pods")["items"]
    kinds = {(bool(each["node"]), each["never"]): each for each in pods}
    revision = cluster.json("get", "nodes")["revision"]
    places = [f"pods/{each['namespace']}/{each['name']}" for each in kinds.values()]
    pages = ("fleet", "waiting", *places, "events", "whatif?lose=t4-1")
    past = [f"#/{page}{'&' if '?' in page else '?'}at={revision}" for page in pages]
    return [*past, "#/doctor"]


def facts(page: Page, address: str) -> list[str]:
    """Open a page, and return its parts, links and colours without its text."""
    visit(page, address)
    if address.startswith("#/events"):
        expect(page.locator("#detail .x")).to_be_attached()
    return list(page.evaluate(FACTS))


def test_a_journey_reads_no_sentence(browser: Browser, base: str, addresses: list[str]) -> None:
    """Replacing every sentence in the gateway's responses changes no CSS class, link or command of
    any page."""
    found: list[dict[str, list[str]]] = []
    with opened(browser, base) as page:
        for other in (False, True):
            seen: dict[str, list[str]] = {}
            if other:
                with in_other_words(page) as changed:
                    for address in addresses:
                        seen[address] = facts(page, address)
                    expect(page.locator("#main")).to_contain_text("orem ipsum")
                assert len(changed) > len(addresses) // 2
            else:
                for address in addresses:
                    seen[address] = facts(page, address)
            found.append(seen)
    before, after = found
    for address in addresses:
        assert before[address] == after[address], address
