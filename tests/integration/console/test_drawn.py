"""What the console draws and words by itself: charts, shares, names of nodes, chips of kinds."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from typing import Any

import pytest
from playwright.sync_api import Page

from apportion_schemas.catalogue import CATALOGUE
from tests.integration.console import test_modules
from tests.integration.console.test_modules import run
from tests.support.browser.chromium import NARROW

page = test_modules.page
Boxes = list[list[float]]


def test_every_type_of_event_has_a_chip(page: Page) -> None:
    """Exactly one; a type that only a newer gateway knows has the chip of all such."""
    kinds = run(page, "kinds.js", "return m.KINDS;")
    types = sorted(each for group in kinds.values() for each in group)
    assert types == sorted(each.name for each in CATALOGUE)
    code = "return m.chipsOf(m.countKinds(given[0])).at(-1);"
    assert run(page, "kinds.js", code, {"PodGone": 1}) != "other"
    assert run(page, "kinds.js", code, {"OfTomorrow": 1}) == "other"


def share(device: str, memory_mib: int, cores: int, template: str = "") -> dict[str, Any]:
    """As the API tells what a container holds."""
    return {"device": device, "memory_mib": memory_mib, "cores": cores, "template": template}


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([], ""),
        ([share("a", 3000, 50)], "1 card, 3,000 MiB, 50 % cores"),
        ([share("a", 4096, 0)], "1 card, 4,096 MiB"),
        ([share("a", 6144, 2, "vir02")], "1 card, 6,144 MiB, vir02"),
        ([share("a", 30, 5), share("b", 30, 5)], "2 cards, 30 MiB, 5 % cores each"),
        ([share("a", 30, 5), share("a", 20, 0)], "1 card, 30 MiB, 5 % cores + 20 MiB"),
        ([share("a", 20, 0), share("a", 20, 0)], "1 card, 2 \N{MULTIPLICATION SIGN} 20 MiB"),
    ],
)
def test_what_a_pod_holds_is_told_whole(
    page: Page, shares: list[dict[str, Any]], words: str
) -> None:
    """Cores too, and what each of several containers has."""
    assert run(page, "words.js", "return m.holds(given[0]);", shares) == words


LAID = """const [widths, across] = given;
  const pools = widths.map((width, at) => ({ name: `pool ${at}`, width, cards: width }));
  for (const [at, pool] of pools.entries())
    pool.nodes = Array.from({ length: given[3] ?? 1 }, (_, place) => (
      { name: given[2] ?? `h100-${at}`, home: pool, place, count: pool.width }));
  const layout = new m.Layout(pools, across, 470, 1);"""


def test_on_a_phone_nodes_of_four_cards_have_their_names(page: Page) -> None:
    """Of the fleet that `apportion up` simulates, whose pools are of eight cards and of four."""
    code = f"{LAID} return layout.groups.map(group => group.named);"
    found = run(page, "fleet/layout.js", code, [8, 8, 8, 4, 4, 4, 4], NARROW[0])
    assert found == [True] * 7


def test_a_name_is_written_where_it_has_room(page: Page) -> None:
    """Also in a pool that is wider than its few cards are; and not where it would be cut."""
    code = f"""{LAID} layout.zoomTo(4);
      const at = (group, across) => Boolean(layout.at(layout.left + group.x + across,
        layout.top + layout.head + group.label + 1));
      return layout.groups.map(group => [group.named, group.label > 0, at(group, 1),
        at(group, group.nodeWidth - 1)]);"""
    found = run(page, "fleet/layout.js", code, [8, 2], 1104)
    assert found == [[True, True, True, True], [True, True, True, False]]
    code = f"""{LAID} layout.zoomTo(4);
      return layout.groups.map(group => [group.named, group.label > 0]);"""
    found = run(page, "fleet/layout.js", code, [8, 2], 1104, "gpu-node-of-row-7", 40)
    assert found == [[False, False]] * 2


def test_where_a_name_stands_is_its_node(page: Page) -> None:
    """Not a card of it; below it stand the cards."""
    code = f"""{LAID} const {{ x, y }} = layout.boxOf(pools[0].nodes[0], 0);
      return [layout.at(x + 2, y - 4).card, layout.at(x + 2, y + 2).card];"""
    assert run(page, "fleet/layout.js", code, [8, 2], 1104) == [-1, 0]


@pytest.mark.parametrize("height", [12, 26, 40, 60])
@pytest.mark.parametrize(
    ("memory", "whole"),
    [([0.024] * 40, 0.96), ([0.024] * 5, 0.12), ([0.01] * 10 + [0.9], 1.0), ([0.5, 0.5], 1.0)],
    ids=["forty", "five", "ten and one", "two"],
)
def test_every_share_of_a_card_is_seen(
    page: Page, height: int, memory: list[float], whole: float
) -> None:
    """A pixel of each as long as there are any, up to where their sum ends, and no gaps alone."""
    rows = run(
        page,
        "fleet/paint.js",
        """const [height, memory] = given, ground = 9, rows = Array(height).fill(0);
        const painter = Object.create(m.Painter.prototype);
        painter.colours = { ground, granted: [1], used: [2] };
        painter.rect = (x, y, width, tall, colour) => rows.fill(colour, y, y + tall);
        const running = memory.map(() => 1), start = [0, memory.length];
        painter.shares({ state: [0], start, memory, running },
          0, { x: 0, y: 0, width: 8, height, dim: 0, told: false });
        return rows;""",
        height,
        memory,
    )
    drawn = [row for row in rows if row == 2]
    assert len(drawn) >= min(height, len(memory)) - rows.count(9)
    assert len(drawn) > 2 * rows.count(9)
    held = height - (rows.index(2) if 9 not in rows else min(rows.index(2), rows.index(9)))
    assert held == min(height, max(round(whole * height), len(memory)))


@pytest.mark.parametrize(
    "minutes",
    [(60, 61), (60, 66, 75), (1, 9), (1, 2, 3, 170, 171, 172), (*range(60, 69),)],
    ids=str,
)
def test_words_of_marks_lie_on_no_line_and_no_other_words(
    page: Page, minutes: tuple[int, ...]
) -> None:
    """However near marks are to each other and to the edge."""
    words, lines, _ = charted(page, [(at, KINDS[each % 3]) for each, at in enumerate(minutes)])
    assert words
    assert lines
    pairs = [*combinations(words, 2), *((word, line) for word in words for line in lines)]
    assert not [pair for pair in pairs if meet(*pair)]


def test_no_mark_hides_a_failure(page: Page) -> None:
    """Of marks that would meet failures are drawn and told; the others are counted."""
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
    """Whatever the width makes one of them: a recovery is told in no colour of a failure."""
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


def test_a_recovered_card_is_no_red_on_the_bar(page: Page) -> None:
    """Its event is of the type that tells failures; its mark tells which it is."""
    time = "2026-11-20T14:20:07Z"
    span = {"from_time": time, "to_time": time, "first_revision": 1, "last_revision": 9}
    mark = {
        "time": time,
        "revision": 3,
        "kind": "recovery",
        "sentence": "device g0 of n1 recovered",
    }
    answer = {
        "bins": [{**span, "counts": {"DeviceHealthChanged": 4, "PodPlaced": 5}}],
        "marks": [mark, {**mark, "revision": 12}],
        "first_time": time, "last_time": time, "first_revision": 1,
    }  # fmt: skip
    code = "return m.read(given[0]).bins.map(({ quiet, red }) => [quiet, red]);"
    assert run(page, "timebar.js", code, answer) == [[6, 3]]


KINDS = ("configuration", "failure", "uncordon")


def charted(page: Page, marks: list[tuple[int, str]]) -> tuple[Boxes, Boxes, list[str]]:
    """Where a chart has the words of marks and their lines, and what the words are."""
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
    """Whether two boxes have a point in common."""
    across = one[0] < other[1] and other[0] < one[1]
    return across and one[2] < other[3] and other[2] < one[3]


def test_names_beside_a_chart_stay_in_it(page: Page) -> None:
    """However thin the last of a full stack are, which would push each other over its head."""
    text = run(
        page,
        "chart.js",
        """const series = [90, 1, 1, 1, 1, 1, 1, 1].map((value, at) => (
          { name: `n${at}`, colour: '#111111', values: [value] }));
        return m.stackChart({ width: 800, times: [0], end: 3600000, line: [97], off: [0],
          label: 'L', marks: [], series }).text;""",
    )
    places = [float(y) for y in re.findall(r'class="lb" x="[^"]*" y="([^"]*)"', text)]
    assert len(places) == 8
    assert min(places) > 8
    assert all(lower - upper >= 12.9 for lower, upper in pairwise(places))


def test_the_pods_own_card_is_outlined_when_it_has_failed(page: Page) -> None:
    """What is cut through has no bars, and as a whole the outline that the legend names."""
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


def test_one_mark_more_is_one(page: Page) -> None:
    """Not one marks."""
    code = """const marks = [1, 2, 3, 4, 5].map(ms => ({ ms, look: "policy", words: "w" }));
        return m.stackNotes({ width: 390, times: [0], end: 100, marks, series: [] }).text;"""
    assert "and 1 more mark<" in run(page, "chart.js", code)
