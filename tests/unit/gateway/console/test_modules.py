"""Tests of the console's JavaScript modules that need no browser. They run in Node.js."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from apportion.core.explain.text.vocabulary import OUTCOMES, PHASES, STORY
from apportion.core.names import near
from apportion.runtime.ledger.moments import MomentError, parse_moment
from apportion_schemas import CATALOGUE
from apportion_schemas.operations import POLICIES
from tests.support.golden import Golden
from tests.support.node_modules import NodeModules

NOW = datetime(2026, 11, 20, 14, 20, 7, 600_000, UTC)


ROW = [
    "n1", "8 x H100", 1, "", [["H100", 1000]], [0, 0, 0, 1, 0, 1, 3, 0, 2],
    {"1": "XID 79"},
    [["a", "x", "allocated", [0, 250, 0, 1, 1000, 100], "a/ring"],
     ["b", "y", "placed", [0, 500, 0]]],
    {"2": "fan"},
]  # fmt: skip


def share(device: str, memory_mib: int, cores: int, template: str = "") -> dict[str, Any]:
    """Return a container's share as the API sends it."""
    amounts = {"memory_mib": memory_mib, "cores": cores, "template": template}
    return {"container": "main", "device": device, **amounts}


LAID = """const [widths, across] = given;
  const pools = widths.map((width, at) => (
    { name: `pool ${at}`, hardware: [], width, cards: width }));
  for (const [at, pool] of pools.entries())
    pool.nodes = Array.from({ length: given[3] ?? 1 }, (_, place) => (
      { name: given[2] ?? `h100-${at}`, home: pool, place, count: pool.width }));
  const layout = new m.Layout(pools, across, 470, 1);"""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("m.num(1234567.4)", "1,234,567"),
        ("m.num(null)", "\u2013"),
        ("m.decimal(0)", "0.00"),
        ("m.decimal(17)", "17.00"),
        ("m.decimal(1234.567)", "1,234.57"),
        ("m.decimal(0.01)", "0.01"),
        ("m.decimal(0.0042)", "0.0042"),
        ("m.percent(0)", "0\N{NO-BREAK SPACE}%"),
        ("m.percent(0.004)", "<1\N{NO-BREAK SPACE}%"),
        ("m.percent(0.614)", "61\N{NO-BREAK SPACE}%"),
        ("m.percent(NaN)", "\N{EN DASH}"),
        ("m.many(1, 'pod')", "1 pod"),
        ("m.many(1200, 'pod')", "1,200 pods"),
        ("m.duration(0.21)", "0.2 s"),
        ("m.duration(59.6)", "1 min 00 s"),
        ("m.duration(11220)", "3 h 07 min"),
        ("m.duration(2 * 86400 + 4 * 3600)", "2 d 4 h"),
        ("m.clock(Date.parse('2026-11-20T14:20:07Z'))", "14:20:07"),
        ("m.shortModel('NVIDIA H100 80GB HBM3')", "H100 80GB"),
        ("m.shortModel('Tesla V100-SXM2-32GB')", "V100 32GB"),
        (
            "m.poolWords({ hardware: [{ count: 8, model: 'NVIDIA A100-SXM4-40GB', mode: 'mig' }]})",
            "8 \N{MULTIPLICATION SIGN} A100 40GB mig",
        ),
        ("m.poolWords({ name: 'train-h100', hardware: [] })", "train-h100"),
        (
            "m.subjectWords('apportion.v1.inventory.gpu-1%2Eexample%2Ecom')",
            "inventory.gpu-1.example.com",
        ),
        ("m.subjectWords('apportion.v1.inventory.50%FF')", "inventory.50%FF"),
        ("m.midCut('h100-1', 14)", "h100-1"),
        ("m.midCut('gke-europe-west4-pool-7f3c-x9zq', 14)", "gke-e\N{HORIZONTAL ELLIPSIS}f3c-x9zq"),
        ("['node-10', 'node-2', 'node-1'].sort(m.byName).join()", "node-1,node-2,node-10"),
        ("String(m.between('2026-11-20T14:20:07Z', '2026-11-20T14:20:09Z'))", "2"),
        ("String(m.between('', '2026-11-20T14:20:09Z'))", "null"),
        ("m.behindWords(75.86, 75.84)", "\N{MINUS SIGN}0.1"),
        ("m.behindWords(75.84, 75.76)", "\N{MINUS SIGN}<0.1"),
        ("m.behindWords(88.349, 88.151)", "\N{MINUS SIGN}0.1"),
        ("m.behindWords(88.2, 88.2)", "tie"),
        ("m.behindWords(1, 2.5)", "+1.5"),
    ],
)
def test_numbers_and_times_as_people_read_them(node: NodeModules, call: str, words: str) -> None:
    """The console formats numbers, times and names so that people can read them, including edge
    cases."""
    assert node.run("format.js", f"return {call};") == words


