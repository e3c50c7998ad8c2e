"""How the console draws and labels charts, shares, node names and event chips."""

from __future__ import annotations

from itertools import combinations

import pytest
from playwright.sync_api import Page

from tests.integration.console import test_modules
from tests.integration.console.test_modules import run

page = test_modules.page

Boxes = list[list[float]]


@pytest.mark.parametrize(
    "minutes",
    [(60, 61), (60, 66, 75), (1, 9), (1, 2, 3, 170, 171, 172), (*range(60, 69),)],
    ids=str,
)
def test_words_of_marks_lie_on_no_line_and_no_other_words(
    page: Page, minutes: tuple[int, ...]
) -> None:
    """In a chart, a mark's label overlaps no line and no other label, however close the marks are
    to each other or to the edge."""
    words, lines, _ = charted(page, [(at, KINDS[each % 3]) for each, at in enumerate(minutes)])
    assert words
    assert lines
    pairs = [*combinations(words, 2), *((word, line) for word in words for line in lines)]
    assert not [pair for pair in pairs if meet(*pair)]


def test_no_mark_hides_a_failure(page: Page) -> None:
    """Where marks of a chart would overlap, failures are drawn and labelled. Other marks are only
    counted."""
    marks = [
        (60, "failure"),
        (120, "failure"),
        (121, "cordon"),
        *((at, "uncordon") for at in (122, 124, 126, 129)),
    ]
    _, _, told = charted(page, marks)
    assert sorted(told) == ["failure", "failure +5 more"]
    _, _, apart = charted(page, [(60, "failure"), (120, "cordon")])
    assert sorted(apart) == ["cordon", "failure"]


def test_failures_and_recoveries_of_one_mark_are_counted_apart(page: Page) -> None:
    """A chart mark that groups failures and recoveries shows one count for each, in different
    colours."""
    found = run(
        page,
        "marks.js",
        """const { mount } = await import('/console/js/html.js');
        const marks = ['broken', 'ok', 'broken', 'ok', 'ok'].map((look, at) =>
          ({ ms: at, revision: at, sentence: 's', look, label: look }));
        const [group] = m.grouped(marks, mark => mark.ms, 900);
        const box = mount(document.createElement('div'), m.markButtons([group], 900));
        return [...box.querySelectorAll('em')].map(each => [each.className, each.textContent]);""",
    )
    assert found == [["k-broken", "2"], ["k-ok", "3"]]


KINDS = ("configuration", "failure", "uncordon")


def charted(page: Page, marks: list[tuple[int, str]]) -> tuple[Boxes, Boxes, list[str]]:
    """Draw a chart with these marks. Return the boxes of the labels, the boxes of the lines, and
    the labels."""
    words, lines, told = run(
        page,
        "chart.js",
        """const { LOOK_OF } = await import('/console/js/marks.js');
        const { mount } = await import('/console/js/html.js');
        const minute = 60000, box = document.createElement('div');
        document.body.append(box);
        mount(box, m.stackChart({ width: 800, times: [0, 60 * minute, 120 * minute],
          end: 180 * minute, line: [9, 9, 9], off: [0, 0, 0], label: 'L', series: [],
          marks: given[0].map(([at, kind]) =>
            ({ ms: at * minute, kind, words: '', look: LOOK_OF[kind] })) }));
        const boxes = of => [...box.querySelectorAll(of)].map(each => {
          const { left, right, top, bottom } = each.getBoundingClientRect();
          return [left, right, top, bottom];
        });
        const found = [boxes('.mkw'), boxes('.mkl'),
          [...box.querySelectorAll('.mkw')].map(each => each.firstChild.data)];
        box.remove();
        return found;""",
        marks,
    )
    return words, lines, told


def meet(one: list[float], other: list[float]) -> bool:
    """Return True if two boxes overlap."""
    across = one[0] < other[1] and other[0] < one[1]
    return across and one[2] < other[3] and other[2] < one[3]


def test_the_pods_own_card_is_outlined_when_it_has_failed(page: Page) -> None:
    """A failed device is outlined if the pod shown has a share of that device."""
    found = run(
        page,
        "cards.js",
        """const { mount } = await import("/console/js/html.js");
        const box = document.body.appendChild(document.createElement("div"));
        const shares = own => [{ part: 0.04, state: "running", own }];
        mount(box, [true, false].map(own => m.gauge("broken", shares(own))));
        const found = [...box.querySelectorAll(".gauge")].map(
          card => getComputedStyle(card, "::after").boxShadow.includes("inset"));
        box.remove();
        return found;""",
    )
    assert found == [True, False]
