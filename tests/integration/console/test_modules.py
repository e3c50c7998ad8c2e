"""The console's JavaScript modules that need no gateway, tested in a browser."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser.chromium import opened


@pytest.fixture(scope="module")
def page(browser: Browser, base: str) -> Iterator[Page]:
    """Provide a console page from which a test can import the console's JavaScript modules."""
    with opened(browser, base) as shown:
        shown.goto("/")
        yield shown


def run(page: Page, module: str, code: str, *arguments: Any) -> Any:
    """Import the console's module as `m` in the page, run `code` with `m` and the arguments, and
    return the result."""
    return page.evaluate(
        f"async given => {{ const m = await import('/console/js/{module}'); {code} }}",
        list(arguments),
    )


def test_a_narrow_chart_tells_below_it_what_has_no_room_in_it(page: Page) -> None:
    """Below a narrow chart, a list shows the legend and the chart's most important marks."""
    code = """const marks = given[0].map(([ms, look, words]) => ({ ms, look, words, kind: look }));
        const drawn = width => m.stackNotes({ width, times: [0], end: 100, marks,
          series: [{ name: "research", colour: "#4477AA", values: [1] }] });
        const box = document.createElement("div");
        const { mount } = await import("/console/js/html.js");
        mount(box, drawn(390));
        const words = each => each.textContent.replace(/\\s+/g, " ");
        return [drawn(900), [...box.querySelectorAll("span")].map(words)];"""
    marks = [[at, "policy", f"policy {at}"] for at in range(10, 60, 10)]
    wide, narrow = run(page, "chart.js", code, [*marks, [5, "broken", "fan"], [200, "ok", "later"]])
    assert wide == ""
    assert narrow == [
        "research", "fan", "policy 30", "policy 40", "policy 50", "and 2 more marks",
    ]  # fmt: skip


def test_templates_escape_what_is_put_in(page: Page) -> None:
    """Templates escape inserted text, in elements and in attributes, so that it never becomes
    markup."""
    evil = "<img src=x onerror=alert(1)>\"'&"
    found = run(
        page,
        "html.js",
        """const box = document.createElement('div');
        const said = [given[0], null, false];
        m.mount(box, m.html`<p title="${given[0]}" data-s="width:40%">${said}</p>`);
        const p = box.firstChild;
        return [box.children.length, p.children.length, p.textContent, p.title, p.style.width];""",
        evil,
    )
    assert found == [1, 0, evil, evil, "40%"]


@pytest.mark.parametrize("looks", [1, 3, 4])
@pytest.mark.parametrize("counts", [(1, 1), (9, 9), (120, 1), (1, 1200), (1200, 1200, 1200)])
def test_no_mark_lies_on_another_however_many_it_counts(
    page: Page, counts: tuple[int, ...], looks: int
) -> None:
    """Marks of the time bar never overlap.

    A mark is wider if it has a larger count or more kinds of events. Neighbouring marks that would
    therefore overlap are merged."""
    drawn = run(
        page,
        "marks.js",
        """const box = document.createElement('div');
        box.className = 't-marks';
        box.style.cssText = 'position:absolute;left:200px;top:200px;width:900px;height:60px';
        document.body.append(box);
        const [counts, looks] = given;
        const marks = counts.flatMap((count, at) => Array.from({ length: count }, (_, of) =>
          ({ at, revision: 1, sentence: 's', look: m.LOOKS[of % looks], label: 'failure' })));
        const { mount } = await import('/console/js/html.js');
        const found = [];
        for (let apart = m.MARK_ROOM; apart < 160; apart += 1) {
          mount(box, m.markButtons(m.grouped(marks, mark => 200 + mark.at * apart, 900), 900));
          found.push([...box.querySelectorAll('.mk')].map(mark => [...mark.children].map(each => {
            const { left, right } = each.getBoundingClientRect();
            return [left, right];
          })));
        }
        box.remove();
        return found;""",
        list(counts),
        looks,
    )
    for boxes in drawn:
        seen = sorted(each for mark in boxes for each in mark)
        assert len(seen) > len(boxes), "one of them has words"
        assert all(one[1] <= other[0] for one, other in pairwise(seen)), seen