@pytest.mark.parametrize(
    "text",
    [
        "1", "1200", "now", "-10m", "-36s", "-2h", "-1d", "-0s", "-999999999d", "-5w",
        "14:20", "14:20:07", "14:21", "9:05", "00:00", "24:00", "14:60", "2026-11-20",
        "2026-11-20T03:00", "2026-11-20 03:00:59", "2026-11-20T03", "2026-02-30", "2026-13-01",
        "2026-11-20T03:00Z", "2026-11-20T03:00:01.250Z", "2026-11-20T03:00+05:30",
        "2026-11-20T03:00-08:00", "2026-11-20T25:00", "yesterday", "", "#", "1.5",
    ],
)  # fmt: skip
def test_a_moment_is_read_as_the_command_line_reads_it(node: NodeModules, text: str) -> None:
    """The console reads times as the CLI does. It also reads the formats that it shows and puts
    into URLs."""
    try:
        moment = parse_moment(text, NOW)
    except MomentError:
        wanted = text
    else:
        wanted = str(moment.revision)
        if moment.time is not None and text != "now":
            wanted = moment.time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    code = """const once = m.askedMoment(given[0], given[1]);
        const written = m.askedMoment(once.shown, given[1], true);
        return [once.asked, m.askedMoment(once.asked, given[1]).asked, written.asked];"""
    asked, again, written = node.run("moment.js", code, text, NOW.timestamp() * 1000)
    assert asked == again == written
    if wanted.endswith("Z"):
        exact = datetime.fromisoformat(wanted)
        since = exact - datetime.fromisoformat(asked)
        assert timedelta(0) <= since < timedelta(seconds=1), asked
    else:
        assert asked == ("now" if text == "now" else wanted)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2026-11-26T10:00:00 02:00", "2026-11-26T10:00:00+02:00"),
        ("2026-11-26T10:00 0200", "2026-11-26T10:00+0200"),
        ("2026-11-26T10:00:00.25 05:30", "2026-11-26T10:00:00.25+05:30"),
        ("2026-11-26 10:00", "2026-11-26 10:00"),
        ("2026-11-26T10:00:00Z", "2026-11-26T10:00:00Z"),
        ("2026-11-26T10:00-02:00", "2026-11-26T10:00-02:00"),
    ],
)
def test_an_address_loses_no_zone(node: NodeModules, text: str, written: str) -> None:
    """The plus sign of a time zone is kept in a URL query, although a plus there usually means a
    space."""
    assert node.run("moment.js", "return m.withPlus(given[0]);", text) == written


@pytest.mark.parametrize(("text", "asked"), [("#1,214,394", "1214394"), ("#12", "12")])
def test_a_revision_is_read_as_pages_write_it(node: NodeModules, text: str, asked: str) -> None:
    """A user may type a revision in the form in which the console's pages show it."""
    code = "const found = m.askedMoment(given[0], 0); return [found.asked, found.shown];"
    assert node.run("moment.js", code, text) == [asked, text]


@pytest.mark.parametrize("seed", range(4))
def test_names_are_near_as_on_the_command_line(node: NodeModules, seed: int) -> None:
    """For a mistyped name, the console suggests the same names as the CLI, in the same order."""
    chance = random.Random(seed)
    parts = ("hami", "pod", "worker", "gpu", "train", "0", "1", "12", "a", "llm")
    known = ["-".join(chance.choices(parts, k=chance.randint(1, 4))) for _ in range(80)]
    known += ["gpu-1", "GPU-1", "gpu-l", "p0d", "Worker-O"]  # some look alike
    asked = ["".join(chance.sample(name, len(name))) for name in known[:10]]
    asked += [name[1:] + name[:1] for name in known[:20]] + [
        "",
        "x",
        "gpu-I",
        "WORKER-0",
        *known[:5],
        *known[-5:],
    ]
    code = "return given[0].map(name => m.near(name, given[1]));"
    assert node.run("meant.js", code, asked, known) == [near(name, known) for name in asked]


def test_a_packed_row_becomes_cards_with_their_holders(node: NodeModules) -> None:
    """The console unpacks a node's compact row into its devices, with their shares, states and
    totals."""
    found = node.run(
        "fleet/model.js",
        """const f = new m.Fleet();
        f.take({ whole: true, revision: 7, nodes: [given[0]], gone: [] });
        const n = f.nodes.get('n1');
        return { start: n.start, memory: n.memory, running: n.running, index: n.index,
          states: [0, 1, 2].map(card => m.stateOf(n, card)), totals: f.totals() };""",
        ROW,
    )
    assert found["start"] == [0, 2, 3, 3]
    assert found["memory"] == [0.25, 0.5, 1]
    assert found["running"] == [1, 0, 1]
    assert found["index"] == [0, 1, 3]
    assert found["states"] == ["granted", "broken", "cordoned"]
    totals = found["totals"]
    wanted = {"cards": 3, "granted": 2, "broken": 1, "cordoned": 1, "free": 0}
    assert {name: totals[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "words"),
    [("n1", "node:n1  ns:a"), ("n" * 20, f"node:{'n' * 20}"), ("n" * 40, ""), (None, "")],
)
def test_the_field_shows_words_that_find_something(
    node: NodeModules, name: str | None, words: str
) -> None:
    """The search field's example is a node and a namespace of the current cluster."""
    rows = [] if name is None else [["m", *ROW[1:7], [], {}], [name, *ROW[1:]]]
    found = node.run(
        "fleet/model.js",
        """const f = new m.Fleet();
        f.take({ whole: true, revision: 7, nodes: given[0], gone: [] });
        return f.example();""",
        rows,
    )
    assert found == words


def test_a_card_that_is_broken_and_cordoned_says_each_reason(node: NodeModules) -> None:
    """A device that is unhealthy and cordoned shows both reasons, and is included in both
    counts."""
    row = ["n1", "H100", 1, "", [["H100", 1000]], [0, 0, 3], {"0": "XID 79"}, [], {"0": "fan"}]
    found = node.run(
        "fleet/card.js",
        """const { Fleet } = await load('fleet/model.js');
        const f = new Fleet();
        f.take({ whole: true, revision: 7, nodes: [given[0]], gone: [] });
        const { broken, cordoned } = f.totals();
        return [m.facts(f.nodes.get('n1'), 0).text, broken, cordoned];""",
        row,
    )
    assert "<span>XID 79</span>" in found[0]
    assert "<span>Cordoned: fan</span>" in found[0]
    assert found[1:] == [1, 1]


def test_changed_rows_take_the_place_of_older_ones(node: NodeModules) -> None:
    """If a node's row changes, every node keeps its position. If a node is added or removed, other
    nodes move."""
    after = [*ROW[:7], [], {}]
    found = node.run(
        "fleet/model.js",
        """const f = new m.Fleet(), [row, after, other] = given;
        const take = (nodes, gone = []) => f.take({ whole: false, revision: 8, nodes, gone });
        f.take({ whole: true, revision: 7, nodes: [row], gone: [] });
        const held = f.pools[0].held;
        return [take([after]), f.totals().granted, f.pools[0].held < held, take([other]),
          f.pools[0].nodes.map(node => node.name), take([], ['n1']), f.nodes.size];""",
        ROW, after, ["n10", *ROW[1:]],
    )  # fmt: skip
    assert found == [False, 0, True, True, ["n1", "n10"], True, 1]


def test_use_that_is_told_is_shown_until_it_is_not(node: NodeModules) -> None:
    """The console shows a share's usage while it is reported. A share is idle only if the reported
    usage is almost zero."""
    found = node.run(
        "fleet/model.js",
        """const f = new m.Fleet(), said = [];
        f.take({ whole: true, revision: 7, nodes: [given[0]], gone: [] });
        const node = f.nodes.get('n1');
        const look = () => said.push([f.told, m.used(node, 0), m.isIdle(node, 0), f.totals().idle]);
        look();
        f.takeUse([['n1', [['a/x', 0, 0.8], ['b/y', 0, 0.5]]]]);
        look();
        f.takeUse([['n1', [['a/x', 0, 0.01], ['b/y', 0, 0]]]]);
        look();
        f.takeUse([['n1', []]]);
        look();
        return said;""",
        ROW,
    )
    assert found == [
        [False, -1, False, 0],
        [True, pytest.approx(0.45), False, 0],
        [True, pytest.approx(0.0025), True, 1],
        [False, -1, False, 0],
    ]


@pytest.mark.parametrize(
    ("text", "show", "cards"),
    [
        ("", "all", [1, 1, 1]),
        ("", "broken", [0, 1, 0]),
        ("", "cordoned", [0, 0, 1]),
        ("node:n1 ns:b", "all", [1, 0, 0]),
        ("pod:a/x", "all", [1, 1, 0]),
        ("state:granted", "broken", [0, 1, 0]),
        ("node:n", "all", [0, 0, 0]),
        ("n1", "all", [1, 1, 1]),
        ("gang:ring", "all", [1, 1, 0]),
        ("gang:x", "all", [0, 0, 0]),
        ("state:fine", "all", [0, 0, 0]),
        ("colour:red", "all", [0, 0, 0]),
    ],
)
def test_a_filter_means_cards(node: NodeModules, text: str, show: str, cards: list[int]) -> None:
    """A word of a filter may match a node, namespace, pod, gang or state. The filter finds the
    devices that match all its words."""
    found = node.run(
        "fleet/model.js",
        """const model = await load('fleet/model.js');
        return [...new m.Filter(given[1], given[2]).of(model.unpack(given[0]))];""",
        ROW, text, show,
    )  # fmt: skip
    assert found == cards


@pytest.mark.parametrize("nodes", [1, 7, 200, 10_000])
def test_all_cards_have_a_place_of_their_own_and_are_found_there(
    node: NodeModules, nodes: int
) -> None:
    """Each device has its own rectangle inside the view. Pointing at the rectangle finds the
    device."""
    found = node.run(
        "fleet/layout.js",
        """const [count] = given, pools = [
          { name: 'big', hardware: [], width: 8, nodes: [] },
          { name: 'small', hardware: [], width: 4, nodes: [] }];
        for (let at = 0; at < count; at += 1) {
          const pool = pools[at % 5 ? 0 : 1];
          const place = pool.nodes.length;
          pool.nodes.push({ name: `n-${at}`, home: pool, place, count: pool.width });
        }
        const used = pools.filter(pool => pool.nodes.length);
        const layout = new m.Layout(used, 1104, 588, 1);
        const seen = new Set();
        let outside = 0, wrong = 0, twice = 0;
        const cards = used.flatMap(pool => pool.nodes)
          .flatMap(node => [[node, 0], [node, node.count - 1]]);
        for (const [node, card] of cards) {
          const box = layout.boxOf(node, card);
          const key = `${box.x},${box.y}`;
          if (seen.has(key)) twice += 1;
          seen.add(key);
          const inside = box.x >= 0 && box.y >= 0 && box.x + box.width <= 1104
            && box.y + box.height <= 588;
          if (!inside) outside += 1;
          const at = layout.at(box.x + box.width / 2, box.y + box.height / 2);
          if (at?.node !== node || at.card !== card) wrong += 1;
        }
        return [outside, wrong, twice, layout.cardWidth >= 1];""",
        nodes,
    )
    assert found == [0, 0, 0, True]


def test_zooming_keeps_what_is_under_the_pointer(node: NodeModules) -> None:
    """When a user zooms, the device under the pointer stays where it is."""
    found = node.run(
        "fleet/layout.js",
        """const pool = { name: 'p', hardware: [], width: 8, nodes: [] };
        for (let at = 0; at < 500; at += 1)
          pool.nodes.push({ name: `n-${at}`, home: pool, place: at, count: 8 });
        const layout = new m.Layout([pool], 1104, 588, 1);
        const [x, y] = [403, 301];
        const before = layout.at(x, y).node.place;
        layout.zoomBy(3, x, y);
        const inside = layout.at(x, y).node.place;
        layout.zoomBy(-3, x, y);
        return [before, inside, layout.at(x, y).node.place];""",
    )
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("value", "ticks"),
    [
        (0, [0, 0.1]),
        (0.3, [0, 0.1, 0.2, 0.3]),
        (7, [0, 2, 4, 6, 8]),
        (50, [0, 10, 20, 30, 40, 50]),
        (51, [0, 20, 40, 60]),
        (1480, [0, 500, 1000, 1500]),
        (81_000, [0, 20_000, 40_000, 60_000, 80_000, 100_000]),
    ],
)
def test_an_axis_has_round_numbers(node: NodeModules, value: float, ticks: list[float]) -> None:
    """The steps of an axis are 1, 2 or 5 times a power of ten, and the axis covers the value."""
    assert node.run("chart.js", "return m.numberTicks(given[0]);", value) == ticks


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ("09:58:11", "10:00:13", ["09:58:30", "09:59:00", "09:59:30", "10:00:00"]),
        ("09:58:11", "10:21:00", ["10:00", "10:05", "10:10", "10:15", "10:20"]),
        ("22:10:00", "23:59:59", ["22:30", "23:00", "23:30"]),
    ],
)
def test_an_axis_has_round_times(node: NodeModules, start: str, end: str, words: list[str]) -> None:
    """The labels of a time axis are round times, at the finest step for which there is room."""
    code = "return m.timeTicks(...given.map(Date.parse), 5).map(tick => tick.words);"
    found = node.run("chart.js", code, *(f"2026-11-20T{at}Z" for at in (start, end)))
    assert found == words


def test_midnight_is_its_day(node: NodeModules) -> None:
    """At midnight, a time axis shows the date instead of the time."""
    code = "return m.timeTicks(...given.map(Date.parse), 5).map(tick => tick.words);"
    asked = ("2026-11-19T20:00:00Z", "2026-11-20T05:00:00Z")
    assert node.run("chart.js", code, *asked) == ["20:00", "22:00", "11-20", "02:00", "04:00"]
    days = node.run("chart.js", code, "2026-11-18T20:00:00Z", "2026-11-22T05:00:00Z")
    assert days == ["11-19", "11-20", "11-21", "11-22"]


def test_a_chart_holds_its_values_and_its_axis_is_round(node: NodeModules) -> None:
    """A chart has an area for each series and round numbers on its axis. Its labels are escaped."""
    text = node.run(
        "chart.js",
        """const hour = 3600000, times = [0, hour, 2 * hour];
        const line = [9, 5, 5], off = [0, 4, 4];
        return m.stackChart({ width: 800, times, end: 3 * hour, line, off, label: 'L', marks: [
          { ms: hour, kind: 'failure', words: '<b>', look: 'broken' }],
          series: [{ name: 'a', colour: '#111111', values: [1, 2, 3] },
                   { name: 'b', colour: '#222222', values: [3, 2, 1] }] }).text;""",
    )
    assert text.count('class="area"') == 2
    assert re.findall(r'text-anchor="end"\s*>(\d+)<', text) == ["0", "2", "4", "6", "8", "10"]
    [above] = re.findall(r'class="area off" d="M([^"]*)Z"', text)
    corners = above.split("L")
    assert len({corner.split(",")[1] for corner in corners[:6]}) == 1, "with the line it is level"
    assert corners[0] == corners[-1], "and nothing as long as all could be used"
    assert ">failure</text" in text
    assert "&lt;b&gt;" in text
    assert "<b>" not in text


def test_a_pool_that_there_is_not_is_told_of(golden: Golden, node: NodeModules) -> None:
    """If a node pool is unknown, the console says so and lists the existing ones. A part of a name
    is enough to find a pool."""
    code = """const cards = [{ count: 8, model: 'NVIDIA H100 80GB HBM3', mode: '' }];
        const pools = [{ name: '8 x NVIDIA H100 80GB HBM3', hardware: cards },
          { name: 'spare', hardware: [] }];
        return m.odd(given[0], 'all', pools);"""
    [said] = node.run("fleet/model.js", code, "pool:train")
    golden({"pool:train": said})
    assert node.run("fleet/model.js", code, "pool:h100") == []


def test_times_in_sentences_are_by_the_readers_clock(node: NodeModules) -> None:
    """Times in sentences are shown in the user's time zone, with the date unless it is today."""
    code = "return m.ownTimes(given[0]);"
    said = node.run("typography.js", code, "silent at 2020-11-26T12:55:32Z, n-1")
    assert said == "silent at 11-26 12:55:32, n-1"


def test_names_in_a_row_get_links_and_no_text_becomes_markup(node: NodeModules) -> None:
    """Pods and nodes in a row become links, and all other text is escaped. Pods of hidden
    namespaces get no link."""
    pod = {"name": "train-0", "namespace": "ml"}
    row = {
        "parts": [pod, " placed ", "on ", {"name": "node-1"}, ": GPU-1 <i>"], "clauses": [],
        "own": 2, "sentence": "",
    }  # fmt: skip
    text = node.run("words.js", "return m.told(given[0]).text;", row)
    assert 'href="#/pod/ml/train-0"' in text
    assert 'href="#/fleet?q=node:node-1"' in text
    assert "&lt;i&gt;" in text
    found = node.run("words.js", "return [m.podOf(given[0]), m.nodeOf(given[0])];", row)
    assert found == [pod, "node-1"]
    hidden = [{"name": "-", "namespace": "another namespace"}]
    assert "href" not in node.run("words.js", "return m.linked(given[0]).text;", hidden)
    unread = {"parts": [], "clauses": [], "own": 0, "sentence": "plain"}
    assert node.run("words.js", "return m.told(given[0]);", unread) == "plain"


def test_words_at_the_left_of_the_newest_mark_lie_on_none_before(node: NodeModules) -> None:
    """If two labels on the time bar would overlap, the earlier mark loses its label."""
    sides = node.run(
        "marks.js",
        """const at = given.map((x, place) => ({ ms: x, revision: place, sentence: 's',
          look: 'broken', label: 'configuration' }));
        return m.grouped(at, mark => mark.ms, 900).map(group => group.side ?? 'none');""",
        740,
        890,
    )
    assert sides == ["none", "left"]


@pytest.mark.parametrize(("head", "side"), [(900, ""), (430, "left"), (380, "")])
def test_the_label_of_a_mark_is_not_under_the_playhead(
    node: NodeModules, head: int, side: str
) -> None:
    """On the time bar, a mark's label is on the side away from the playhead if there is room."""
    code = """const mark = { ms: 400, revision: 1, sentence: "s", look: "broken",
        label: "failure" };
        return m.grouped([mark], () => 400, 900, given[0])[0].side;"""
    assert node.run("marks.js", code, head) == side


def test_a_pool_with_a_name_of_its_own_says_what_its_cards_are(node: NodeModules) -> None:
    """If a node pool has a name of its own, the console also shows its GPU models, unless the name
    contains them."""
    models = node.run(
        "fleet/model.js",
        """const rows = [['train', []], ['2 x NVIDIA H100 80GB HBM3', [[2, 0, '']]]].map(
          ([pool, hardware]) => [`of ${pool}`, pool, 1, '', [['NVIDIA H100 80GB HBM3', 1000]],
            [0, 0, 0, 1, 0, 0], {}, [], {}, hardware]);
        const f = new m.Fleet();
        f.take({ whole: true, revision: 7, nodes: rows, gone: [] });
        return f.pools.map(pool => [pool.name, pool.models]);""",
    )
    assert [cards for _, cards in models] == [[], ["H100 80GB"]]
    assert models[1][0] == "train"


def test_words_by_names_are_those_of_the_verbs(node: NodeModules) -> None:
    """The console and the CLI use the same words for phases, outcomes, events and policies."""
    found = node.run("vocabulary.js", "return [m.PHASES, m.OUTCOMES, m.STORY, m.POLICIES];")
    assert found == [PHASES, OUTCOMES, STORY, list(POLICIES)]
    assert node.run("words.js", "return ['refused', 'bound'].map(m.phaseWord);") == [
        "pending",
        "bound",
    ]


def test_every_type_of_event_has_a_chip(node: NodeModules) -> None:
    """Each event type belongs to exactly one of the log's filter buttons. Unknown types belong to
    `other`."""
    kinds = node.run("kinds.js", "return m.KINDS;")
    types = sorted(each for group in kinds.values() for each in group)
    assert types == sorted(each.name for each in CATALOGUE)
    code = "return m.chipsOf(m.countKinds(given[0])).at(-1);"
    assert node.run("kinds.js", code, {"PodGone": 1}) != "other"
    assert node.run("kinds.js", code, {"OfTomorrow": 1}) == "other"


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([], ""),
        ([share("a", 3000, 50)], "1 GPU, 3,000 MiB, 50 % cores"),
        ([share("a", 4096, 0)], "1 GPU, 4,096 MiB"),
        ([share("NPU-a", 6144, 2, "vir02")], "1 NPU, 6,144 MiB, vir02"),
        ([share("a", 30, 5), share("b", 30, 5)], "2 GPUs, 30 MiB, 5 % cores each"),
        ([share("a", 30, 5), share("a", 20, 0)], "1 GPU, 30 MiB, 5 % cores + 20 MiB"),
        ([share("a", 20, 0), share("a", 20, 0)], "1 GPU, 2 \N{MULTIPLICATION SIGN} 20 MiB"),
        ([share("NPU-a", 20, 2)], "1 NPU, 20 MiB, 2 AI cores"),
    ],
)
def test_what_a_pod_holds_is_told_whole(
    node: NodeModules, shares: list[dict[str, Any]], words: str
) -> None:
    """The description of a pod's shares is complete, including cores and shares of several
    containers."""
    assert node.run("words.js", "return m.holds(given[0]);", shares) == words


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"family": "nvidia", "count": 8, "cores": 100}, "8 whole GPUs"),
        ({"family": "nvidia", "memory_mib": 3000}, "1 \N{MULTIPLICATION SIGN} GPU 3,000 MiB"),
        ({"family": "Ascend910B", "cores": 100}, "1 whole Ascend910B device"),
        (
            {"family": "Ascend910B", "profile": "vir02"},
            "1 \N{MULTIPLICATION SIGN} Ascend910B vir02",
        ),
    ],
)
def test_a_request_has_the_noun_of_its_family(
    node: NodeModules, ask: dict[str, Any], words: str
) -> None:
    """The console names a request after its kind of device: GPUs or NPUs."""
    line = {"asks": [ask], "wishes": ["of H100"]}
    assert node.run("words.js", "return m.lineWords(given[0]);", line) == f"{words}, of H100"


BADGE = """const shown = [], asked = [], timers = [];
  const had = { document: globalThis.document, setTimeout: globalThis.setTimeout };
  globalThis.document = { hidden: given[0] };
  globalThis.setTimeout = (act, wait) => timers.push([act, wait]);
  try {
    const badge = new m.Badge("waiting", "pending pod", 3000, async () => asked.push(1));
    badge.show = count => shown.push(count);
    for (const round of [1, 2]) {
      badge.news();
      badge.news();
      for (const [act, wait] of timers.splice(0)) {
        asked.push(wait > 0 ? "later" : "now");
        await act();
      }
    }
    return asked;
  } finally { Object.assign(globalThis, had); }"""


def test_counts_are_requested_once_per_interval_and_never_when_hidden(node: NodeModules) -> None:
    """However many updates arrive, the console requests its counts at most once per interval. A
    hidden page requests none."""
    assert node.run("badges.js", BADGE, False) == ["now", 1, "later", 1]
    assert node.run("badges.js", BADGE, True) == []


def test_badges_count_pending_pods_and_problems(node: NodeModules) -> None:
    """The badge for pending pods also counts refused ones. The badge for problems does not count
    warnings."""
    summary = {"phases": {"pending": 2, "refused": 4, "allocated": 9}}
    assert node.run("badges.js", "return m.pendingOf(given[0]);", summary) == 6
    checks = {"checks": [{"state": state} for state in ("ok", "soon", "unknown", "broken")]}
    assert node.run("badges.js", "return m.problemsOf(given[0]);", checks) == 1


def test_a_filter_colours_the_free_devices_that_match(node: NodeModules) -> None:
    """A filter highlights the free devices that match. Allocated devices keep their colour."""
    drawn = node.run(
        "fleet/paint.js",
        """const painter = Object.create(m.Painter.prototype), drawn = [];
        painter.colours = { free: ["free", "dim"], freeFound: "found" };
        painter.shares = painter.cross = painter.hatch = () => {};
        painter.rect = (x, y, width, tall, colour) => drawn.push(colour);
        const layout = { cardWidth: 4, cardHeight: 9, gap: 1, nodeAt: () => ({ x: 0, y: 0 }) };
        const node = { count: 3, state: [0, 0, 0], start: [0, 0, 0, 1], memory: [0.5] };
        painter.node(layout, {}, node, 0, null, false);
        painter.node(layout, {}, node, 0, [1, 0, 1], false);
        return drawn;""",
    )
    assert drawn == ["free", "free", "free", "found", "dim", "free"]


@pytest.mark.parametrize(("written", "state"), [
    ("unhealthy", "broken"), ("allocated", "granted"), ("unreachable", "unreached"),
    ("granted", "granted"), ("free", "free"),
])  # fmt: skip
def test_a_state_is_found_by_the_word_that_users_see(
    node: NodeModules, written: str, state: str
) -> None:
    """A filter finds a state by the word on the page, or by the word in older links. The console
    reports unknown words."""
    code = "return [m.odd(`state:${given[0]}`), new m.Filter('', given[0]).show];"
    assert node.run("fleet/model.js", code, written) == [[], state]
    assert len(node.run("fleet/model.js", "return m.odd('state:fine');")) == 1


def test_on_a_phone_nodes_of_four_cards_have_their_names(node: NodeModules) -> None:
    """On a phone, the map shows the names of nodes with four or eight devices."""
    code = f"{LAID} return layout.groups.map(group => group.named);"
    found = node.run("fleet/layout.js", code, [8, 8, 8, 4, 4, 4, 4], 390)
    assert found == [True] * 7


@pytest.mark.parametrize(("height", "kept"), [(460, True), (120, False)])
def test_pools_stay_on_their_shelves(node: NodeModules, height: int, kept: bool) -> None:
    """If the map loses a little height, its node pools stay in the same rows. If it loses more, the
    console arranges the pools again."""
    code = f"""{LAID.replace("470", "480")}
      const shelves = each => each.shelves.map(({{ pools }}) => pools.map(({{ name }}) => name));
      const next = new m.Layout(pools, across, given[4], 1, layout);
      return [shelves(layout), shelves(next)];"""
    pools = [8, 8, 8, 4, 4]
    before, after = node.run("fleet/layout.js", code, pools, 1104, "n", 40, height)
    assert (before == after) == kept


def test_a_name_is_written_where_it_has_room(node: NodeModules) -> None:
    """The map shows a node's name only if there is room for all of it."""
    code = f"""{LAID} layout.zoomTo(4);
      const at = (group, across) => Boolean(layout.at(layout.left + group.x + across,
        layout.top + layout.head + group.label + 1));
      return layout.groups.map(group => [group.named, group.label > 0, at(group, 1),
        at(group, group.nodeWidth - 1)]);"""
    found = node.run("fleet/layout.js", code, [8, 2], 1104)
    assert found == [[True, True, True, True], [True, True, True, False]]
    code = f"""{LAID} layout.zoomTo(4);
      return layout.groups.map(group => [group.named, group.label > 0]);"""
    found = node.run("fleet/layout.js", code, [8, 2], 1104, "gpu-node-of-row-7", 40)
    assert found == [[False, False]] * 2


def test_where_a_name_stands_is_its_node(node: NodeModules) -> None:
    """Pointing at a node's name finds the node. Pointing just below the name finds a device."""
    code = f"""{LAID} const {{ x, y }} = layout.boxOf(pools[0].nodes[0], 0);
      return [layout.at(x + 2, y - 4).card, layout.at(x + 2, y + 2).card];"""
    assert node.run("fleet/layout.js", code, [8, 2], 1104) == [-1, 0]


@pytest.mark.parametrize("height", [12, 26, 40, 60])
@pytest.mark.parametrize(
    ("memory", "whole"),
    [([0.024] * 40, 0.96), ([0.024] * 5, 0.12), ([0.01] * 10 + [0.9], 1.0), ([0.5, 0.5], 1.0)],
    ids=["forty", "five", "ten and one", "two"],
)
def test_every_share_of_a_card_is_seen(
    node: NodeModules, height: int, memory: list[float], whole: float
) -> None:
    """If a device is drawn with enough pixels, each of its shares is at least one pixel high."""
    rows = node.run(
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


def test_a_recovered_card_is_no_red_on_the_bar(node: NodeModules) -> None:
    """On the time bar, a recovery is not coloured as a failure, although both are events of the
    same type."""
    time = "2026-11-20T14:20:07Z"
    span = {"from_time": time, "to_time": time, "first_revision": 1, "last_revision": 9}
    mark = {
        "time": time,
        "revision": 3,
        "kind": "recovery",
        "sentence": "s",
        "type": "DeviceHealthChanged",
    }
    answer = {
        "bins": [{**span, "counts": {"DeviceHealthChanged": 4, "PodPlaced": 5}}],
        "marks": [mark, {**mark, "revision": 12}],
        "first_time": time, "last_time": time, "first_revision": 1,
    }  # fmt: skip
    code = "return m.read(given[0]).bins.map(({ quiet, red }) => [quiet, red]);"
    assert node.run("timebar.js", code, answer) == [[6, 3]]


def test_names_beside_a_chart_stay_in_it(node: NodeModules) -> None:
    """The names next to a chart's areas stay within the chart and do not overlap, even if areas are
    thin."""
    text = node.run(
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


def test_one_mark_more_is_one(node: NodeModules) -> None:
    """If a chart leaves out a single mark, its note says `1 more mark`, in the singular."""
    code = """const marks = [1, 2, 3, 4, 5].map(ms => ({ ms, look: "policy", words: "w" }));
        return m.stackNotes({ width: 390, times: [0], end: 100, marks, series: [] }).text;"""
    assert "and 1 more mark<" in " ".join(node.run("chart.js", code).split())


def test_how_far_an_answer_is_is_heard_line_by_line(node: NodeModules) -> None:
    """The console shows each line of progress when it arrives, however the network splits the
    stream."""
    found = node.run(
        "api.js",
        """const asked = globalThis.fetch;
        let pieces;
        const body = new ReadableStream({ start(controller) { pieces = controller; } });
        const headers = { "Content-Type": "application/x-ndjson" };
        globalThis.fetch = async (url, options) => // the page asks on by itself
          url.endsWith("/plan") ? new Response(body, { headers }) : asked(url, options);
        try {
          const heard = [];
          let tell;
          const next = () => new Promise(resolve => { tell = resolve; });
          let told = next();
          const answer = m.post("plan", {}, far => { heard.push(far); tell(); });
          const send = text => pieces.enqueue(new TextEncoder().encode(text));
          send('{"progress":{"step":"with","do');
          send('ne":1,"of":9}}\\n{"progress"');
          await told;
          const before = [...heard];
          told = next();
          send(':{"step":"with","done":2,"of":9}}\\n{"answer":{"revi');
          await told;
          send('sion":7}}');
          pieces.close();
          return [before, heard, await answer];
        } finally { globalThis.fetch = asked; }""",
    )
    first, second = ({"step": "with", "done": done, "of": 9} for done in (1, 2))
    assert found == [[first], [first, second], {"revision": 7}]
